"""mean@N and the parts of the spread."""

import json
import math
import statistics
from types import SimpleNamespace

import numpy as np
import pytest
from stub_server import StubServer
from verdict_rows import evaluation, verdict

from mtbench_ray.benchmarks import grader_of
from mtbench_ray.cli.main import main
from mtbench_ray.judges.base import ScoreOptions
from mtbench_ray.reports.spread import aggregate, is_repeated, spread

OPTIONS = ScoreOptions()


def test_three_judgments_of_one_row_count_as_their_mean():
    rows = [verdict(value, judge_sample=number) for number, value in enumerate((8, 9, 8))]
    found = spread(evaluation(judge_samples=3), rows, OPTIONS)
    assert found["mean"] == pytest.approx(25 / 3)
    assert found["per_judge_sample"] == [8.0, 9.0, 8.0]
    assert found["per_sample"] == [pytest.approx(25 / 3)]
    assert found["repeat_std"] == pytest.approx(1 / math.sqrt(3))
    assert found["std"] == pytest.approx(1 / math.sqrt(3))
    assert found["parts"] == {
        "question": None,
        "answer": None,
        "judge": pytest.approx(1 / math.sqrt(3)),
    }
    assert (found["samples"], found["judge_samples"], found["n_questions"]) == (1, 3, 1)
    assert found["ci_low"] is None
    assert found["sem"] is None


def test_the_parts_are_found_again_in_simulated_verdicts():
    rng = np.random.default_rng(5)
    rows = [
        verdict(question + answer + rng.normal(0, 0.5), number, turn, sample, judge_sample)
        for number in range(300)
        for turn in (1, 2)
        for question in [rng.normal(5, 2.0)]
        for sample in range(3)
        for answer in [rng.normal(0, 1.0)]
        for judge_sample in range(2)
    ]
    found = spread(evaluation(samples=3, judge_samples=2), rows, OPTIONS)
    assert found["parts"]["question"] == pytest.approx(2.0, rel=0.1)
    assert found["parts"]["answer"] == pytest.approx(1.0, rel=0.1)
    assert found["parts"]["judge"] == pytest.approx(0.5, rel=0.1)
    whole = math.sqrt(sum(part**2 for part in found["parts"].values()))
    assert whole == pytest.approx(found["std"], rel=0.01)
    assert found["std"] == pytest.approx(statistics.stdev(r.value for r in rows))
    assert found["ci_high"] - found["ci_low"] == pytest.approx(2 * 1.97 * found["sem"], rel=0.1)


@pytest.mark.parametrize(("samples", "judge_samples"), [(3, 1), (2, 4)])
def test_repeats_say_how_far_an_average_moves_when_all_is_done_again(samples, judge_samples):
    rng = np.random.default_rng(7)
    squares = []
    for _ in range(200):
        rows = [
            verdict(5 + answer + rng.normal(0, 1.0), number, 1, sample, judge_sample)
            for number in range(10)
            for sample in range(samples)
            for answer in [rng.normal(0, 1.0)]
            for judge_sample in range(judge_samples)
        ]
        found = spread(evaluation(samples=samples, judge_samples=judge_samples), rows, OPTIONS)
        squares.append(found["repeat_std"] ** 2)
    # One answer and one judgment for each of ten turns.
    assert statistics.fmean(squares) == pytest.approx((1 + 1) / 10, rel=0.15)


def test_repeats_are_compared_on_the_turns_that_all_of_them_have():
    rows = [verdict(9, 1), verdict(1, 2), verdict(9, 1, sample=1), verdict("missing", 2, sample=1)]
    found = spread(evaluation(samples=2, questions=(1, 2)), rows, OPTIONS)
    assert found["repeat_std"] == 0


def test_failed_verdicts_are_counted_and_never_a_number():
    rows = [
        verdict(6, 1),
        verdict("no_rating", 2),
        verdict("missing", 1, sample=1),
        verdict("missing", 2, sample=1),
    ]
    found = spread(evaluation(samples=2, questions=(1, 2)), rows, OPTIONS)
    assert found["mean"] == 6.0
    assert found["per_sample"] == [6.0, None]
    assert (found["planned"], found["scored"]) == (4, 1)
    assert found["failed"] == {"missing": 2, "no_rating": 1}
    assert found["std"] is found["repeat_std"] is None


def test_nothing_scored_has_no_figure():
    found = spread(evaluation(), [verdict("missing")], OPTIONS)
    assert found["mean"] is found["std"] is found["sem"] is found["ci_high"] is None
    json.dumps(found, allow_nan=False)


def test_only_rated_evaluations_are_aggregated():
    rows = [evaluation(), evaluation(judge=""), evaluation("other")]
    results = SimpleNamespace(
        items=lambda row: [verdict(5)], grader=lambda row: grader_of(row.benchmark, row.mode),
        options=OPTIONS,
    )  # fmt: skip
    found = aggregate(results, rows)
    assert [item["model"] for item in found["results"]] == ["m", "other"]
    assert [is_repeated(evaluation(samples=n, judge_samples=m)) for n, m in
            ((1, 1), (2, 1), (1, 2))] == [False, True, True]  # fmt: skip


@pytest.mark.runs
def test_two_runs_of_a_fixed_judge_are_equal_to_the_byte(
    questions, references, tmp_path, capsys, monkeypatch
):
    written = []
    with StubServer() as stub:
        for name in ("one", "two"):
            line = [
                "-m", "model=org/a,org/b", "engine=fake", f"question_path={questions}",
                f"reference_path={references}", "judge=openai", "judge.model=stub",
                f"judge.base_url={stub.url}", f"workspace={tmp_path / name}",
                "sampling.samples=2", "judge.samples=2",
            ]  # fmt: skip
            assert main(line) == 0
            summary = json.loads((tmp_path / name / "summary.json").read_text())
            for result in summary["results"]:
                # What the clock gave.
                result["output_tokens_per_s"] = None
                result["answers"].update(seconds_per_answer=None, engine_start_s=None)
            spread_file = (tmp_path / name / "summary_agg.json").read_bytes()
            written.append((json.dumps(summary), spread_file))
            table = capsys.readouterr().out
    assert written[0] == written[1]
    result = json.loads(written[0][1])["results"][0]
    average = json.loads(written[0][0])["results"][0]["average"]
    assert (result["mean"], result["ci_low"]) == (average["mean"], average["ci_low"])
    assert (result["samples"], result["judge_samples"], result["n_questions"]) == (2, 2, 4)
    assert len(result["per_sample"]) == 2
    assert "judge part" in table
    assert "2 x 2" in table
