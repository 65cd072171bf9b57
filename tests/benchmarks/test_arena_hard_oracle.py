"""Arena-Hard v2 against the official script's own figures.

Needs the folder ``shared`` beside the checkout, and the official files (fetched on first use).
"""

import csv
import json

import numpy as np
import pytest
from paths import SHARED
from verdicts import judged

from mtbench_ray.benchmarks import (
    arena_battles,
    get_benchmark,
    grader_of,
    official_tokens,
    style_control,
)
from mtbench_ray.benchmarks.style_control import Battles, Style, difference, style_of
from mtbench_ray.errors import UserError
from mtbench_ray.schema import Slot
from mtbench_ray.system import assets

ORACLE = SHARED / "benchmarks" / "arena_hard_v2"

if not ORACLE.is_dir():
    pytest.skip("the oracle files of ../shared are not here", allow_module_level=True)

GAMES = json.loads((ORACLE / "synthetic_games.json").read_text())
EXPECTED = json.loads((ORACLE / "expected_from_official_script.json").read_text())


def outcomes():
    """The official script's first game shows the baseline as A."""
    found = []
    for row in GAMES:
        for order, label in zip((2, 1), row["games"], strict=True):
            slot = Slot(row["model"], row["uid"], arena_battles.HARD, row["uid"], 1, 0,
                        (f"{row['model']} {row['uid']}", row["uid"]), order=order,
                        opponent="base")  # fmt: skip
            value = "no_label" if label is None else arena_battles.worth(label, order)
            found.append(judged(slot, value, label=label))
    return found


def test_raw_win_rates_and_battles_are_those_of_the_official_script():
    items = grader_of("arena_hard", "battles").items(outcomes())
    for model, mean in EXPECTED["raw_mean"].items():
        values = [one.value for one in items if one.slot.model == model and one.value is not None]
        assert len(values) == EXPECTED["n_battles"][model]
        assert sum(values) / len(values) == pytest.approx(100 * mean, abs=1e-9)


def battles():
    style = {(row["model"], row["uid"]): (Style(*row["style"]), Style(*row["baseline_style"]))
             for row in GAMES}  # fmt: skip
    models = sorted({row["model"] for row in GAMES})
    rows = []
    for pair in arena_battles.games_of_questions(outcomes()):
        if not all(map(arena_battles.label_of, pair)):
            continue
        for one in pair:
            label, slot = arena_battles.label_of(one), one.slot
            apart = difference(*style[slot.model, slot.question_id])
            rows.append((models.index(slot.model), apart,
                         arena_battles.worth(label, slot.order) / 100,
                         float(arena_battles.battles_of(label))))  # fmt: skip
    return models, Battles(*map(np.array, zip(*rows, strict=True)))


@pytest.mark.parametrize(
    ("kind", "fit", "within"),
    [
        ("converged", style_control.converged, 1e-6),
        ("official_lbfgs50_lr0.1", style_control.early_stopped, 1e-6),
    ],
)
def test_style_control_is_that_of_the_official_functions(kind, fit, within):
    models, found = battles()
    strengths = fit(found, style_control.standardised(found))
    wanted = EXPECTED["style_full"][kind]
    assert dict(zip(models, strengths.win_rates, strict=True)) == pytest.approx(
        {model: wanted[model] for model in models}, abs=within
    )
    name = "style_coefs_converged" if kind == "converged" else "style_coefs_official"
    assert strengths.style == pytest.approx(EXPECTED["style_full"][name], abs=1e-5)


@pytest.fixture(scope="module")
def official():
    benchmark = get_benchmark("arena_hard")
    try:
        paths = assets.fetch("arena_hard", benchmark.files)
    except UserError as error:
        pytest.skip(f"the official files are not to be had: {error}")
    texts = {name: path.read_text("utf-8") for name, path in paths.items()}
    return benchmark.complete(benchmark.read(texts["questions"], None, {}), texts)


def test_the_shipped_answers_have_the_published_style(official):
    with (ORACLE / "baseline_style.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 1498
    for row in rows:
        (text,) = official.provided[row["model"]][row["uid"]]
        found = style_of(text)
        wanted = tuple(int(row[name]) for name in ("headers", "lists", "bold"))
        assert (found.headers, found.lists, found.bold) == wanted


def test_the_official_count_of_tokens_is_the_published_one(official):
    pytest.importorskip("tiktoken", reason="needs the extra arena")
    try:
        count = official_tokens.tokenizer()
    except UserError as error:
        pytest.skip(f"the vocabulary is not to be had: {error}")
    with (ORACLE / "baseline_style.csv").open() as file:
        rows = list(csv.DictReader(file))[::15]
    assert len(rows) == 100
    for row in rows:
        (text,) = official.provided[row["model"]][row["uid"]]
        assert count(text) == int(row["token_len"])


def test_each_category_has_its_baseline(official):
    found = official.questions
    assert [sum(one.category == name for one in found) for name in get_benchmark(
        "arena_hard").categories] == [500, 250]  # fmt: skip
    both = official.provided[arena_battles.BASELINE]
    assert len(both) == 750
    for one in found:
        model = arena_battles.STRONG.get(one.category, arena_battles.OTHER_STRONG)
        assert both[one.question_id] == official.provided[model][one.question_id]
