"""AlpacaEval 2 on published verdicts: our figures are those of the leaderboard and of its program.

Needs the folder ``shared`` beside the checkout, and the official questions (fetched on first use).
"""

import csv
import json

import pytest
from paths import SHARED
from verdicts import judged

from mtbench_ray.benchmarks import get_benchmark, grader_of
from mtbench_ray.benchmarks.alpaca_preference import first_is_better, standard_error, switched
from mtbench_ray.benchmarks.length_control import Gamed, far_apart, length_controlled
from mtbench_ray.errors import UserError
from mtbench_ray.schema import Slot
from mtbench_ray.system import assets

ORACLE = SHARED / "benchmarks" / "alpaca_eval_2"

pytest.importorskip("sklearn", reason="needs the extra alpaca")
if not ORACLE.is_dir():
    pytest.skip("the oracle files of ../shared are not here", allow_module_level=True)

TOOL = {
    "FuseChat-Gemma-2-9B-Instruct": (70.18108539318483, 0.5940839140259652),
    "NullModel": (86.45822490740824, 0.1417728350503132),
    "claude": (27.290298124846103, 0.8585786923559148),
    "claude-instant-1.2": (25.561902392025626, 0.876892493448065),
    "gpt-3.5-turbo-1106": (19.220673578504762, 0.7706457548989245),
    "oasst-sft-pythia-12b": (3.354516339255922, 0.2051664774514276),
    "vicuna-13b": (9.222574550914233, 0.5387903181675373),
}
"""LC win rate and its standard error that alpaca-eval 0.6.6 itself makes of these verdicts, with
``df_gamed_equivalent.csv`` in the place of the file that it downloads."""


@pytest.fixture(scope="module")
def oracle():
    return json.loads((ORACLE / "lc_oracle.json").read_text())


@pytest.fixture(scope="module")
def questions():
    benchmark = get_benchmark("alpaca_eval")
    try:
        path = assets.fetch("alpaca_eval", {"questions": benchmark.files["questions"]})["questions"]
    except UserError as error:
        pytest.skip(f"the official questions are not to be had: {error}")
    return benchmark.read(path.read_text("utf-8"), None, {})


@pytest.fixture(scope="module")
def held():
    with (ORACLE / "df_gamed_equivalent.csv").open() as file:
        rows = list(csv.DictReader(file))
    columns = ("preference", "std_delta_len", "instruction_difficulty")
    difficulty = {int(row["index"]): float(row["instruction_difficulty"]) for row in rows}
    gamed = Gamed(*([float(row[name]) for row in rows] for name in columns))
    return gamed, [difficulty[place] for place in range(805)]


def wins(model):
    """Preferences of a published model in [0, 1]; 0 is an old way to write a draw."""
    return [None if one is None or one != one else 0.5 if one == 0 else one - 1
            for one in model["preference"]]  # fmt: skip


def test_questions_orders_and_shipped_answers_are_the_published_ones(questions, oracle):
    found = questions.questions
    assert len(found) == 805
    assert [switched(one.turns[0]) for one in found] == oracle["switched"]
    texts = questions.provided[oracle["baseline"]]
    assert [len(texts[one.question_id][0]) for one in found] == oracle["baseline_output_chars"]
    counts = {"selfinstruct": 252, "oasst": 188, "koala": 156, "helpful_base": 129, "vicuna": 80}
    assert {name: sum(q.category == name for q in found) for name in counts} == counts


def test_published_log_probabilities_give_the_published_preferences(oracle):
    count = 0
    for model in oracle["models"].values():
        pairs = model.get("judge_logprobs_m_M")
        for place, pair in enumerate(pairs or ()):
            if pair is None or model["preference"][place] is None:
                continue
            rows = [
                {"token": token, "logprob": value}
                for token, value in zip("mM", pair, strict=True)
                if value is not None
            ]
            told = json.dumps({"content": [{"top_logprobs": rows}]})
            first = first_is_better(told)
            value = first if oracle["switched"][place] else 1 - first
            assert value == pytest.approx(model["preference"][place] - 1, abs=1e-6)
            count += 1
    assert count == 1610


def test_win_rates_and_standard_errors_are_the_published_ones(oracle):
    grader = grader_of("alpaca_eval", "weighted")
    for name, model in oracle["models"].items():
        published = model["published"]
        outcomes = [
            judged(Slot(name, place, "koala", str(place), 1, 0, ("a", "b"), order=1), 100 * value)
            for place, value in enumerate(wins(model))
            if value is not None
        ]
        for metric in ("win_rate", "discrete_win_rate"):
            values = [one.value for one in grader.items(outcomes, metric)]
            found = sum(values) / len(values)
            if published.get(metric) is not None and len(outcomes) == 805:
                assert found == pytest.approx(published[metric], abs=1e-6), (name, metric)
        if published.get("standard_error") is not None and len(outcomes) == 805:
            error = standard_error(grader.items(outcomes))
            assert error == pytest.approx(published["standard_error"], abs=1e-6)


def fit(name, oracle, held):
    gamed, difficulty = held
    model = oracle["models"][name]
    return length_controlled(
        wins(model), oracle["baseline_output_chars"], model["output_chars"], difficulty, gamed
    )


@pytest.mark.parametrize("name", TOOL)
def test_length_controlled_win_rates_are_those_of_alpaca_eval(name, oracle, held):
    found = fit(name, oracle, held)
    rate, error = TOOL[name]
    assert found.win_rate == pytest.approx(rate, abs=1e-4)
    assert found.standard_error == pytest.approx(error, abs=1e-4)
    published = oracle["models"][name]["published"]["length_controlled_winrate"]
    assert found.win_rate == pytest.approx(published, abs=0.16), "another C, at most"


def test_a_model_that_plays_with_lengths_is_far_from_its_raw_figure(oracle, held):
    published = oracle["models"]["FuseChat-Gemma-2-9B-Instruct"]["published"]
    raw, controlled = published["win_rate"], published["length_controlled_winrate"]
    assert not far_apart(raw, controlled)
    assert far_apart(20.0, 9.0)
    assert not far_apart(20.0, 10.5)
    assert far_apart(50.0, 63.0)
