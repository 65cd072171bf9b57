"""The tables as people see them."""

import pytest
from summaries import FULL, NONE, summary

from mtbench_ray.reports.tables import common_folder, label, render, short


def test_a_long_folder_is_said_once():
    folder = "/mnt/shared/experiments/2026/llama_sft_run_with_a_long_name/checkpoints"
    text = render(summary(*(f"{folder}/step_{step}" for step in (100, 200, 300))))
    assert text.splitlines()[0] == f"…/ is {folder}/"
    assert text.count(folder) == 1
    assert max(map(len, text.splitlines()[1:])) < 120
    assert [line.split()[0] for line in text.splitlines() if line.startswith("…/step_")][:3] == [
        "…/step_100", "…/step_200", "…/step_300",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("names", "folder"),
    [
        (["/ckpts/of/a/long/run/step_1", "/ckpts/of/a/long/run/step_2"], "/ckpts/of/a/long/run/"),
        (["/ckpts/of/a/long/run_a/step_1", "/ckpts/of/a/long/run_b/step_1"], "/ckpts/of/a/long/"),
        (["/ckpts/of/a/long/run/step_1/"], "/ckpts/of/a/long/run/"),
        (["/ckpts/of/a/long/run", "/ckpts/of/a/long/run/step_1"], "/ckpts/of/a/long/"),
        (["org/a", "org/b"], ""),
        (["/ckpts/of/a/long/run/step_1", "org/b"], "/ckpts/of/a/long/run/"),
        (["a-hub-with-a-long-name/a", "a-hub-with-a-long-name/b"], ""),
        (["one"], ""),
        ([], ""),
    ],
)
def test_the_folder_that_names_share(names, folder):
    assert common_folder(names) == folder
    shown = [short(name, folder) for name in names]
    assert len(set(shown)) == len(names)
    assert [name.replace("…/", folder) for name in shown] == names


def test_odd_names_stay_on_one_line():
    odd = "a[red]b[/]\x1b[2J\r\n\u202e\ud800|$x$"
    text = render(summary(odd))
    assert "a[red]b[/]?[2J????|$x$" in text
    assert text.isprintable() or all(c.isprintable() or c == "\n" for c in text)
    assert "\\|" in render(summary(odd), format="markdown")
    assert label("模型 é") == "模型 é"


def test_what_is_missing_is_not_a_number():
    text = render(summary("m", average=NONE, categories={"writing": FULL, "math": NONE}))
    row = next(line for line in text.splitlines() if line.startswith("m "))
    assert "0/20" in row
    assert "20 no_rating" in row
    assert "n/a (0/20)" in text
    assert "0.00" not in text


@pytest.mark.parametrize("width", [60, 80, 100, 120])
def test_a_narrow_terminal_gets_whole_words(width):
    names = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem")
    models = (f"/ckpts/of/a/long/run/step_{step}" for step in (100, 2000))
    text = render(summary(*models, categories=dict.fromkeys(names, FULL)), width=width)
    tables = text[: text.index("average: mean")]
    assert all(len(line) <= width for line in tables.splitlines())
    for word in (*names, "truncated", "interval", "6.10 to 6.90", "…/step_2000", "160/160"):
        assert word in tables
