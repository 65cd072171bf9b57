"""Curves over training steps, and the comparison of two models."""

import csv
import json
import math
import shutil
import sys

import pytest
from stub_server import StubServer
from verdict_rows import evaluation, verdict

from mtbench_ray.cli.main import main
from mtbench_ray.errors import UserError
from mtbench_ray.judges.base import ScoreOptions
from mtbench_ray.models.naming import Naming, run_of
from mtbench_ray.reports import curve, plots
from mtbench_ray.reports.comparison import compare
from mtbench_ray.reports.points import Point, short_names, to_csv

OPTIONS = ScoreOptions()


def point(step, mean, category="", line="/runs/a", scored=None, **more):
    half = {"ci_low": mean - 0.5, "ci_high": mean + 0.5} if mean is not None else {}
    fields = {
        "std": 2.0, "sem": 0.2, "ci_low": None, "ci_high": None, "repeat_std": None,
        "n_questions": 10 if mean is not None else 0, "planned": 20,
        "scored": scored if scored is not None else 20 * (mean is not None),
    }  # fmt: skip
    fields |= {"scale": (1.0, 10.0), "metric": "mt_bench average"} | half | more
    return Point(line, "j", step, f"{line}/step_{step}", category, mean, **fields)


class Axis:
    """What a curve asks of an axis, written down."""

    def __init__(self):
        self.lines, self.bars = [], []

    def plot(self, x, y, **style):
        self.lines.append((list(x), list(y), style))
        return [None]

    def errorbar(self, x, y, yerr, **style):
        self.bars.append((list(x), list(y), [list(side) for side in yerr]))


def test_a_missing_score_is_a_gap_and_never_0():
    axis = Axis()
    plots._line(axis, [point(1, 5.0), point(2, None), point(3, 6.0)], set(), 0, 0.0, "ci95")
    steps, means, _ = axis.lines[0]
    assert steps == [1, 2, 3]
    assert means[0] == 5.0
    assert math.isnan(means[1])
    assert axis.bars == [([1, 3], [5.0, 6.0], [[0.5, 0.5], [0.5, 0.5]])]


def test_a_category_that_one_checkpoint_was_not_asked_is_a_gap_too():
    axis = Axis()
    plots._line(axis, [point(1, 5.0), point(3, 6.0)], {2}, 0, 0.0, "none")
    assert axis.lines[0][0] == [1, 2, 3]
    assert math.isnan(axis.lines[0][1][1])


@pytest.mark.parametrize(
    ("error", "half"),
    [("ci95", 0.5), ("sem", 0.2), ("std", 2.0), ("repeats", None), ("none", None)],
)
def test_what_the_bars_show(error, half):
    bar = point(1, 5.0).bar(error)
    assert bar == (None if half is None else pytest.approx((5 - half, 5 + half)))
    assert point(1, None).bar(error) is None


def test_a_score_on_fewer_questions_than_others_of_its_curve_is_hollow():
    axis = Axis()
    points = [point(1, 5.0), point(2, 4.0, n_questions=2, planned=4, scored=4), point(3, 6.0)]
    plots._line(axis, points, set(), 0, 0.0, "none")
    assert axis.lines[1][0] == [2]


def test_names_of_a_legend_fit_and_differ():
    long = ["a" * 30 + "x" * 60, "b" * 30 + "x" * 60]
    found = plots._legend_names([*long, "short"])
    assert len(set(found)) == 3
    assert max(map(len, found)) <= plots.LONG_NAME + 1
    alike = ["m" * 40 + middle + "m" * 40 for middle in "ab"]
    assert plots._legend_names(alike) == alike
    assert list(short_names([""]).values()) == ["(one run)"]


def test_a_score_with_missing_verdicts_is_hollow():
    axis = Axis()
    plots._line(axis, [point(1, 5.0), point(2, 6.0, scored=15)], set(), 0, 0.0, "none")
    assert axis.lines[1][:2] == ([2], [6.0])
    assert axis.lines[1][2]["markerfacecolor"] == "white"


@pytest.mark.parametrize(
    ("means", "low", "high"),
    [
        ((5.0, 5.1), 4.05, 6.05),
        ((1.2, 1.4), 1.0, 3.0),
        ((9.8, 9.9), 8.0, 10.0),
        ((2.0, 9.0), 1.65, 9.35),
    ],
)
def test_the_score_axis_is_wide_enough_and_within_the_scale(means, low, high):
    found = plots._limits([point(n, mean) for n, mean in enumerate(means)], "none")
    assert found == pytest.approx((low, high), abs=0.2)
    assert found[1] - found[0] >= plots.LEAST_SPAN


def test_a_figure_with_holes_is_drawn_and_keeps_every_category():
    from matplotlib.figure import Figure

    points = [
        point(1, 5.0), point(1, 5.0, "writing"), point(1, 6.0, "math"),
        point(2, 5.0), point(2, 4.0, "writing"), point(2, None, "math"),
        point(1, 3.0, line="/runs/b"), point(1, 3.0, "writing", line="/runs/b"),
        point(1, None, "stem", line="/runs/b"),
    ]  # fmt: skip
    pictures = plots.draw(points, error="ci95", by="both")
    assert set(pictures) == {".png", ".svg", "_category.png", "_category.svg"}
    assert all(pictures[name].startswith(b"\x89PNG") for name in (".png", "_category.png"))
    assert pictures == plots.draw(points, error="ci95", by="both"), "equal input, equal files"
    figure = Figure(figsize=(10, 4))
    plots._fill(figure, points, ["writing", "math", "stem"], "ci95", columns=3)
    assert [axis.get_title() for axis in figure.axes] == ["writing", "math", "stem"]
    assert [text.get_text() for text in figure.axes[2].texts] == ["nothing scored"]
    assert figure.axes[0].get_ylim()[0] > 0.5
    (legend,) = figure.legends
    assert [text.get_text().strip() for text in legend.get_texts()] == ["/runs/a", "/runs/b"]


def test_odd_names_and_many_runs_are_drawn():
    names = ["_hidden", "$x_$", "模型", "a[red]\x1b", "ä" * 80, *(f"run{n}" for n in range(20))]
    points = [point(1, 2.0 + n / 10, line=name) for n, name in enumerate(names)]
    svg = plots.draw(points, error="none", by="all")[".svg"].decode()
    for name in ("_hidden", "$x_$", "模型", "run19"):
        assert name in svg
    assert "\x1b" not in svg


def test_names_of_curves_leave_out_what_they_share():
    names = ["/a/very/long/folder/x", "/a/very/long/folder/y"]
    assert list(short_names(names).values()) == ["x", "y"]


@pytest.mark.parametrize(
    ("label", "run"),
    [
        ("/c/run_a/step_120", "/c/run_a"),
        ("/c/run_a/epoch=1-step=120/", "/c/run_a"),
        ("org/model-step-120", "org/model"),
        ("/c/run_a/checkpoint-120 (sampling.top_p=0.9)", "/c/run_a/ (sampling.top_p=0.9)"),
        ("step_1", ""),
        ("/step_1", "/"),
    ],
)
def test_the_run_of_a_checkpoint(label, run):
    assert run_of(label) == run


def test_the_numbers_leave_missing_cells_empty():
    rows = list(csv.DictReader(to_csv([point(1, 5.0), point(1, None, "math")]).splitlines()))
    assert [row["category"] for row in rows] == ["all", "math"]
    assert (rows[1]["mean"], rows[1]["scored"], rows[1]["n_questions"]) == ("", "0", "0")
    assert rows[0]["mean"] == "5.0"


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    """Two runs of two checkpoints and a model without a step, under two judges."""
    folder = tmp_path_factory.mktemp("curves")
    questions = folder / "own_questions.jsonl"
    questions.write_text(
        "".join(
            json.dumps(
                {"question_id": n, "category": ("math", "writing")[n % 2], "turns": ["Q?", "R?"]}
            )
            + "\n"
            for n in range(6)
        )
    )
    models = [f"/ckpts/of/{run}/step_{step}" for run in ("ab", "cd") for step in (1, 20)]
    with StubServer() as stub:
        line = [
            "-m", "judge.model=stub,other", "judge=openai", f"judge.base_url={stub.url}",
            "engine=fake", f"question_path={questions}", f"workspace={folder / 'work'}",
        ]  # fmt: skip
        assert main([*line, f"model={','.join([*models, 'org/plain'])}"]) == 0
    return folder / "work"


@pytest.mark.runs
def test_curves_of_a_workspace(workspace, capsys):
    assert main(["report", "curve", f"workspace={workspace}"]) == 0
    out = capsys.readouterr().out
    assert "left out, its name has no step: org/plain" in out
    folder = workspace / "curve"
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        ["curve.csv"]
        + [f"curve_{judge}{part}.{kind}" for judge in ("stub", "other")
           for part in ("", "_category") for kind in ("png", "svg")]
    )  # fmt: skip
    rows = list(csv.DictReader((folder / "curve.csv").open()))
    assert {row["line"] for row in rows} == {"/ckpts/of/ab", "/ckpts/of/cd"}
    assert [row["step"] for row in rows if (row["line"], row["judge"], row["category"]) ==
            ("/ckpts/of/ab", "stub", "all")] == ["1", "20"]  # fmt: skip
    summary = json.loads((workspace / "summary.json").read_text())["results"]
    expected = {
        (result["model"], result["judge"]): result["categories"]["math"]["mean"]
        for result in summary
    }
    for row in rows:
        if row["category"] == "math":
            assert float(row["mean"]) == expected[row["model"], row["judge"]]


def test_several_workspaces_and_a_folder_of_ones_own(workspace, tmp_path, capsys):
    out, twin = tmp_path / "pictures", tmp_path / "twin" / "work"
    shutil.copytree(workspace, tmp_path / "second")
    shutil.copytree(workspace, twin)
    line = ["report", "curve", f"workspace={workspace}", "by=all", "error=sem", f"out={out}"]
    assert main([*line, f"workspace={tmp_path / 'second'}"]) == 0
    assert not list(out.glob("*_category*"))
    found = {row["line"] for row in csv.DictReader((out / "curve.csv").open())}
    assert found == {f"{w}: /ckpts/of/{run}" for w in ("work", "second") for run in ("ab", "cd")}
    assert main([*line, f"workspace={twin}"]) == 0
    found = {row["line"] for row in csv.DictReader((out / "curve.csv").open())}
    assert f"{twin}: /ckpts/of/ab" in found
    assert len(found) == 4


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["curve", "error=ci"], "did you mean ci95?"),
        (["curve", "by=turns"], "did you mean turn?"),
        (["curves"], "did you mean curve?"),
        (["curve", "outt=x"], "did you mean out=?"),
        (["compare", "step_1"], "report compare MODEL MODEL"),
        (["compare", "step_1", "step_20"], "may be any of"),
        (["compare", "ab/step_1", "ab/step_2"], "did you mean /ckpts/of/ab/step_20?"),
        (["compare", "ab/step_1", "/ckpts/of/ab/step_1"], "name two models"),
    ],
)
def test_wrong_words_are_told(workspace, words, said, capsys):
    assert main(["report", *words, f"workspace={workspace}"]) == 2
    assert said in capsys.readouterr().err


def test_without_matplotlib_it_is_said_how_to_get_it(workspace, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["report", "curve", f"workspace={workspace}"]) == 2
    assert "pip install 'mtbench_ray[plots]'" in capsys.readouterr().err


def test_nothing_with_a_step(workspace, tmp_path, questions, capsys):
    work = tmp_path / "plain"
    assert main(["model=m", "judge=none", "engine=fake", f"question_path={questions}",
                 f"workspace={work}"]) == 0  # fmt: skip
    capsys.readouterr()
    assert main(["report", "curve", f"workspace={work}"]) == 2
    assert "names like step_100" in capsys.readouterr().err
    assert not (work / "curve").exists()


def test_a_comparison_from_the_command_line(workspace, capsys):
    line = ["report", "compare", "ab/step_1", "ab/step_20", f"workspace={workspace}"]
    assert main(line) == 0
    out = capsys.readouterr().out
    assert "judge stub" in out
    assert "judge other" in out
    assert out.count("questions (p = ") + out.count("no difference can be told from") == 2
    assert main([*line, "format=json"]) == 0
    first = json.loads(capsys.readouterr().out)[0]
    summary = json.loads((workspace / "summary.json").read_text())["results"]
    means = {r["model"]: r["average"]["mean"] for r in summary if r["judge"] == first["judge"]}
    assert first["all"]["mean"] == pytest.approx(means[first["a"]] - means[first["b"]])
    assert first["all"]["n_questions"] == 6
    assert main([*line, "format=markdown"]) == 0
    assert "| all |" in capsys.readouterr().out


def rows_of(values, model="m", start=0):
    return [verdict(value, number, model=model) for number, value in enumerate(values, start)]


def test_a_clear_difference_is_called_one_and_noise_is_not():
    a, b = evaluation("a"), evaluation("b")
    clear = compare(a, b, rows_of([8, 9, 8, 9] * 5), rows_of([5, 6, 5, 7] * 5), OPTIONS)
    assert clear["verdict"].startswith("a is better than b by 2.75 on 20 questions")
    assert clear["all"]["p_value"] < 0.01
    other = compare(b, a, rows_of([5, 6, 5, 7] * 5), rows_of([8, 9, 8, 9] * 5), OPTIONS)
    assert other["verdict"] == clear["verdict"]
    noise = compare(a, b, rows_of([5, 9, 2, 8] * 5), rows_of([8, 2, 9, 5] * 5), OPTIONS)
    assert noise["verdict"] == "no difference can be told from these 20 questions"


def test_only_what_both_have_is_compared():
    b_rows = [verdict(6, 0), verdict("no_rating", 1), verdict(6, 2)]
    found = compare(evaluation("a"), evaluation("b"), rows_of([7, 7, 7]), b_rows, OPTIONS)
    assert (found["all"]["n_questions"], found["all"]["mean"]) == (2, 1.0)
    assert found["notes"] == ["1 scored items of only one of the two are left out"]
    nothing = compare(
        evaluation("a"), evaluation("b"), rows_of([7]), rows_of([7], start=5), OPTIONS
    )
    assert nothing["verdict"] == "the two have no scored item in common"
    assert nothing["all"]["mean"] is None


def test_repeats_of_one_model_weigh_no_more_than_one():
    repeats = [verdict(value, 0, judge_sample=n) for n, value in enumerate((8, 9, 8))]
    found = compare(evaluation("a"), evaluation("b"), [*repeats, verdict(4, 1)],
                    [verdict(8, 0), verdict(4, 1)], OPTIONS)  # fmt: skip
    assert found["all"]["mean"] == pytest.approx((25 / 3 - 8) / 2)


@pytest.mark.parametrize(
    ("pattern", "name", "run", "step"),
    [
        ("{run}/it{step}*", "/x/own/it0040-ema", "/x/own", 40),
        ("*/{run}-{step}k", "org/sft-2.5k", "sft", 2.5),
        ("{step}", "7", "", 7),
        ("{run}/it{step}", "other/step_3", "other/step_3", None),
        ("", "/x/own/step_3", "/x/own", 3),
    ],
)
def test_a_pattern_says_where_run_and_step_are(pattern, name, run, step):
    naming = Naming(pattern)
    assert (naming.run(name).rstrip("/"), naming.step(name)) == (run, step)


def test_a_pattern_without_a_step_is_told():
    with pytest.raises(UserError, match=r"must have one \{step\}"):
        Naming("{run}")


@pytest.mark.parametrize(
    ("text", "steps"),
    [("", [1, 5, 10, 20]), ("5", [5]), ("1,10-", [1, 10, 20]), ("-5", [1, 5]), ("5-10,", [5, 10])],
)
def test_steps_are_numbers_and_ranges(text, steps):
    assert list(filter(curve.wanted_steps(text), [1, 5, 10, 20])) == steps


def test_curves_by_turn_have_a_panel_for_each(workspace, tmp_path, capsys):
    assert main(["report", "curve", "by=turn", "judge=stub", "steps=1-", "model=*ab*",
                 f"workspace={workspace}", f"out={tmp_path}"]) == 0  # fmt: skip
    rows = list(csv.DictReader((tmp_path / "curve.csv").open()))
    assert {row["category"] for row in rows} == {"all", "turn 1", "turn 2"}
    assert {row["line"] for row in rows} == {"/ckpts/of/ab"}
    assert (tmp_path / "curve_category.png").exists()
    assert main(["report", "curve", "by=benchmark", "judge=stub", f"workspace={workspace}",
                 f"out={tmp_path / 'b'}"]) == 0  # fmt: skip
    assert "mt_bench average" in (tmp_path / "b" / "curve_category.svg").read_text()


def test_a_dark_curve_has_a_dark_ground():
    points = [point(step, 5.0) for step in (1, 2)]
    light, dark = (
        plots.draw(points, error="none", by="all", dark=dark)[".svg"] for dark in (False, True)
    )
    assert b"#16181d" in dark
    assert b"#16181d" not in light
