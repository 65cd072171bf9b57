"""``report plots``: what is missing is a gap, and no whisker stands where there is no interval."""

import re
import sys

import pytest

from mtbench_ray.reports import pictures
from mtbench_ray.reports.score_tables import Cell, Column, Grader, Table, TableRow

pytest.importorskip("matplotlib")

GRADER = Grader("judge · single", 1.0, 10.0)
CATEGORIES = ["writing", "math", "coding"]


def cell(mean, low=None, high=None, scored=10, planned=10):
    return Cell(mean, low, high, scored, planned)


def table(rows, categories=CATEGORIES):
    columns = (Column("average"), *(Column(name, name) for name in categories))
    made = tuple(TableRow(at, name, tuple(cells)) for at, (name, cells) in enumerate(rows))
    return Table(0, columns, made)


FULL = ["model a", [cell(7.0, 6.0, 8.0), cell(8.0), cell(6.5), cell(6.0)]]
PART = ["$name_b$ 模型", [cell(5.0, None, None, 7), cell(4.0), None, cell(None, scored=0)]]


def texts(svg):
    return [found.strip() for found in re.findall(r"<text[^>]*>([^<]*)</text>", svg.decode())]


def test_a_table_gives_bars_heat_map_and_radar_as_png_and_svg():
    made = pictures.draw(table([FULL, PART]), GRADER)
    assert sorted(made) == ["bars.png", "bars.svg", "heatmap.png", "heatmap.svg", "radar.png",
                            "radar.svg"]  # fmt: skip
    assert all(made[name].startswith(b"\x89PNG") for name in made if name.endswith("png"))
    for name in ("bars", "heatmap", "radar"):
        assert {"model a", "$name_b$ 模型"} <= set(texts(made[f"{name}.svg"])), name
    assert pictures.draw(table([FULL, PART]), GRADER) == made, "equal scores, equal files"


def test_what_is_missing_is_a_gap_and_never_a_zero():
    said = texts(pictures.draw(table([FULL, PART]), GRADER)["heatmap.svg"])
    assert [one for one in said if re.fullmatch(r"\d+\.\d\d", one)] == [
        "8.00",
        "6.50",
        "6.00",
        "4.00",
    ]
    assert "hatched: nothing scored" in said
    assert "hatched: nothing scored" not in texts(
        pictures.draw(table([FULL]), GRADER)["heatmap.svg"]
    )


def test_a_whisker_stands_only_where_there_is_an_interval():
    from matplotlib.collections import LineCollection

    def whiskers(rows):
        (axis,) = pictures._bars(table(rows), GRADER).axes
        return [
            part.get_segments() for part in axis.collections if isinstance(part, LineCollection)
        ]

    ((segment,),) = whiskers([FULL])
    assert [point[0] for point in segment.tolist()] == [6.0, 8.0]
    assert whiskers([PART]) == []


def test_coverage_stands_beside_a_bar_that_lacks_some():
    said = texts(pictures.draw(table([FULL, PART]), GRADER)["bars.svg"])
    assert "5.00 (7/10 scored)" in said
    assert "7.00" in said


def test_a_line_of_the_radar_ends_where_a_category_is_missing():
    (axis,) = pictures._radar(table([FULL, PART]), GRADER).axes
    whole, part = (line.get_ydata() for line in axis.lines)
    assert list(whole) == [8.0, 6.5, 6.0, 8.0]
    assert [value == value for value in part] == [True, False, False, True]


@pytest.mark.parametrize(("categories", "right"), [(["math"], ["bars", "heatmap"]), ([], ["bars"])])
def test_only_what_the_data_allows_is_drawn(categories, right):
    rows = [["a", [cell(5.0), *[cell(4.0)] * len(categories)]]]
    made = pictures.draw(table(rows, categories), GRADER)
    assert sorted({name.partition(".")[0] for name in made}) == right


def test_a_radar_shows_the_first_models_and_says_so():
    rows = [[f"m{at}", [cell(5.0)] * 4] for at in range(9)]
    said = texts(pictures.draw(table(rows), GRADER)["radar.svg"])
    assert "By category, judge · single (the first 6 of 9 models)" in said


@pytest.mark.runs
def test_report_plots_writes_files_for_each_judge(cli, tmp_path):
    cli("-m", "model=a,b")
    assert cli.verb("report", "plots") == 0
    names = [line.rpartition("/")[2] for line in cli.out.splitlines()]
    assert {name.rpartition("-")[2] for name in names} == {
        f"{kind}.{end}" for kind in ("bars", "heatmap", "turns", "length") for end in ("png", "svg")
    }, "two categories make no radar"
    assert all((cli.workspace / "plots" / name).is_file() for name in names)
    assert cli.verb("report", "plots", f"out={tmp_path / 'own'}") == 0
    assert sorted(path.name for path in (tmp_path / "own").iterdir()) == sorted(names)


def test_nothing_to_draw_is_said(cli):
    cli("model=a", "judge=none", judge=False)
    assert cli.verb("report", "plots") == 2
    assert "holds no score" in cli.err


def test_without_matplotlib_it_is_said_how_to_get_it(cli, monkeypatch):
    cli("model=a")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert cli.verb("report", "plots") == 2
    assert "plots need matplotlib" in cli.err


def test_letters_that_no_font_here_has_are_told_once(capsys, monkeypatch):
    from mtbench_ray.reports import drawing

    drawing._has.cache_clear()
    monkeypatch.setattr(drawing, "fonts", lambda: ["DejaVu Sans"])
    drawing.tell_lacking("run 模型 é Ж")
    drawing._has.cache_clear()
    said = capsys.readouterr().err
    assert said.startswith("no font here has '模型'")
    assert "é" not in said
    drawing.tell_lacking("plain")
    assert capsys.readouterr().err == ""


def judged_rows(models, questions=6, second=True):
    """Items of models: the second turn is two lower than the first."""
    from verdict_rows import verdict

    from mtbench_ray.benchmarks import grader_of
    from mtbench_ray.reports.parts import Judged
    from mtbench_ray.schema import AnswerSet, Unit

    return [
        Judged(
            name, "judge-x", "mt_bench", "single", grader_of("mt_bench", "single"),
            [
                verdict(float(4 + at + q % 3 - 2 * (turn - 1)), q, turn, model=name)
                for q in range(questions)
                for turn in ((1, 2) if second else (1,))
            ],
            (1.0, 10.0),
            AnswerSet(name, "{}", tuple(Unit(q, 0, f"{name}-{q}") for q in range(questions))),
        )
        for at, name in enumerate(models)
    ]  # fmt: skip


def test_the_second_turn_is_drawn_against_the_first():
    from mtbench_ray.judges.base import ScoreOptions
    from mtbench_ray.reports.scatters import part_figures

    ((name, figure),) = part_figures(judged_rows(["a", "模型"]), (1.0, 10.0), ScoreOptions())
    assert name == "turns"
    (axis,) = figure.axes
    points = {
        line.get_label().strip(): (line.get_xdata()[0], line.get_ydata()[0])
        for line in axis.get_lines()
        if not line.get_label().startswith("_")
    }
    assert points == {"a": (5.0, 3.0), "模型": (6.0, 4.0)}
    assert axis.get_xlim() == axis.get_ylim()
    few = next(part_figures(judged_rows(["a"], questions=4), (1.0, 10.0), ScoreOptions()))[1]
    assert not few.axes[0].containers  # four questions: no bars
    assert not list(part_figures(judged_rows(["a"], second=False), (1.0, 10.0), ScoreOptions()))


def test_score_is_drawn_against_length_where_the_answers_are_there():
    from pages import turn as page_turn

    from mtbench_ray.reports.scatters import length_figure, lengths

    group = judged_rows(["a"])
    turns = {
        (f"a-{q}", number): page_turn(0, q, number, "x" * (10 * q + number))
        for q in range(5)
        for number in (1, 2)
    }
    assert sorted(lengths(group[0], turns))[:2] == [(1.0, 4.0), (2.0, 2.0)]
    assert len(lengths(group[0], turns)) == 10  # the sixth question has no answer
    assert length_figure(group, turns, (1.0, 10.0)) is not None
    assert length_figure(group, {}, (1.0, 10.0)) is None


def test_two_judges_are_drawn_where_they_share_answers():
    from mtbench_ray.judges.agreement import Rated
    from mtbench_ray.reports.scatters import judges_figure

    one = {key: Rated(float(value), ()) for key, value in enumerate([3, 3, 5, 9])}
    other = {key: Rated(float(value), ()) for key, value in enumerate([4, 4, 5])}
    figure = judges_figure(("x", "y"), (one, other), (1.0, 10.0))
    (axis,) = figure.axes
    assert "3 answers, equal 33%, mean shift -0.67" in axis.get_xlabel()
    assert [text.get_text() for text in axis.texts] == ["2"]  # both gave 3 and 4 twice
    assert judges_figure(("x", "y"), (one, {9: Rated(1.0, ())}), (1.0, 10.0)) is None
