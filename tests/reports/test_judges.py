"""``report judges``: agreement, bias and strengths, each against a second computation."""

import json
import math

import numpy as np
import pytest
from questions import hills
from stub_server import StubServer
from verdicts import games, slot

from mtbench_ray.benchmarks import grader_of
from mtbench_ray.cli.main import main
from mtbench_ray.judges.agreement import Rated
from mtbench_ray.judges.matches import matches
from mtbench_ray.models.families import family_of
from mtbench_ray.reports.judge_figures import game_figures, length_figures, self_preference
from mtbench_ray.stats.strengths import ELO, bradley_terry

pytestmark = pytest.mark.runs
duckdb = pytest.importorskip("duckdb")
stats = pytest.importorskip("scipy.stats")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two judges of two models in one workspace, a third judge of the same answers in another."""
    folder = tmp_path_factory.mktemp("judges")
    hills(folder)
    with StubServer() as stub:
        for name, judges in (("one", ("x", "y")), ("two", ("z",))):
            usual = [
                "engine=fake",
                f"question_path={folder / 'q.jsonl'}",
                f"workspace={folder / name}",
                "judge=openai",
                f"judge.base_url={stub.url}",
            ]
            for judge in judges:
                main(["-m", *usual, "model=a,b", f"judge.model={judge}"])
        main(["-m", *usual[:2], f"workspace={folder / 'one'}", *usual[3:], "model=a,b",
              "judge.model=x", "mode=pairwise-all"])  # fmt: skip
    return folder


def report(made, capsys, *words):
    assert main(["report", *words, f"workspace={made / 'one'}", f"workspace={made / 'two'}"]) == 0
    return capsys.readouterr().out


def test_judges_of_two_workspaces_agree_as_duckdb_and_scipy_find(made, capsys):
    capsys.readouterr()
    found = json.loads(report(made, capsys, "judges", "format=json"))
    assert sorted(tuple(pair["judges"]) for pair in found["values"]) == [
        ("x", "y"), ("x", "z"), ("y", "z"),
    ]  # fmt: skip
    rows = duckdb.sql(
        f"""select judge, model, question_id, turn, value, category from
            '{made}/*/judgments.parquet' where mode = 'single'"""
    ).fetchall()
    values = {}
    for judge, model, question, turn, value, category in rows:
        values.setdefault(judge, {})[model, question, turn, category] = value
    for pair in found["values"]:
        one, other = (values[name] for name in pair["judges"])
        keys = list(one)
        x, y = [one[key] for key in keys], [other[key] for key in keys]
        assert pair["all"]["n"] == len(keys) == 24
        assert pair["all"]["exact"] == pytest.approx(np.mean(np.array(x) == np.array(y)))
        assert pair["all"]["mean_difference"] == pytest.approx(np.mean(x) - np.mean(y))
        assert pair["all"]["spearman"] == pytest.approx(stats.spearmanr(x, y).statistic)
        assert pair["all"]["pearson"] == pytest.approx(stats.pearsonr(x, y).statistic)
        for name, at in (("model", 0), ("turn", 2), ("category", 3)):
            assert {part: item["n"] for part, item in pair["parts"][name].items()} == {
                str(part): sum(key[at] == part for key in keys)
                for part in {key[at] for key in keys}
            }
        assert sum(count for *_, count in pair["confusion"]) == 24
        gaps = sorted((abs(a - b) for a, b in zip(x, y, strict=True)), reverse=True)
        shown = [abs(a - b) for a, b in (line["values"] for line in pair["disagreements"])]
        assert shown == [gap for gap in gaps[:10] if gap]


def test_games_show_position_bias_and_inconsistency_as_duckdb_finds(made, capsys):
    capsys.readouterr()
    found = json.loads(report(made, capsys, "judges", "x", "format=json"))
    (line,) = [one for one in found["judges"] if one["mode"] == "pairwise-all"]
    ((count, first, ties),) = duckdb.sql(
        f"""select count(*), avg(case when label = 'A' then 1 else 0 end)
            filter (label <> 'tie'), avg(case when label = 'tie' then 1 else 0 end)
            from '{made}/one/judgments.parquet' where mode = 'pairwise-all'"""
    ).fetchall()
    ((unequal, whole),) = duckdb.sql(
        f"""with g as (select question_id, turn, max(value) filter ("order" = 1) one,
            max(value) filter ("order" = 2) two from '{made}/one/judgments.parquet'
            where mode = 'pairwise-all' group by all)
            select avg(case when one <> two then 1 else 0 end), count(*) from g"""
    ).fetchall()
    assert (line["games"], line["matches"]) == (count, whole)
    assert line["first_shown"] == pytest.approx(first)
    assert line["ties"] == pytest.approx(ties)
    assert line["inconsistent"] == pytest.approx(unequal)
    (table,) = found["strengths"]
    assert {one["model"] for one in table["models"]} == {"a", "b"}
    assert sum(one["strength"] for one in table["models"]) == pytest.approx(2000)


def test_the_text_names_each_judge_and_the_disagreements(made, capsys):
    capsys.readouterr()
    out = report(made, capsys, "judges")
    for said in ("x minus y", "first shown wins", "Bradley-Terry", "mean shift"):
        assert said in out
    assert main(["report", "judges", "nobody", f"workspace={made / 'one'}"]) == 2
    assert "unknown judge of this workspace" in capsys.readouterr().err


def test_a_judge_that_always_prefers_the_first_is_seen():
    outcomes = [
        one
        for q in range(5)
        for one in games("a", "b", q, 1, "model_1", "model_2")  # A both times
    ]
    grader = grader_of("mt_bench", "pairwise-all")
    found = game_figures(
        outcomes, matches(outcomes), lambda one: grader.value_for(one.slot, one.judgment), (0, 1)
    )
    assert found == {"games": 10, "first_shown": 1.0, "ties": 0.0, "matches": 5,
                     "inconsistent": 1.0}  # fmt: skip


def test_strengths_are_the_maximum_of_their_likelihood():
    rng = np.random.default_rng(1)
    games_ = [
        (i, j, float(rng.random() < 1 / (1 + math.exp(j - i))) if rng.random() < 0.8 else 0.5, q)
        for q in range(12)
        for i in range(4)
        for j in range(i + 1, 4)
    ]
    from scipy.optimize import minimize

    def loss(beta):
        total = sum(
            value * np.logaddexp(0, beta[j] - beta[i])
            + (1 - value) * np.logaddexp(0, beta[i] - beta[j])
            for i, j, value, _ in games_
        )
        return total + 0.5 * sum(np.logaddexp(0, -b) + np.logaddexp(0, b) for b in beta)

    best = minimize(loss, np.zeros(4), method="BFGS", options={"gtol": 1e-9}).x
    found = bradley_terry(games_, 4, 200)
    wanted = 1000 + ELO * (best - best.mean())
    assert [one.value for one in found] == pytest.approx(wanted, abs=0.05)
    assert all(one.low < one.value < one.high for one in found)
    few = bradley_terry([game for game in games_ if game[3] < 4], 4, 200)
    assert all(one.low is one.high is None for one in few)  # four questions


def test_who_loses_every_game_has_a_finite_strength():
    found = bradley_terry([(0, 1, 1.0, q) for q in range(10)], 2, 100)
    assert 1000 < found[0].value < 2500
    assert found[0].value + found[1].value == pytest.approx(2000)


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("gpt-4o", "gpt"), ("o3-mini", "gpt"), ("Qwen/Qwen2.5-7B", "qwen"),
        ("claude-x", "claude"), ("google/gemma-2b", "gemini"), ("microsoft/Phi-3-mini", "phi"),
        ("yi-34b-chat", "yi"), ("graphium", None), ("run/step_100", None), ("foo3", None),
        ("DeepSeek-R1-Distill-Llama-8B", None),
    ],
)  # fmt: skip
def test_a_family_is_known_by_name(name, family):
    assert family_of(name) == family


def test_a_judge_that_favours_its_own_family_is_seen():
    slots = {(m, q): slot(m, q) for m in ("qwen-1", "llama-1") for q in range(4)}
    fair = {key: Rated(5.0 + key[1], ()) for key in slots}
    biased = {
        key: Rated(one.value + (2 if key[0] == "qwen-1" else 0.5), ()) for key, one in fair.items()
    }
    found = self_preference("qwen-max", "qwen-max", {"qwen-max": biased, "gpt-4": fair}, slots)
    assert found == {"family": "qwen", "own": 4, "others": 4, "difference": 1.5}
    assert self_preference("gpt-4", "gpt-4", {"qwen-max": biased, "gpt-4": fair}, slots) is None
    assert self_preference("qwen-max", "qwen-max", {"qwen-max": biased}, slots) is None


def test_length_is_correlated_within_models_too():
    # the longer model is better, but within each the longer answer is worse
    points = {"a": [(10, 3), (20, 2), (30, 1)], "b": [(110, 9), (120, 8), (130, 7)]}
    found = length_figures(points)
    assert found["within"] == pytest.approx(-1)
    every = [point for mine in points.values() for point in mine]
    assert found["spearman"] == pytest.approx(stats.spearmanr(*zip(*every, strict=True)).statistic)
