"""Each table against a second computation: DuckDB over the Parquet files, or SciPy."""

import csv
import io
import json
import math

import pytest
from questions import hills
from stub_server import StubServer

from mtbench_ray.cli.main import main

pytestmark = pytest.mark.runs
duckdb = pytest.importorskip("duckdb")
MODELS = ("org/step_1", "org/step_2", "other")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Three models, 12 own questions in two categories, two judges, both kinds of matches."""
    folder = tmp_path_factory.mktemp("twice")
    hills(folder, 12)
    with StubServer() as stub:
        usual = ["engine=fake", f"question_path={folder / 'q.jsonl'}", f"workspace={folder / 'w'}",
                 "judge=openai", "judge.model=stub", f"judge.base_url={stub.url}"]  # fmt: skip
        main(["-m", *usual, f"model={','.join(MODELS)}"])
        main([*usual, "model=other", "judge.model=second"])
        main(["-m", *usual, "mode=pairwise-all", f"model={','.join(MODELS)}"])
        main(["-m", *usual, "mode=pairwise-baseline", "baseline=other",
              "model=org/step_1,org/step_2"])  # fmt: skip
    return folder / "w"


@pytest.fixture
def cli(made, capsys):
    return Reader(made, capsys)


class Reader:
    """The report verbs on a workspace."""

    def __init__(self, workspace, capsys):
        self.workspace, self.capsys = workspace, capsys

    def __call__(self, *words):
        code = main(["report", *words, f"workspace={self.workspace}"])
        self.out, self.err = self.capsys.readouterr()
        return code

    def json(self, *words):
        self(*words, "format=json")
        return json.loads(self.out)

    def sql(self, query, table="judgments"):
        path = self.workspace / f"{table}.parquet"
        return duckdb.sql(query.replace("TABLE", f"'{path}'")).fetchall()


def close(value):
    return pytest.approx(value, abs=1e-9)


def test_the_summary_is_what_duckdb_finds_in_the_judgments(cli):
    found = cli.json("mode=single", "judge=stub")["results"]
    rows = cli.sql(
        """select model, avg(value), count(value), count(*),
           avg(value) filter (turn = 1), avg(value) filter (turn = 2),
           avg(value) filter (category = 'math'), avg(value) filter (category = 'writing')
           from TABLE where mode = 'single' and judge = 'stub' group by model"""
    )
    assert len(rows) == len(found) == 3
    by_model = {result["model"]: result for result in found}
    for model, mean, scored, planned, first, second, math_, writing in rows:
        result = by_model[model]
        assert result["average"]["mean"] == close(mean)
        assert (result["average"]["scored"], result["average"]["planned"]) == (scored, planned)
        assert result["first_turn"]["mean"] == close(first)
        assert result["second_turn"]["mean"] == close(second)
        assert result["categories"]["math"]["mean"] == close(math_)
        assert result["categories"]["writing"]["mean"] == close(writing)
    ranks = cli.sql(
        """select model, rank() over (order by mean desc) from TABLE
           where judge = 'stub' and mode = 'single' and dimension = 'all'""", "scores"
    )  # fmt: skip
    assert {model: by_model[model]["rank"] for model, _ in ranks} == dict(ranks)


def test_crossed_parts_are_those_of_duckdb(cli):
    found = cli.json("by=category,turn", "mode=single")
    rows = cli.sql(
        """select judge, model, coalesce(category, ''), coalesce(cast(turn as varchar), ''),
           avg(value), count(value) from TABLE where mode = 'single'
           group by cube (category, turn), judge, model"""
    )
    shown = {
        (line["judge"], line["model"], line["parts"]["category"], line["parts"]["turn"]): (
            line["mean"], line["scored"],
        )
        for line in found
    }  # fmt: skip
    assert len(shown) == len(found) == len(rows) == 4 * 9
    for *key, mean, scored in rows:
        assert shown[tuple(key)] == (close(mean), scored)


def test_the_change_from_the_first_part_to_the_last_is_that_of_duckdb(cli):
    found = [line for line in cli.json("by=turn", "mode=single") if not line["parts"]["turn"]]
    rows = cli.sql(
        """select a.judge, a.model, avg(b.value - a.value), stddev_samp(b.value - a.value),
           avg(case when b.value = a.value then 1 else 0 end), count(*)
           from TABLE a join TABLE b using (judge, model, question_id, mode)
           where mode = 'single' and a.turn = 1 and b.turn = 2 group by a.judge, a.model"""
    )
    shown = {(line["judge"], line["model"]): line["difference"] for line in found}
    assert len(rows) == len(shown) == 4
    for judge, model, mean, std, equal, n in rows:
        gap = shown[judge, model]
        assert (gap["mean"], gap["std"], gap["equal"], gap["n"]) == (
            close(mean), close(std), close(equal), n,
        )  # fmt: skip
        assert gap["ci_low"] <= gap["mean"] <= gap["ci_high"]


GAMES = """with games as (
    select model, opponent, question_id, turn, category,
           max(value) filter ("order" = 1) one, max(value) filter ("order" = 2) two
    from TABLE where mode = 'pairwise-all' and {} group by all),
  matches as (select *, case when one = two then one else 0.5 end won from games),
  sides as (select model, category, turn, won from matches
            {}) """


@pytest.mark.parametrize(
    ("mode", "which", "other_side"),
    [
        ("pairwise-all", "true", "union all select opponent, category, turn, 1 - won from matches"),
        # judged before, and not again: the rows are those of the other mode
        ("pairwise-baseline", "opponent = 'other'", ""),
    ],
)
def test_win_rates_by_part_are_those_of_duckdb(mode, which, other_side, cli):
    rows = cli.sql(
        GAMES.format(which, other_side)
        + """select model, coalesce(category, ''), coalesce(cast(turn as varchar), ''), avg(won),
             count(*) from sides
             group by grouping sets ((model), (model, category), (model, turn))"""
    )
    found = {result["model"]: result for result in cli.json(f"mode={mode}")["results"]}
    assert len(rows) == 5 * len(found)
    for model, category, turn, rate, count in rows:
        result = found[model]
        if not category and not turn:
            assert (result["win_rate_adjusted"], result["n"]) == (close(rate), count)
        else:
            part = result["categories"][category] if category else result["turns"][turn]
            assert (part["mean"], part["scored"]) == (close(rate), count)
    crossed_ = {
        (line["model"].partition(" against")[0], line["parts"]["category"]): line["mean"]
        for line in cli.json("by=category", f"mode={mode}")
    }
    for model, category, turn, rate, _ in rows:
        if not turn:
            assert crossed_[model, category] == close(rate)


def test_a_comparison_is_that_of_scipy(cli):
    stats = pytest.importorskip("scipy.stats")
    (found,) = cli.json("compare", "org/step_1", "org/step_2", "mode=single", "detect=0.5")
    gaps = cli.sql(
        """select a.category, a.question_id, avg(a.value - b.value)
           from TABLE a join TABLE b using (judge, question_id, turn, mode)
           where mode = 'single' and judge = 'stub' and a.model = 'org/step_1'
             and b.model = 'org/step_2' group by all order by all"""
    )
    by_part = {
        "all": [gap for _, _, gap in gaps],
        "math": [gap for name, _, gap in gaps if name == "math"],
        "writing": [gap for name, _, gap in gaps if name == "writing"],
    }
    p_values = {}
    for name, values in by_part.items():
        item = found["all"] if name == "all" else found["categories"][name]
        k = len(values)
        assert (item["n_questions"], item["n_turns"]) == (k, 2 * k)
        assert item["mean"] == close(sum(values) / k)
        # 2**12 sign patterns: both take all of them
        test = stats.permutation_test(
            (values,), lambda x, axis: x.mean(axis=axis), permutation_type="samples",
            n_resamples=math.inf, vectorized=True,
        )  # fmt: skip
        p_values[name] = item["p_value"]
        assert item["p_value"] == pytest.approx(test.pvalue, abs=1e-6)
        se = stats.sem(values)
        t = stats.t(k - 1)
        assert item["detectable"] == pytest.approx((t.ppf(0.975) + t.ppf(0.8)) * se, rel=0.01)
        low, high = stats.t.interval(0.95, k - 1, loc=item["mean"], scale=se)
        assert item["ci_high"] - item["ci_low"] == pytest.approx(high - low, rel=0.3)
    smaller, larger = sorted(p_values[name] for name in ("math", "writing"))
    held = sorted(found["categories"][name]["p_holm"] for name in ("math", "writing"))
    assert held == pytest.approx([min(1, 2 * smaller), min(1, max(2 * smaller, larger))])
    need = found["needed"]
    assert need["questions"] == math.ceil(12 * (found["all"]["detectable"] / 0.5) ** 2)
    assert need["samples"] == math.ceil((found["all"]["detectable"] / 0.5) ** 2)
    assert not need["samples_known"]


def test_a_comparison_of_one_turn_is_that_of_duckdb(cli):
    words = ("compare", "org/step_1", "org/step_2", "mode=single")
    ((gap, count),) = cli.sql(
        """select avg(a.value - b.value), count(*) from TABLE a join TABLE b
           using (judge, question_id, turn, mode) where mode = 'single' and judge = 'stub'
           and a.model = 'org/step_1' and b.model = 'org/step_2' and a.turn = 2"""
    )
    (found,) = cli.json(*words, "metric=second_turn")
    assert (found["all"]["mean"], found["all"]["n_turns"]) == (close(gap), count) == (gap, 12)
    assert (found["benchmark"], found["metric"]) == ("mt_bench", "second_turn")
    assert {one["turn"] for one in found["flips"]} == {2}
    assert cli(*words, "metric=second_turn") == 0
    assert "mt_bench single, second turn: org/step_1 minus org/step_2, judge stub" in cli.out
    assert cli(*words) == 0
    assert "mt_bench single: org/step_1 minus org/step_2, judge stub" in cli.out


@pytest.mark.parametrize(
    ("metric", "value"),
    [
        ("win_rate", "one = 1 and two = 1"),
        ("loss_rate", "one = 0 and two = 0"),
        ("inconsistent", "one <> two"),
    ],
)
def test_a_comparison_of_rates_against_a_baseline_is_that_of_duckdb(metric, value, cli):
    rates = dict(
        cli.sql(
            GAMES.format("opponent = 'other'", "")
            + f"""select model, avg(case when {value} then 1 else 0 end) from (
                  select model, one, two from matches) group by model"""
        )
    )
    words = ("compare", "org/step_1", "org/step_2", "mode=pairwise-baseline", f"metric={metric}")
    (found,) = cli.json(*words)
    assert found["all"]["mean"] == close(rates["org/step_1"] - rates["org/step_2"])
    (ranked,) = cli.json("compare", "org/step_1", "org/step_2", *words[3:])
    assert ranked["lower_is_better"] == (metric != "win_rate")
    results = cli.json("mode=pairwise-baseline")["results"]
    assert {one["model"]: one[metric] for one in results} == {
        name: close(rate) for name, rate in rates.items()
    }


def test_a_model_that_only_played_matches_is_no_unknown_name(cli):
    assert cli("compare", "other", "org/step_1", "mode=pairwise-all") == 2
    assert "other was only compared with other models (pairwise-all)" in cli.err


def test_an_unknown_metric_lists_those_there_are(cli):
    for verb in ("compare", "judges"):
        models = ["org/step_1", "org/step_2"] * (verb == "compare")
        assert cli(verb, *models, "metric=turn_one", "mode=single") == 2
        assert "unknown metric 'turn_one'; there are: average, first_turn, second_turn" in cli.err
    assert cli("metric=first_turn") == 2
    assert "metric=first_turn is of `report compare or judges`" in cli.err


def test_judges_of_one_turn_are_compared_as_duckdb_does(cli):
    found = cli.json("judges", "mode=single", "metric=first_turn")
    ((gap, count),) = cli.sql(
        """select avg(a.value - b.value), count(*) from TABLE a join TABLE b
           using (model, question_id, turn, mode) where mode = 'single' and turn = 1
           and a.judge = 'stub' and b.judge = 'second'"""
    )
    (pair,) = found["values"]
    sign = 1 if pair["judges"] == ["stub", "second"] else -1
    assert (pair["all"]["mean_difference"], pair["all"]["n"]) == (close(sign * gap), count)
    assert set(pair["parts"]["turn"]) == {"1"}
    assert {line["length"]["n"] for line in found["judges"]} == {12, 36}


def test_the_largest_flips_come_with_both_answers(cli):
    (found,) = cli.json("compare", "org/step_1", "org/step_2", "mode=single")
    rows = cli.sql(
        """select abs(a.value - b.value) from TABLE a join TABLE b
           using (judge, question_id, turn, mode) where mode = 'single' and judge = 'stub'
           and a.model = 'org/step_1' and b.model = 'org/step_2' order by 1 desc limit 5"""
    )
    assert [abs(one["a"] - one["b"]) for one in found["flips"]] == [gap for (gap,) in rows]
    for one in found["flips"]:
        for side, model in (("a", "org/step_1"), ("b", "org/step_2")):
            ((text,),) = cli.sql(
                f"""select content from TABLE where model = '{model}'
                    and question_id = {one["question_id"]} and turn = {one["turn"]}""",
                "answers",
            )
            start = one[f"answer_{side}"].removesuffix("…")
            assert start
            assert " ".join(text.split()).startswith(start)


def test_several_models_are_ranked_with_one_correction(cli):
    (found,) = cli.json("compare", "*", "mode=single", "judge=stub")
    means = cli.sql(
        """select model from TABLE where mode = 'single' and judge = 'stub'
           group by model order by avg(value) desc"""
    )
    assert [one["model"] for one in found["models"]] == [model for (model,) in means]
    assert [(pair["a"], pair["b"]) for pair in found["pairs"]] == [
        (means[i][0], means[j][0]) for i, j in ((0, 1), (0, 2), (1, 2))
    ]
    p_values = sorted(pair["p_value"] for pair in found["pairs"])
    held, worst = [], 0.0
    for p, count in zip(p_values, (3, 2, 1), strict=True):
        worst = max(worst, min(1.0, count * p))
        held.append(worst)
    assert sorted(pair["p_holm"] for pair in found["pairs"]) == pytest.approx(held)
    assert found["with_best"][0] == means[0][0]
    assert cli("compare", "*", "mode=single") == 0
    assert "p, Holm: corrected for 3 pairs" in cli.out


@pytest.mark.parametrize("words", [("by=category,turn",), ("by=turn",), ("by=answers",)])
def test_each_format_holds_the_same_rows(words, cli):
    texts = {}
    for name in ("table", "markdown", "csv", "latex", "json"):
        assert cli(*words, f"format={name}", "judge=stub", "mode=single") == 0
        texts[name] = cli.out
    assert texts["latex"].count(r"\begin{tabular}") == 1
    assert texts["latex"].count("org/step\\_1") == texts["table"].count("org/step_1")
    assert texts["markdown"].count("org/step_1") == texts["table"].count("org/step_1")
    models = [line["model"] for line in json.loads(texts["json"])]
    assert [row["model"] for row in csv.DictReader(io.StringIO(texts["csv"]))] == models


def test_the_whole_table_is_one_csv(cli):
    cli("format=csv")
    rows = list(csv.DictReader(io.StringIO(cli.out)))
    found = cli.json()
    results = [one for part in (found, *found["other_modes"]) for one in part["results"]]
    assert [row["model"] for row in rows] == [one["model"] for one in results]
    single = [(row, one) for row, one in zip(rows, results, strict=True) if "average" in one]
    assert len(single) == 4
    for row, one in single:
        assert float(row["average_mean"]) == one["average"]["mean"]
        assert float(row["categories_math_mean"]) == one["categories"]["math"]["mean"]
        assert int(row["average_planned"]) == 24
