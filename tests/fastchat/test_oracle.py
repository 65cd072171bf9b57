"""The public record: FastChat's own tables, verdicts and prompts must come out again.

Needs the folder ``shared`` beside the checkout, and the official files (fetched on first use).
"""

import csv
import json
from collections import defaultdict

import pytest
from paths import SHARED
from verdicts import GAME_LABELS, answered, judged, official_files, prompt_file, slot, view

from mtbench_ray.benchmarks import get_benchmark, grader_of
from mtbench_ray.benchmarks.base import Official
from mtbench_ray.config import JudgeConfig
from mtbench_ray.errors import UserError
from mtbench_ray.judges.agreement import agreement, load_votes, match_votes
from mtbench_ray.judges.base import ScoreOptions
from mtbench_ray.judges.matches import matches
from mtbench_ray.judges.outcomes import outcome
from mtbench_ray.judges.pairwise import tally
from mtbench_ray.judges.parse import parse_rating, parse_winner
from mtbench_ray.judges.prompts import load_prompts
from mtbench_ray.schema import Slot
from mtbench_ray.stats.means import clustered_mean

if not SHARED.is_dir():
    pytest.skip("the oracle files of ../shared are not here", allow_module_level=True)
ORACLE, FIXTURES = SHARED / "oracle", SHARED / "fixtures"
SINGLE, ALL = grader_of("mt_bench", "single"), grader_of("mt_bench", "pairwise-all")
CATEGORIES = get_benchmark("mt_bench").categories
PROMPTS = load_prompts("own", prompt_file())
FASTCHAT = ScoreOptions(parity="fastchat", resamples=50)
SINGLE_FIXTURES = [p.parts[-3] for p in sorted(FIXTURES.glob("*/model_judgment/*_single.jsonl"))]
PAIR_FIXTURES = [p.parts[-3] for p in sorted(FIXTURES.glob("*/model_judgment/*_pair.jsonl"))]


def rows_of(path):
    return [json.loads(line) for line in path.read_text("utf-8").split("\n") if line.strip()]


def table(path, **wanted):
    with path.open(newline="") as file:
        return [
            row
            for row in csv.DictReader(file)
            if all(row[key] == value for key, value in wanted.items())
        ]


@pytest.fixture(scope="module")
def official():
    try:
        files = official_files()
    except UserError as error:
        pytest.skip(f"no official files: {error.message}")
    names = {key: path.name for key, path in files.items()}
    texts = {key: path.read_text("utf-8") for key, path in files.items()}
    own = Official(texts["questions"], texts["references"])
    questions = get_benchmark("mt_bench").read(own.questions, None, names, lambda: own).questions
    prompts = load_prompts("fastchat", texts["judge_prompts"])
    return {question.question_id: question for question in questions}, prompts


def single_slot(row):
    category = CATEGORIES[(row["question_id"] - 81) // 10]
    return slot(row["model"], row["question_id"], row["turn"], category=category)


def single_outcome(row):
    score = row["score"]
    text = row.get("judgment", "")
    stored = judged(
        single_slot(row),
        "no_rating" if score == -1 else float(score),
        None if score == -1 else str(score),
        text=text,
        source="import",
    )
    return outcome(view(prompts=PROMPTS, parity="fastchat"), stored.slot, stored.judgment, "")


def pair_outcomes(row, model=None):
    """Both games as ``model`` sees them; model_1 where none is given."""
    pair = (row["model_1"], row["model_2"])
    if model == row["model_2"]:
        pair = pair[::-1]
    swapped = pair[0] != row["model_1"]
    made = []
    for game in (1, 2):
        winner = row[f"g{game}_winner"]
        where = slot(
            pair[0],
            row["question_id"],
            row["turn"],
            3 - game if swapped else game,
            pair[1],
            CATEGORIES[(row["question_id"] - 81) // 10],
        )
        if winner == "error":
            made.append(judged(where, "no_winner"))
            continue
        value = {"model_1": 1.0, "model_2": 0.0, "tie": 0.5}[winner]
        made.append(judged(where, 1.0 - value if swapped else value, GAME_LABELS[game][winner]))
    return made


def check_single(outcomes, expected):
    parts = {(s.model, s.dimension, s.name): s for s in SINGLE.reduce([], outcomes, FASTCHAT)}
    assert {key[0] for key in parts} == {row["model"] for row in expected}
    for row in expected:
        model = row["model"]
        for key, mean, n in (
            (("turn", "1"), "turn1", "n_turn1"),
            (("turn", "2"), "turn2", "n_turn2"),
            (("all", ""), "average", "n"),
        ):
            score = parts[model, *key]
            assert f"{score.mean:.6f}" == f"{float(row[mean]):.6f}"
            assert score.scored == int(row[n])
        overall = parts[model, "all", ""]
        assert overall.planned - overall.scored == int(row["n_dropped"])


def check_pair(counts, expected):
    assert {c.model for c in counts} == {row["model"] for row in expected}
    found = {c.model: c for c in counts}
    for row in expected:
        c = found[row["model"]]
        numbers = [str(x) for x in (c.win, c.loss, c.tie, c.n)]
        assert numbers == [row[name] for name in ("win", "loss", "tie", "n")]
        for name in ("win_rate", "loss_rate", "win_rate_adjusted"):
            assert f"{getattr(c, name):.6f}" == f"{float(row[name]):.6f}"


def test_all_models_of_the_public_leaderboard():
    rows = rows_of(ORACLE / "lmsys_gpt4_single_scoreonly.jsonl")
    expected = table(ORACLE / "expected_single.csv")
    assert len(expected) == 34
    check_single([single_outcome(row) for row in rows], expected)


def test_categories_of_the_public_leaderboard():
    outcomes = [single_outcome(r) for r in rows_of(ORACLE / "lmsys_gpt4_single_scoreonly.jsonl")]
    means = {}
    for column, part in (
        ("average", outcomes),
        ("turn1", [o for o in outcomes if o.slot.turn == 1]),
        ("turn2", [o for o in outcomes if o.slot.turn == 2]),
    ):
        for score in SINGLE.reduce([], part, FASTCHAT):
            if score.dimension == "category":
                means[score.model, score.name, column] = score
    expected = table(ORACLE / "expected_category.csv")
    assert 3 * len(expected) == len(means)
    for row in expected:
        for column in ("average", "turn1", "turn2"):
            mean = means[row["model"], row["category"], column].mean
            assert f"{mean:.6f}" == f"{float(row[column]):.6f}"
        assert means[row["model"], row["category"], "average"].scored == int(row["n"])


@pytest.mark.parametrize(
    ("model", "naive", "clustered"),
    [("gpt-4", 0.16, 0.20), ("vicuna-13b-v1.3", 0.29, 0.36), ("llama-13b", 0.20, 0.22)],
)
def test_standard_errors_of_the_public_leaderboard(model, naive, clustered):
    rows = [
        row
        for row in rows_of(ORACLE / "lmsys_gpt4_single_scoreonly.jsonl")
        if row["model"] == model and row["score"] != -1
    ]
    scores = [row["score"] for row in rows]
    alone = clustered_mean(scores, range(len(rows)))
    by_question = clustered_mean(scores, [row["question_id"] for row in rows])
    assert round(alone.se, 2) == naive
    assert round(by_question.se, 2) == clustered
    # the interval says the same as the standard error: 95% is about two of them to each side
    width = (by_question.high - by_question.low) / by_question.se
    assert 3.6 < width < 4.4


@pytest.mark.parametrize("name", ["lmsys_gpt4_pair", *PAIR_FIXTURES])
def test_win_rates(name):
    if name in PAIR_FIXTURES:
        (path,) = (FIXTURES / name / "model_judgment").glob("*_pair.jsonl")
        expected = table(FIXTURES / "expected_pair.csv", fixture=name)
    else:
        path = ORACLE / "lmsys_gpt4_pair_votes_fastchat.jsonl"
        expected = table(ORACLE / "expected_pair.csv", dataset=name)
    rows = rows_of(path)
    assert expected
    outcomes = [game for row in rows for game in pair_outcomes(row)]
    check_pair(
        tally(matches(outcomes, "fastchat"), "all"),
        [row for row in expected if row["mode"] == "pairwise-all"],
    )
    for baseline in {row["baseline"] for row in expected} - {""}:
        against = [
            game
            for row in rows
            if baseline in (row["model_1"], row["model_2"])
            for game in pair_outcomes(
                row, row["model_2"] if row["model_1"] == baseline else row["model_1"]
            )
        ]
        check_pair(
            tally(matches(against, "fastchat"), "baseline"),
            [row for row in expected if row["baseline"] == baseline],
        )


def test_agreement_with_people():
    gpt4 = load_votes(json.loads((ORACLE / "gpt4_judgments.json").read_text("utf-8")), "gpt4")
    people = load_votes(json.loads((ORACLE / "human_judgments.json").read_text("utf-8")), "human")
    experts = [vote for vote in people if vote.judge == "human"]
    found = {
        (judges, str(r.turn), "with_tie" if r.ties else "without_tie"): r
        for judges, results in (
            ("gpt4-pair/human", agreement(gpt4, experts)),
            ("human/human", agreement(experts)),
        )
        for r in results
    }
    expected = table(ORACLE / "expected_agreement.csv")
    assert {(row["judges"], row["turn"], row["setup"]) for row in expected} == set(found)
    for row in expected:
        result = found[row["judges"], row["turn"], row["setup"]]
        assert (result.total, result.agree) == (int(row["total"]), int(row["agree"]))
        assert f"{result.ratio:.6f}" == f"{float(row['ratio']):.6f}"


def test_agreement_from_matches_is_that_from_votes():
    rows = rows_of(ORACLE / "lmsys_gpt4_pair_votes_fastchat.jsonl")
    played = matches([game for row in rows for game in pair_outcomes(row)])
    gpt4 = load_votes(json.loads((ORACLE / "gpt4_judgments.json").read_text("utf-8")), "gpt4")
    human = load_votes(json.loads((ORACLE / "human_judgments.json").read_text("utf-8")), "human")
    assert agreement(match_votes(played, "gpt-4"), human) == agreement(gpt4, human)


def test_stored_scores_of_real_replies():
    for row in rows_of(ORACLE / "parse_cases.jsonl"):
        value = parse_rating(row["judgment"], parity="fastchat").value
        assert (-1 if value is None else value) == row["score"]


@pytest.mark.parametrize("name", SINGLE_FIXTURES)
def test_stored_scores_of_fixtures(name):
    for path in (FIXTURES / name / "model_judgment").glob("*_single.jsonl"):
        for row in rows_of(path):
            value = parse_rating(row["judgment"], parity="fastchat").value
            assert (-1 if value is None else value) == row["score"]
            safe = parse_rating(row["judgment"])
            assert safe.value == value  # ordinary replies are read the same in both parities


@pytest.mark.parametrize("name", PAIR_FIXTURES)
def test_stored_winners_of_fixtures(name):
    for path in (FIXTURES / name / "model_judgment").glob("*_pair.jsonl"):
        for row in rows_of(path):
            for game in (1, 2):
                label = parse_winner(row[f"g{game}_judgment"], parity="fastchat").value
                winner = {label: who for who, label in GAME_LABELS[game].items()}.get(label)
                assert (winner or "error") == row[f"g{game}_winner"]


@pytest.mark.parametrize("name", SINGLE_FIXTURES)
def test_single_tables_of_fixtures(name):
    (path,) = (FIXTURES / name / "model_judgment").glob("*_single.jsonl")
    outcomes = [single_outcome(row) for row in rows_of(path)]
    check_single(outcomes, table(FIXTURES / "expected_single.csv", fixture=name))


def test_duplicates_count_once_by_the_newest_valid_row():
    rows = rows_of(FIXTURES / "orpo_duplicates/model_judgment/gpt-4_single.jsonl")
    newest = {}
    for row in sorted(rows, key=lambda row: row["tstamp"]):
        key = (row["question_id"], row["model"], tuple(row["judge"]), row["turn"])
        if row["score"] != -1 or key not in newest:
            newest[key] = row
    scores = SINGLE.reduce([], [single_outcome(row) for row in newest.values()], ScoreOptions())
    score = next(s for s in scores if (s.model, s.dimension) == ("mistral-orpo", "all"))
    (strict,) = table(FIXTURES / "expected_single.csv", model="mistral-orpo")
    assert score.planned == 160
    counted = [row["score"] for row in newest.values() if row["model"] == "mistral-orpo"]
    assert score.mean == pytest.approx(sum(counted) / 160)
    assert abs(score.mean - float(strict["average"])) > 0.01


def with_answers(names):
    return [name for name in names if (FIXTURES / name / "model_answer").is_dir()]


def answers_of(name):
    return {
        path.stem: {row["question_id"]: row["choices"][0]["turns"] for row in rows_of(path)}
        for path in (FIXTURES / name / "model_answer").glob("*.jsonl")
    }


def rendered(mode, prompts, question, number, order, *pair):
    """User message of a judge call from the answer texts of one or two models."""
    ids = ("m", "base")[: len(pair)]
    where = Slot("m", question.question_id, question.category, "", number, 0, ids, order, ids[-1])
    answers = answered(**dict(zip(ids, pair, strict=True)))
    made = mode.grade(
        where,
        view(
            mode.name,
            questions={question.question_id: question},
            turns=answers,
            judge=JudgeConfig(model="gpt-4"),
            prompts=prompts,
        ),
    )
    return made.messages[-1].content, made.judge_prompt


@pytest.mark.parametrize("name", with_answers(SINGLE_FIXTURES))
def test_single_prompts_byte_for_byte(official, name):
    questions, prompts = official
    answers = answers_of(name)
    (path,) = (FIXTURES / name / "model_judgment").glob("*_single.jsonl")
    differing, same = defaultdict(int), defaultdict(int)
    for row in rows_of(path):
        question = questions[row["question_id"]]
        turns = answers[row["model"]][row["question_id"]]
        text, prompt = rendered(SINGLE, prompts, question, row["turn"], 0, turns)
        assert prompt == row["judge"][1]
        (same if text == row["user_prompt"] else differing)[row["model"]] += 1
    # The rows of one model were judged twice, once from answers that were replaced since.
    older = {"mistral-orpo": 160} if name == "orpo_duplicates" else {}
    assert dict(differing) == older
    assert same
    assert set(same.values()) == {160}


@pytest.mark.parametrize("name", with_answers(PAIR_FIXTURES))
def test_pairwise_prompts_byte_for_byte(official, name):
    questions, prompts = official
    answers = answers_of(name)
    (path,) = (FIXTURES / name / "model_judgment").glob("*_pair.jsonl")
    rows = rows_of(path)
    for row in rows:
        question = questions[row["question_id"]]
        pair = [answers[row[side]][row["question_id"]] for side in ("model_1", "model_2")]
        for order in (1, 2):
            text, prompt = rendered(ALL, prompts, question, row["turn"], order, *pair)
            assert prompt == row["judge"][1]
            assert text == row[f"g{order}_user_prompt"]
    assert rows


def test_official_files(official):
    questions, prompts = official
    assert list(questions) == list(range(81, 161))
    assert {q.question_id for q in questions.values() if q.references} == set(range(101, 131))
    for position, question in enumerate(questions.values()):
        assert question.category == CATEGORIES[position // 10]
        assert len(question.turns) == 2
    for family in ("single", "pairwise"):
        prompts.require(family)
