"""``report best``: who may be the best, and the gate against a baseline."""

import json
import re

import numpy as np
import pytest
from stub_server import StubServer
from verdict_rows import verdict

from mtbench_ray.cli.main import main
from mtbench_ray.errors import UserError
from mtbench_ray.judges.base import ScoreOptions
from mtbench_ray.reports.best import figures
from mtbench_ray.reports.differences import ranking, valued
from mtbench_ray.stats.best import against_best, against_reference


def items(values, model="m"):
    return valued([verdict(value, number, model=model) for number, value in enumerate(values)])


def drawn(rng, means, questions=80):
    """Values of models that share how hard a question is."""
    hard = rng.normal(0, 1.5, questions)
    return [(mean + hard + rng.normal(0, 1.0, questions)).tolist() for mean in means]


@pytest.mark.parametrize("means", [[7, 7, 7, 7], [7, 6.8, 6.5, 5], [7, 6, 5, 4]])
def test_all_intervals_against_the_best_are_right_in_95_percent_of_samples(means):
    rng, wrong, missed = np.random.default_rng(0), 0, 0
    truth = [mean - max(means[:i] + means[i + 1 :]) for i, mean in enumerate(means)]
    for seed in range(150):
        values = drawn(rng, means)
        found = against_best(values, range(80), resamples=400, seed=seed)
        wrong += any(
            not one.low - 1e-9 <= true <= one.high + 1e-9
            for one, true in zip(found, truth, strict=True)
        )
        missed += found[0].high == 0
    # of 150 with 95% coverage more than 14 are wrong with a chance of 1%
    assert wrong <= 14
    assert missed <= 14


def test_intervals_are_those_of_the_definition_computed_by_loops():
    """Edwards and Hsu 1983, with the same resamples and nothing vectorised."""
    values = drawn(np.random.default_rng(1), [7, 6.7, 6], questions=12)
    found = against_best(values, range(12), resamples=300, seed=4)
    # clusters are in the order of their names, as everywhere in stats
    order = sorted(range(12), key=repr)
    counts = np.random.default_rng(4).multinomial(12, [1 / 12] * 12, size=300)
    wider = (12 / 11) ** 0.5 * 2.20099 / 1.95996  # t and normal quantiles of SciPy

    def mean(model, weights):
        return sum(w * values[model][q] for w, q in zip(weights, order, strict=True)) / 12

    means = [mean(model, [1] * 12) for model in range(3)]
    critical = []
    for i in range(3):
        worst = []
        for weights in counts:
            error = [(mean(j, weights) - means[j]) * wider for j in range(3)]
            worst.append(max(error[j] - error[i] for j in range(3) if j != i))
        critical.append(np.quantile(worst, 0.95))
    for i in range(3):
        gaps = {j: means[i] - means[j] for j in range(3) if j != i}
        high = max(0.0, min(gap + critical[i] for gap in gaps.values()))
        assert found[i].high == pytest.approx(high, abs=2e-3)
        assert found[i].difference == pytest.approx(min(gaps.values()))
        rivals = [gap - critical[j] for j, gap in gaps.items() if found[j].high > 0]
        assert found[i].low == pytest.approx(min([0.0, *rivals]), abs=2e-3)


def test_a_best_one_beyond_doubt_is_alone_and_more_are_told_apart_than_by_pairs():
    rng = np.random.default_rng(2)
    models = {f"m{n}": items(one) for n, one in enumerate(drawn(rng, [7.6, 7.0, *[6.6] * 10]))}
    found = figures(models, None, None, 1000, 0)
    assert found["best"] == "m0"
    assert found["models"][0]["ci_low"] <= 0 < found["models"][0]["ci_high"]
    pairs = ranking(models, ScoreOptions(resamples=100)).with_best
    assert set(found["with_best"]) <= set(pairs)
    alone = figures({"a": items([9, 8] * 10), "b": items([3, 4] * 10)}, None, None, 500, 0)
    assert alone["with_best"] == ["a"]
    assert alone["models"][0]["ci_low"] == 0.0
    equal = figures({"a": items([5, 6] * 10), "b": items([6, 5] * 10)}, None, None, 500, 0)
    assert equal["with_best"] == ["a", "b"]


def test_the_gate_holds_for_whichever_was_chosen():
    """20 checkpoints like the baseline: the best of them is not "better" beyond 5%."""
    rng, false = np.random.default_rng(3), 0
    for seed in range(100):
        *values, base = drawn(rng, [6.0] * 21, questions=40)
        half = against_reference(values, base, range(40), resamples=300, seed=seed)
        false += max(np.mean(one) for one in values) - np.mean(base) - half > 0
    assert false <= 11  # with 5% more than 11 of 100 come with a chance of 0.4%


@pytest.mark.parametrize(
    ("shift", "margin", "said"),
    [(2.0, 0.1, "not worse"), (-2.0, 0.1, "worse"), (0.0, 0.0, "cannot tell"),
     (0.0, 3.0, "not worse")],
)  # fmt: skip
def test_a_gate_against_the_baseline(shift, margin, said):
    *values, base = drawn(np.random.default_rng(4), [6 + shift, 5 + shift, 6])
    models = {"a": items(values[0]), "b": items(values[1])}
    found = figures(models, items(base), margin, 500, 0)
    assert found["gate"] == {"margin": margin, "verdict": said}
    one = figures({"a": items(values[0])}, items(base), margin, 500, 0)
    assert one["with_best"] == ["a"]


def test_few_questions_and_missing_scores_are_said():
    few = figures({"a": items([9, 9]), "b": items([1, 1])}, items([5, 5]), 0.1, 500, 0)
    assert few["with_best"] == ["a", "b"]
    assert few["gate"]["verdict"] == "cannot tell"
    assert "5 questions are needed" in few["notes"][-1]
    some = figures({"a": items([9] * 8), "b": items([8] * 6), "c": items([])}, None, None, 99, 0)
    assert some["n_turns"] == 6
    assert "c has no score" in some["notes"][0]
    assert "6 of 8 items" in some["notes"][1]
    assert figures({"a": items([])}, None, None, 9, 0) is None
    with pytest.raises(UserError, match="no rated item in common"):
        figures({"a": items([1.0]), "b": valued([verdict(1.0, 5)])}, None, None, 9, 0)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run of three checkpoints in one workspace, an older release in another."""
    folder = tmp_path_factory.mktemp("best")
    (folder / "q.jsonl").write_text(
        "".join(json.dumps({"question_id": n, "category": "own", "turns": [f"Say {n}."]}) + "\n"
                for n in range(10))
    )  # fmt: skip
    with StubServer() as stub:
        for model, text, place in (("run/step_1", 4, "w"), ("run/step_2", 8, "w"),
                                   ("run/step_3", 6, "w"), ("release", 7, "old")):  # fmt: skip
            stub.script.text = f"Rating: [[{text}]]"
            assert main([f"model={model}", "engine=fake", f"question_path={folder / 'q.jsonl'}",
                         "judge=openai", "judge.model=stub", f"judge.base_url={stub.url}",
                         f"workspace={folder / place}"]) == 0  # fmt: skip
    return folder


@pytest.mark.runs
def test_the_report_and_its_exit_codes(made, capsys):
    capsys.readouterr()
    here = f"workspace={made / 'w'}"
    assert main(["report", "best", here]) == 0
    out = capsys.readouterr().out
    assert re.search(r"best: run/step_2\n", out)
    both = [f"workspace={made / 'old'}", here]
    line = ["report", "best", *both, "baseline=release", "gate=0.1"]
    assert main(line) == 0
    assert "gate 0.1: not worse" in capsys.readouterr().out
    assert main(["report", "best", "step_1", *line[2:]]) == 1
    out = capsys.readouterr().out
    assert "gate 0.1: worse" in out
    assert "step_2" not in out
    assert main(["report", "best", "run/*", *line[2:], "resamples=0"]) == 3
    capsys.readouterr()
    assert main([*line, "format=json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["best"], found["with_best"]) == ("run/step_2", ["run/step_2"])
    assert found["against_baseline"] == {"mean": 1.0, "ci_low": 1.0, "ci_high": 1.0}
    for format in ("markdown", "csv", "latex"):
        assert main([*line, f"format={format}"]) == 0
        assert capsys.readouterr().out
    assert main(["report", "best", here, "gate=0.1"]) == 2
    assert "baseline=MODEL" in capsys.readouterr().err
    assert main(["report", "best", "nobody", here]) == 2
    assert main(["report", "compare", here, "baseline=x"]) == 2
