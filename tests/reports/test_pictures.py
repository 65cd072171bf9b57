"""``report plots``: what is missing is a gap, and no whisker stands where there is no interval."""

import re
import sys

import pytest

from mtbench_ray.reports import pictures
from mtbench_ray.reports.page.collect import Cell, Column, Grader, Table, TableRow

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
    assert "5.00  (7/10 scored)" in said
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
    assert len(names) == 4, "two categories make no radar"
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
