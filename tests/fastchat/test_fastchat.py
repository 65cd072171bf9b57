import csv
import dataclasses
import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paths import SHARED

from mtbench_ray.benchmarks import grader_of
from mtbench_ray.config import JudgeConfig
from mtbench_ray.errors import UserError
from mtbench_ray.fastchat import dedupe, export_fastchat, import_fastchat, imported_outcomes
from mtbench_ray.fastchat.answers import short_id
from mtbench_ray.fastchat.counting import concerns
from mtbench_ray.judges.base import ScoreOptions
from mtbench_ray.judges.matches import matches
from mtbench_ray.judges.pairwise import PairTally, tally
from mtbench_ray.planning.plan import outcomes, render, view_of
from mtbench_ray.schema import (
    AnswerSet,
    BenchmarkData,
    Evaluation,
    Judgment,
    Question,
    Score,
    Turn,
    Unit,
)
from mtbench_ray.workspace.filenames import safe_name
from mtbench_ray.workspace.workspace import Workspace

FIXTURES = ["korean_pair", "orpo_duplicates", "phi3_dpo", "wgm_errors"]
Record = dict[str, Any]


def answer(question_id: int | str, *turns: str, model: str = "m", **more: Any) -> Record:
    return {
        "question_id": question_id,
        "answer_id": f"id-{question_id}",
        "model_id": model,
        "choices": [{"index": 0, "turns": list(turns)}],
        "tstamp": 1700000000.5,
    } | more


def rating(question_id: int, turn: int, score: float, text: str = "", **more: Any) -> Record:
    return {
        "question_id": question_id,
        "model": "m",
        "judge": ["gpt", "single-v1"],
        "user_prompt": f"rate {question_id}",
        "judgment": text or f"Rating: [[{score}]]",
        "score": score,
        "turn": turn,
        "tstamp": 1700000001.5,
    } | more


def match(question_id: int, one: str, two: str, **more: Any) -> Record:
    def text(winner: str, letters: str) -> str:
        if winner == "error":
            return "$ERROR$"
        return f"[[{letters[winner == 'model_2'] if winner.startswith('model') else 'C'}]]"

    return {
        "question_id": question_id,
        "model_1": "m",
        "model_2": "base",
        "g1_winner": one,
        "g2_winner": two,
        "judge": ["gpt", "pair-v2"],
        "g1_user_prompt": "game 1",
        "g1_judgment": text(one, "AB"),
        "g2_user_prompt": "game 2",
        "g2_judgment": text(two, "BA"),
        "turn": 1,
        "tstamp": 1700000002.5,
    } | more


def write(path: Path, records: list[Record]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def read(path: Path) -> list[Record]:
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]]


def scores(workspace: Workspace, row: Evaluation, parity: str) -> dict[tuple[str, str], Score]:
    found = imported_outcomes(workspace, row, parity)
    grader = grader_of(row.benchmark, row.mode)
    reduced = grader.reduce([], found, ScoreOptions(parity, resamples=20))
    return {(score.dimension, score.name): score for score in reduced}


def import_ratings(tmp_path: Path, records: list[Record]) -> dict[str, Score]:
    """The average under each parity."""
    write(tmp_path / "in" / "model_judgment" / "gpt_single.jsonl", records)
    with Workspace.open(tmp_path / "w", write=True) as workspace:
        [row] = import_fastchat(tmp_path / "in", workspace).evaluations
        return {p: scores(workspace, row, p)["all", ""] for p in ("safe", "fastchat")}


def import_matches(tmp_path: Path, records: list[Record], parity: str) -> dict[str, PairTally]:
    write(tmp_path / "in" / "model_judgment" / "gpt_pair.jsonl", records)
    with Workspace.open(tmp_path / "w", write=True) as workspace:
        rows = import_fastchat(tmp_path / "in", workspace).evaluations
        found = [game for row in rows for game in imported_outcomes(workspace, row, parity)]
        return {row.model: row for row in tally(matches(found, parity), "all")}


def rows_without_run(workspace: Workspace) -> list[Turn | Judgment]:
    rows = [*workspace.turns.values(), *workspace.judgments.values()]
    return [dataclasses.replace(row, run_id="") for row in rows]


def test_repeated_scores_count_once_unless_fastchat_is_asked_for(tmp_path: Path) -> None:
    records = [rating(81, 1, 8), rating(82, 1, 2), rating(81, 1, 8)]
    found = import_ratings(tmp_path, records)
    assert (found["safe"].mean, found["safe"].scored) == (5.0, 2)
    assert (found["fastchat"].mean, found["fastchat"].scored) == (6.0, 3)


def test_a_row_that_lies_in_two_files_counts_once(tmp_path: Path) -> None:
    one, ten = rating(81, 1, 1.0), rating(82, 1, 10.0)
    write(tmp_path / "in" / "model_judgment" / "j_single.jsonl", [one, ten])
    write(tmp_path / "in" / "model_judgment" / "copy" / "j_single.jsonl", [one])
    with Workspace.open(tmp_path / "w", write=True) as workspace:
        report = import_fastchat(tmp_path / "in", workspace)
        (row,) = report.evaluations
        for parity in ("safe", "fastchat"):
            total = scores(workspace, row, parity)["all", ""]
            assert (total.mean, total.scored, total.planned) == (5.5, 2, 2)


def test_a_note_is_told_of_its_own_mode(tmp_path: Path) -> None:
    write(tmp_path / "in" / "model_judgment" / "j_single.jsonl", [rating(81, 1, 8.0)] * 2)
    write(tmp_path / "in" / "model_judgment" / "j_pair.jsonl", [match(81, "tie", "tie")] * 2)
    with Workspace.open(tmp_path / "w", write=True) as workspace:
        single, pair = sorted(import_fastchat(tmp_path / "in", workspace).notes, reverse=True)
    assert (concerns(single, "single"), concerns(single, "pairwise-all")) == (True, False)
    assert (concerns(pair, "single"), concerns(pair, "pairwise-all")) == (False, True)
    assert concerns("j_single.jsonl:3: no JSON, left out", "pairwise-all")


def test_a_slash_in_a_judges_name_made_a_folder(tmp_path: Path) -> None:
    write(tmp_path / "in" / "model_judgment" / "org" / "j_single.jsonl", [rating(81, 1, 8.0)])
    write(
        tmp_path / "in" / "model_judgment" / "org" / "j_pair.jsonl",
        [match(81, "tie", "tie")],
    )
    with Workspace.open(tmp_path / "w", write=True) as workspace:
        assert import_fastchat(tmp_path / "in", workspace).judgments == 3


def test_what_was_dropped_is_said(tmp_path: Path) -> None:
    write(tmp_path / "model_judgment" / "gpt_single.jsonl", [rating(81, 1, 8), rating(81, 1, 7)])
    with Workspace.open(tmp_path / "w", write=True) as workspace:
        report = import_fastchat(tmp_path, workspace)
        assert "1 of 2 judgments repeat" in report.text()
        assert workspace.run_records()[-1].notes == report.notes


def test_the_newest_valid_row_of_a_key_counts(tmp_path: Path) -> None:
    records = [
        rating(81, 1, 3, tstamp=30.0),
        rating(81, 1, 4, tstamp=20.0),
        rating(81, 1, -1, "no verdict", tstamp=40.0),
        rating(82, 1, 5, tstamp=10.0),
        rating(82, 1, 6, tstamp=10.0),
    ]
    assert import_ratings(tmp_path, records)["safe"].mean == (3 + 6) / 2


def test_which_number_is_the_score(tmp_path: Path) -> None:
    records = [rating(81, 1, 9), rating(81, 2, -1, "-"), rating(82, 1, 5), rating(82, 2, 4)]
    write(tmp_path / "model_judgment" / "gpt_single.jsonl", records)
    with Workspace.open(tmp_path / "w", write=True) as workspace:
        [row] = import_fastchat(tmp_path, workspace).evaluations
        found = scores(workspace, row, "safe")
    parts = [("turn", "1"), ("turn", "2"), ("all", "")]
    assert [(found[part].mean, found[part].scored) for part in parts] == [(7, 2), (4, 1), (6, 3)]
    assert json.loads(found["all", ""].failed) == {"no_rating": 1}


@pytest.mark.parametrize(
    ("text", "score", "safe", "reason"),
    [
        ("$ERROR$", -1, None, "judge_failed"),
        ("I would rather not say.", -1, None, "no_rating"),
        ("", -1, None, "empty"),
        ("It looks at x[1] and ends. Rating: [[8]]", 8, 8.0, ""),
        ("as x[1] shows, this is good", 1, None, "no_rating"),
        ("[[3]] is too low, so [[4]]", 3, 4.0, ""),
        ("Rating: [[11]]", 11, None, "out_of_range"),
        ("Rating: [[8/10]]", -1, 8.0, ""),
        ("a fork wrote: Score 8", 8, 8.0, ""),
        ("a fork wrote: Score 80", 80, None, "out_of_range"),
    ],
)
def test_stored_texts_are_read_again_in_safe_parity(
    tmp_path: Path, text: str, score: int, safe: float | None, reason: str
) -> None:
    found = import_ratings(tmp_path, [rating(81, 1, score) | {"judgment": text}])
    assert found["safe"].mean == safe
    assert json.loads(found["safe"].failed) == ({reason: 1} if reason else {})
    assert found["fastchat"].mean == (None if score == -1 else score)


def test_a_number_in_quotes_is_that_number(tmp_path: Path) -> None:
    found = import_ratings(
        tmp_path,
        [
            rating(81, 1, 8) | {"question_id": "81"},
            rating(81, 2, 6) | {"question_id": "81"},
            rating(111, 1, 4) | {"turn": "1"},
            rating(111, 2, 2) | {"score": "2"},
        ],
    )
    assert (found["safe"].mean, found["safe"].scored) == (5.0, 4)
    assert found["fastchat"].mean == 5.0


def test_scores_without_texts_are_enough(tmp_path: Path) -> None:
    record = {"question_id": 81, "model": "m", "judge": ["gpt", "p"], "turn": 1}
    found = import_ratings(
        tmp_path, [record | {"score": 9}, record | {"question_id": 82, "score": 7.5}]
    )
    assert found["safe"].mean == found["fastchat"].mean == 8.25


def test_failed_turns_are_failures_and_the_word_error_is_not(tmp_path: Path) -> None:
    records = [
        answer(81, "$ERROR$", "$ERROR$"),
        answer(82, "ERROR", "text"),
        answer(83, "an ERROR occurred", ""),
    ]
    write(tmp_path / "model_answer" / "m.jsonl", records)
    with Workspace.open(tmp_path / "w", write=True) as workspace:
        [row] = import_fastchat(tmp_path, workspace).evaluations
        turns = [workspace.turns[unit.answer_id, n] for unit in row.answers.units for n in (1, 2)]
    assert [turn.status for turn in turns] == ["error", "error", "error", "ok", "ok", "empty"]
    assert [turn.content for turn in turns[:3]] == ["", "", ""]
    assert turns[5].history == ("an ERROR occurred",)
    assert (row.mode, row.judge, row.source) == ("answers", "", "import")


def test_damaged_files_give_what_is_whole(tmp_path: Path) -> None:
    lines = [json.dumps(rating(q, 1, q - 80)).encode() for q in range(81, 85)]
    path = tmp_path / "model_judgment" / "gpt_single.jsonl"
    path.parent.mkdir()
    path.write_bytes(
        b"\xef\xbb\xbf" + lines[0] + b"\r\n\n  \n" + lines[1] + b"\n" + lines[2][:40] + b"\n"
        b'{"question_id": 90}\n' + lines[3] + b"\n" + lines[2][:50]
    )  # fmt: skip
    answers = tmp_path / "model_answer" / "m.jsonl"
    write(
        answers, [answer(81, "a", "b"), {"question_id": 82}, answer(81, "c\u2028\x00\ud835", "d")]
    )
    with Workspace.open(tmp_path / "w", write=True) as workspace:
        report = import_fastchat(tmp_path, workspace)
        assert [row.question_id for row in workspace.judgments.values()] == [81, 82, 84]
        assert [turn.content for turn in workspace.turns.values()] == ["c\u2028\x00\ud835", "d"]
    for line in (f"{path}:5:", f"{path}:6:", f"{path}:8:", f"{answers}:2:", "1 lines repeat"):
        assert line in report.text()


def test_what_the_report_prints_is_short_and_harmless(tmp_path: Path) -> None:
    label = "\x1b[2Jevil\ud835\u2028"
    records = [rating(81, 1, 8, model=label), rating(81, 1, 8, model=label)]
    path = write(tmp_path / "model_judgment" / "gpt_single.jsonl", records)
    with path.open("a") as file:
        file.write("junk\n" * 500)
    with Workspace.open(tmp_path / "w", write=True) as workspace:
        text = import_fastchat(tmp_path, workspace).text()
    assert "\\x1b[2Jevil\\ud835\\u2028, judge gpt" in text
    assert text.replace("\n", "").isprintable()
    assert len(text.split("\n")) < 30
    assert "more lines like these" in text


def test_importing_again_adds_nothing(tmp_path: Path) -> None:
    write(tmp_path / "model_answer" / "m.jsonl", [answer(81, "$ERROR$", "b")])
    write(tmp_path / "model_judgment" / "gpt_single.jsonl", [rating(81, 1, 8)] * 3)
    write(tmp_path / "model_judgment" / "gpt_pair.jsonl", [match(81, "tie", "error")] * 2)
    with Workspace.open(tmp_path / "w", write=True) as workspace:
        first = import_fastchat(tmp_path, workspace)
        again = import_fastchat(tmp_path, workspace)
        assert (first.new_turns, first.new_judgments) == (2, 3 + 4)
        assert (again.new_turns, again.new_judgments) == (0, 0)
        assert again.evaluations == first.evaluations
    assert len((tmp_path / "w" / "judgments.jsonl").read_text().splitlines()) == 7


@pytest.mark.parametrize("label", ["plain-7B", "org/model-7b", "a:b", "..", "Step", "con", "é"])
def test_labels_stay_the_exact_text_typed(tmp_path: Path, label: str) -> None:
    name = safe_name(label)
    write(tmp_path / "in" / "model_answer" / f"{name}.jsonl", [answer(81, "a", "b", model=label)])
    records = [rating(81, 1, 8, model=label)]
    write(tmp_path / "in" / "model_judgment" / "j_single.jsonl", records)
    with Workspace.open(tmp_path / "w", write=True) as workspace:
        rows = import_fastchat(tmp_path / "in", workspace).evaluations
        assert [(row.model, len(row.answers.units)) for row in rows] == [(label, 1)]
        paths = export_fastchat(workspace, tmp_path / "out", rows)
    assert [path.parent.parent for path in paths] == [tmp_path / "out"] * 2
    assert read(tmp_path / "out" / "model_answer" / f"{name}.jsonl")[0]["model_id"] == label


def test_the_file_name_is_the_model_whatever_the_row_says(tmp_path: Path) -> None:
    write(tmp_path / "model_answer" / "v1.3.jsonl", [answer(81, "a", "b", model="other")])
    write(tmp_path / "model_answer" / "org" / "m.jsonl", [answer(81, "a", "b", model="m")])
    with Workspace.open(tmp_path / "w", write=True) as workspace:
        rows = import_fastchat(tmp_path, workspace).evaluations
    assert sorted(row.model for row in rows) == ["org/m", "v1.3"]


def test_labels_that_differ_in_case_only_get_files_of_their_own(tmp_path: Path) -> None:
    for label in ("Step", "step"):
        write(tmp_path / "in" / "model_answer" / f"{label}.jsonl", [answer(81, label, model=label)])
    with Workspace.open(tmp_path / "w", write=True) as workspace:
        rows = import_fastchat(tmp_path / "in", workspace).evaluations
        paths = export_fastchat(workspace, tmp_path / "out", rows)
        assert len({path.name.casefold() for path in paths}) == 2
    with Workspace.open(tmp_path / "w2", write=True) as workspace:
        rows = import_fastchat(tmp_path / "out", workspace).evaluations
    assert sorted(row.model for row in rows) == ["Step", "step"]


def test_pairwise_tables(tmp_path: Path) -> None:
    records = [
        match(81, "model_1", "model_1"),
        match(82, "model_2", "model_2"),
        match(83, "model_1", "model_2"),
        match(84, "tie", "tie"),
        match(85, "model_1", "error"),
        match(86, "model_1", "model_1", model_1="base", model_2="m"),
    ]
    found = import_matches(tmp_path, records, "safe")
    assert (found["m"].win, found["m"].loss, found["m"].tie) == (1, 2, 2)
    assert (found["base"].win, found["base"].loss) == (2, 1)
    assert found["m"].inconsistent == 1
    assert found["m"].failed == {"judge_failed": 1}


def test_a_pair_in_the_other_order_is_the_same_match(tmp_path: Path) -> None:
    records = [
        match(81, "model_1", "model_1", tstamp=1.0),
        match(81, "model_1", "model_1", tstamp=2.0, model_1="base", model_2="m"),
    ]
    assert import_matches(tmp_path / "a", records, "safe")["m"].n == 1
    assert import_matches(tmp_path / "a", records, "safe")["m"].loss == 1
    pooled = import_matches(tmp_path / "b", records, "fastchat")["m"]
    assert (pooled.win, pooled.loss) == (1, 1)


def test_games_of_different_rows_are_not_mixed(tmp_path: Path) -> None:
    records = [match(81, "model_1", "error", tstamp=2.0), match(81, "error", "model_1", tstamp=1.0)]
    assert import_matches(tmp_path, records, "safe")["m"].n == 0


def test_a_baseline_makes_evaluations_against_it(tmp_path: Path) -> None:
    records = [match(81, "model_1", "tie"), match(81, "tie", "tie", model_1="base", model_2="x")]
    write(tmp_path / "model_judgment" / "gpt_pair.jsonl", records)
    with Workspace.open(tmp_path / "w", write=True) as workspace:
        rows = import_fastchat(tmp_path, workspace, baseline="base").evaluations
        rows = [row for row in rows if row.mode == "pairwise-baseline"]
        assert [(row.model, row.baseline) for row in rows] == [("m", "base"), ("x", "base")]
        found = [game for row in rows for game in imported_outcomes(workspace, row, "fastchat")]
    assert [row.model for row in tally(matches(found, "fastchat"), "baseline")] == ["m", "x"]


def test_dedupe_tells_judges_turns_and_samples_apart(tmp_path: Path) -> None:
    write(
        tmp_path / "model_judgment" / "gpt_single.jsonl",
        [
            rating(81, 1, 1), rating(81, 2, 2), rating(82, 1, 3), rating(81, 1, 4, model="n"),
            rating(81, 1, 5, judge=["other", "single-v1"]), rating(81, 1, 6, sample=1),
            rating(81, 1, 7, judge_sample=1), rating(81, 1, 8, judge=["gpt", "new-prompt"]),
        ],
    )  # fmt: skip
    with Workspace.open(tmp_path / "w", write=True) as workspace:
        import_fastchat(tmp_path, workspace)
        kept, dropped = dedupe(list(workspace.judgments.values()))
    assert [row.value for row in kept] == [8, 2, 3, 4, 5, 6, 7]
    assert [row.value for row in dropped] == [1]


def test_categories_come_from_the_ids_or_from_the_question_file(tmp_path: Path) -> None:
    ids = [80, 81, 110, 121, 160, 161]
    write(tmp_path / "in" / "model_judgment" / "gpt_single.jsonl", [rating(q, 1, 8) for q in ids])
    with Workspace.open(tmp_path / "w", write=True) as workspace:
        import_fastchat(tmp_path / "in", workspace)
        assert [row.category for row in workspace.judgments.values()] == [
            "unknown", "writing", "reasoning", "coding", "humanities", "unknown",
        ]  # fmt: skip
    questions = [{"question_id": q, "category": f"c{q}", "turns": ["?"]} for q in ids]
    write(tmp_path / "in" / "question.jsonl", questions)
    with Workspace.open(tmp_path / "w2", write=True) as workspace:
        [row] = import_fastchat(tmp_path / "in", workspace).evaluations
        assert [j.category for j in workspace.judgments.values()] == [f"c{q}" for q in ids]
        assert len(workspace.load_data(row.data).questions) == len(ids)


def test_the_layout_of_a_fastchat_checkout_and_single_files(tmp_path: Path) -> None:
    base = tmp_path / "data" / "mt_bench"
    judged = write(base / "model_judgment" / "gpt_single.jsonl", [rating(81, 1, 8)])
    answers = write(base / "model_answer" / "m.jsonl", [answer(81, "a", "b")])
    for number, what in enumerate((tmp_path, base, judged, answers)):
        with Workspace.open(tmp_path / f"w{number}", write=True) as workspace:
            report = import_fastchat(what, workspace)
            assert (report.turns, report.judgments) == [(2, 1), (2, 1), (0, 1), (2, 0)][number]


def test_folders_without_rows_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty" / "model_answer").mkdir(parents=True)
    with Workspace.open(tmp_path / "w", write=True) as workspace:
        for folder in (tmp_path, tmp_path / "absent", tmp_path / "empty"):
            with pytest.raises(UserError, match=str(folder)):
                import_fastchat(folder, workspace)
        assert workspace.run_records() == []


def test_files_come_out_as_they_went_in(tmp_path: Path) -> None:
    tree = {
        "model_answer/m.jsonl": [
            answer(81, "a\u2028", ""),
            answer(82, "$ERROR$", "ERROR", own_field={"x": 1}),
            answer("q", "a", "b", tstamp=5.0),
        ],
        "model_answer/n.jsonl": [
            answer(81, "x", "y")
            | {"choices": [{"index": i, "turns": [f"{i}", "t"]} for i in range(3)]}
        ],
        "model_judgment/gpt_single.jsonl": [
            rating(81, 1, 9), rating(81, 1, 9), rating(81, 2, 8.5), rating(82, 1, 7.0),
            rating(82, 2, -1, "$ERROR$"), rating(83, 1, -1, "nothing"), rating(84, 1, 0, fork="f"),
        ],
        "model_judgment/gpt_pair.jsonl": [
            match(81, "model_1", "tie"), match(81, "model_1", "tie"), match(82, "error", "error"),
            match(83, "tie", "model_2", model_1="base", model_2="m"),
        ],
    }  # fmt: skip
    for name, records in tree.items():
        write(tmp_path / "in" / name, records)
    with Workspace.open(tmp_path / "w", write=True) as workspace:
        rows = import_fastchat(tmp_path / "in", workspace).evaluations
        export_fastchat(workspace, tmp_path / "out", rows)
        first = rows_without_run(workspace)
    for name in tree:
        assert (tmp_path / "out" / name).read_text() == (tmp_path / "in" / name).read_text()
    with Workspace.open(tmp_path / "w2", write=True) as workspace:
        again = import_fastchat(tmp_path / "out", workspace).evaluations
        assert [row.evaluation_id for row in again] == [row.evaluation_id for row in rows]
        assert rows_without_run(workspace) == first


JSON_TEXT = st.text(max_size=8) | st.sampled_from(["$ERROR$", "ERROR", "[[7]]", "[[A]]"])
SCORES = st.sampled_from([-1, 0, 7, 7.0, 8.5, 11, 10**6])
WINNERS = st.sampled_from(["model_1", "model_2", "tie", "error"])


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.integers(81, 83), JSON_TEXT, JSON_TEXT), max_size=4),
    st.lists(st.tuples(st.integers(81, 83), st.integers(1, 2), SCORES, JSON_TEXT), max_size=5),
    st.lists(st.tuples(st.integers(81, 83), WINNERS, WINNERS), min_size=1, max_size=4),
)
def test_any_tree_survives_the_way_there_and_back(
    answers: list[Any], ratings: list[Any], matches: list[Any]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        top = Path(folder)
        write(top / "in/model_answer/m.jsonl", [answer(*each) for each in answers])
        records = [rating(*each[:3]) | {"judgment": each[3]} for each in ratings]
        write(top / "in/model_judgment/j_single.jsonl", records)
        write(top / "in/model_judgment/j_pair.jsonl", [match(*each) for each in matches])
        with Workspace.open(top / "w", write=True) as workspace:
            rows = import_fastchat(top / "in", workspace).evaluations
            export_fastchat(workspace, top / "out", rows)
            first = rows_without_run(workspace)
            for row in rows:
                if row.judge:
                    imported_outcomes(workspace, row, "safe")
        with Workspace.open(top / "w2", write=True) as workspace:
            again = import_fastchat(top / "out", workspace).evaluations
            assert [row.evaluation_id for row in again] == [row.evaluation_id for row in rows]
            assert rows_without_run(workspace) == first


def test_junk_records_are_left_out_with_their_lines(tmp_path: Path) -> None:
    good = rating(81, 1, 8)
    junk: list[Record] = [
        good | {"question_id": None}, good | {"question_id": True}, good | {"score": "8!"},
        good | {"score": True}, good | {"judge": 5}, good | {"judge": [1]}, good | {"model": 7},
        good | {"turn": "first"}, good | {"turn": 0}, good | {"turn": float("inf")},
        {"question_id": 81}, match(81, "model_3", "tie"), match(81, "tie", "tie", model_2=None),
        match(81, "tie", "tie") | {"g2_winner": ["tie"]}, good | {"score": float("inf")},
    ]  # fmt: skip
    write(tmp_path / "model_judgment" / "gpt_single.jsonl", [*junk, good])
    with Workspace.open(tmp_path / "w", write=True) as workspace:
        report = import_fastchat(tmp_path, workspace)
        assert len(workspace.judgments) == 1
    assert [int(re.findall(r":(\d+):", note)[0]) for note in report.notes] == [
        *range(1, len(junk) + 1)
    ]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=4,
)


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_no_record_stops_an_import(data: st.DataObject) -> None:
    def spoiled(record: Record) -> Record:
        return record | {data.draw(st.sampled_from(list(record))): data.draw(JSON)}

    with tempfile.TemporaryDirectory() as folder:
        top = Path(folder)
        ratings = [spoiled(rating(81, 1, 8)) for _ in range(4)]
        write(top / "in/model_judgment/j_single.jsonl", [rating(82, 1, 5), *ratings])
        write(top / "in/model_judgment/j_pair.jsonl", [spoiled(match(81, "tie", "error"))] * 3)
        write(top / "in/model_answer/m.jsonl", [spoiled(answer(81, "a", "b")) for _ in range(4)])
        with Workspace.open(top / "w", write=True) as workspace:
            rows = import_fastchat(top / "in", workspace).evaluations
            export_fastchat(workspace, top / "out", rows)
            assert 5.0 in [row.value for row in workspace.judgments.values()]
        with Workspace.open(top / "w", write=False) as workspace:
            assert workspace.problems == []


def run_workspace(
    root: Path, samples: int = 1, turns: tuple[str, ...] = ("{}: one?", "{}: two?")
) -> tuple[Workspace, list[Evaluation]]:
    """A run of two questions: one judged, one with a turn that failed and a judge that did."""
    prompts = "".join(
        json.dumps({"name": name, "type": kind, "system_prompt": "", "prompt_template": template})
        + "\n"
        for name, kind, template in (
            ("single-v1", "single", "{question} {answer}"),
            ("single-math-v1", "single", "{question} {ref_answer_1} {answer}"),
            ("single-v1-multi-turn", "single", "{question_1} {answer_1} {question_2} {answer_2}"),
            (
                "single-math-v1-multi-turn", "single",
                "{question_1} {ref_answer_1} {answer_1} {question_2} {ref_answer_2} {answer_2}",
            ),
            ("pair-v2", "pairwise", "{question} {answer_a} {answer_b}"),
            ("pair-math-v1", "pairwise", "{question} {ref_answer_1} {answer_a} {answer_b}"),
            (
                "pair-v2-multi-turn", "pairwise",
                "{question_1} {question_2} {answer_a_1} {answer_a_2} {answer_b_1} {answer_b_2}",
            ),
            (
                "pair-math-v1-multi-turn", "pairwise",
                "{question_1} {question_2} {ref_answer_1} {ref_answer_2} {answer_a_1} "
                "{answer_a_2} {answer_b_1} {answer_b_2}",
            ),
        )
    )  # fmt: skip
    questions = tuple(
        Question("mt_bench", q, "writing", tuple(t.format(q) for t in turns), group=str(q))
        for q in (9, 10)
    )
    workspace = Workspace.open(root, write=True)
    data = BenchmarkData("mt_bench", questions, "fastchat", prompts, {})
    name = workspace.save_data(data)
    judge = JudgeConfig(model="gpt", temperature=0.0)
    sets = []
    for model in ("org/m", "base"):
        units = [
            Unit(q, s, f"{model}{q}-{s}".encode().hex()) for q in (10, 9) for s in range(samples)
        ]
        sets.append(AnswerSet(model, "{}", tuple(units)))
        for unit in units:
            texts = ["first", "second"]
            for n, text in enumerate(texts, start=1):
                failed = (model, unit.question_id, n) == ("org/m", 9, 2)
                workspace.append(
                    Turn(
                        unit.answer_id, n, "mt_bench", unit.question_id, model, unit.sample,
                        "" if failed else f"{text} of {model} {unit.sample}",
                        "error" if failed else "ok",
                        history=tuple(f"{t} of {model} {unit.sample}" for t in texts[: n - 1]),
                        created=100.0 + n,
                    )
                )  # fmt: skip
    fields = {"judge": "gpt", "judge_settings": json.dumps(dataclasses.asdict(judge)), "data": name}
    rows = [
        Evaluation(sets[0], mode="single", **fields),
        Evaluation(sets[0], mode="pairwise-baseline", opponent=sets[1], **fields),
        Evaluation(sets[1], mode="pairwise-all", opponent=sets[0], **fields),
    ]
    for row in rows:
        view = view_of(row, data, workspace.turns)
        for outcome in outcomes(view, workspace.judgments):
            if outcome.reason != "missing":
                continue
            slot = outcome.slot
            request = render(view, slot)
            judged = slot.question_id == 10
            label = ("8" if slot.turn == 1 else "7.5") if slot.order == 0 else "A"
            value = float(label) if slot.order == 0 else 1.0 if slot.order == 1 else 0.0
            workspace.append(
                Judgment(
                    request.judgment_id, request.match_id, row.mode, "mt_bench", slot.question_id,
                    slot.category, slot.turn, slot.model, "gpt", request.judge_prompt,
                    "ok" if judged else "error", text=f"[[{label}]]" if judged else "",
                    label=label if judged else None, value=value if judged else None,
                    error=None if judged else "timeout", order=slot.order, opponent=slot.opponent,
                    sample=slot.sample, user_prompt=request.messages[-1].content, created=200.0,
                )
            )  # fmt: skip
    return workspace, rows


def test_a_run_is_written_as_fastchat_writes_it(tmp_path: Path) -> None:
    workspace, rows = run_workspace(tmp_path / "w")
    with workspace:
        paths = export_fastchat(workspace, tmp_path / "out", rows)
    base, answers, single, pair, asked = [read(path) for path in paths]
    assert [path.name for path in paths] == [
        "base.jsonl", f"{safe_name('org/m')}.jsonl", "gpt_single.jsonl", "gpt_pair.jsonl",
        "question.jsonl",
    ]  # fmt: skip
    # These ids are none of MT-Bench's, so that their categories follow from nothing else.
    assert {row["question_id"]: row["category"] for row in asked} == {9: "writing", 10: "writing"}
    assert [row["question_id"] for row in answers] == [9, 10]
    assert answers[0]["choices"] == [{"index": 0, "turns": ["first of org/m 0", "$ERROR$"]}]
    assert list(answers[0]) == ["question_id", "answer_id", "model_id", "choices", "tstamp"]
    assert len({row["answer_id"] for row in answers + base}) == 4
    assert all(len(row["answer_id"]) == 22 for row in answers + base)
    assert answers[0]["model_id"] == "org/m"

    assert list(single[0]) == [
        "question_id", "model", "judge", "user_prompt", "judgment", "score", "turn", "tstamp",
    ]  # fmt: skip
    found = {(row["question_id"], row["turn"]): row for row in single}
    assert repr(found[10, 1]["score"]) == "8"
    assert repr(found[10, 2]["score"]) == "7.5"
    assert (found[9, 1]["score"], found[9, 1]["judgment"]) == (-1, "$ERROR$")
    assert (found[9, 2]["score"], found[9, 2]["judgment"]) == (-1, "$ERROR$")
    assert found[9, 2]["judge"] == ["gpt", "single-v1-multi-turn"]

    assert list(pair[0]) == [
        "question_id", "model_1", "model_2", "g1_winner", "g2_winner", "judge", "g1_user_prompt",
        "g1_judgment", "g2_user_prompt", "g2_judgment", "turn", "tstamp",
    ]  # fmt: skip
    won = {(row["question_id"], row["turn"]): row for row in pair}
    assert len(pair) == len(won) == 4
    assert {(row["model_1"], row["model_2"]) for row in pair} == {("org/m", "base")}
    assert (won[10, 1]["g1_winner"], won[10, 1]["g2_winner"]) == ("model_1", "model_2")
    assert (won[9, 1]["g1_winner"], won[9, 2]["g2_winner"]) == ("error", "error")


# Questions with the same texts share judgments, and are rows of their own in the files.
@pytest.mark.parametrize("turns", [("{}: one?", "{}: two?"), ("same?", "again?")])
def test_an_exported_run_is_scored_the_same_after_an_import(
    tmp_path: Path, turns: tuple[str, ...]
) -> None:
    workspace, rows = run_workspace(tmp_path / "w", samples=2, turns=turns)
    with workspace:
        view = view_of(rows[0], workspace.load_data(rows[0].data), workspace.turns)
        mine = view.grader.reduce([view], outcomes(view, workspace.judgments), ScoreOptions())[0]
        paths = export_fastchat(workspace, tmp_path / "out", rows)
    assert [len(choices["choices"]) for choices in read(paths[0])] == [2, 2]
    judged = read(tmp_path / "out" / "model_judgment" / "gpt_single.jsonl")
    assert [row.get("sample", 0) for row in judged] == [0, 0, 1, 1, 0, 0, 1, 1]
    with Workspace.open(tmp_path / "w2", write=True) as other:
        row = import_fastchat(tmp_path / "out", other).evaluations[-1]
        theirs = scores(other, row, "safe")["all", ""]
    assert row.mode == "single"
    assert (mine.mean, mine.scored, mine.planned) == (theirs.mean, theirs.scored, theirs.planned)
    assert mine.planned == 8


def test_a_workspace_is_not_imported_into_itself(tmp_path: Path) -> None:
    workspace, rows = run_workspace(tmp_path / "w")
    with workspace:
        export_fastchat(workspace, tmp_path / "w", rows)
        with pytest.raises(UserError, match="is the workspace itself"):
            import_fastchat(tmp_path / "w", workspace)


def test_own_categories_survive_the_way_there_and_back(tmp_path: Path) -> None:
    workspace, rows = run_workspace(tmp_path / "w")
    with workspace:
        export_fastchat(workspace, tmp_path / "out", rows)
    with Workspace.open(tmp_path / "w2", write=True) as other:
        row = import_fastchat(tmp_path / "out", other).evaluations[-1]
        assert ("category", "writing") in scores(other, row, "safe")


def test_a_smaller_run_does_not_take_answers_out_of_the_files(tmp_path: Path) -> None:
    workspace, rows = run_workspace(tmp_path / "w")
    some = dataclasses.replace(rows[0].answers, units=rows[0].answers.units[:1])
    smaller = dataclasses.replace(rows[0], answers=some, judge="other")
    with workspace:
        export_fastchat(workspace, tmp_path / "out", [*rows, smaller])
        changed = dataclasses.replace(some, settings='{"sampling":{}}')
        anew = dataclasses.replace(smaller, answers=changed)
        export_fastchat(workspace, tmp_path / "new", [*rows, anew])
    name = f"model_answer/{safe_name('org/m')}.jsonl"
    assert [row["question_id"] for row in read(tmp_path / "out" / name)] == [9, 10]
    # Answers of other settings are not put among them.
    assert len(read(tmp_path / "new" / name)) == 1


def test_files_of_others_are_not_overwritten(tmp_path: Path) -> None:
    workspace, rows = run_workspace(tmp_path / "w")
    with workspace:
        theirs = write(tmp_path / "out" / "model_judgment" / "gpt_single.jsonl", [rating(81, 1, 8)])
        before = theirs.read_bytes()
        with pytest.raises(UserError, match="not of this program"):
            export_fastchat(workspace, tmp_path / "out", rows)
        assert theirs.read_bytes() == before
        assert not (tmp_path / "out" / "model_answer").exists()
        theirs.unlink()
        first = export_fastchat(workspace, tmp_path / "out", rows)
        assert export_fastchat(workspace, tmp_path / "out", rows) == first
        theirs.write_bytes(before)
        with pytest.raises(UserError, match="changed since"):
            export_fastchat(workspace, tmp_path / "out", rows)
        export_fastchat(workspace, workspace.root, rows)
        (workspace.root / "model_judgment" / "gpt_single.jsonl").write_text("edited")
        export_fastchat(workspace, workspace.root, rows)


def test_no_secret_is_exported(tmp_path: Path) -> None:
    write(tmp_path / "model_answer" / "m.jsonl", [answer(81, "sk-planted-key-0001")])
    with Workspace.open(tmp_path / "w", write=True) as workspace:
        rows = import_fastchat(tmp_path, workspace).evaluations
    with Workspace.open(tmp_path / "w", write=False, secrets=["sk-planted-key-0001"]) as workspace:
        [path] = export_fastchat(workspace, tmp_path / "out", rows)
    assert read(path)[0]["choices"][0]["turns"] == ["***"]


def test_short_ids_are_stable_and_different() -> None:
    assert short_id("0" * 32) == "2" * 22
    assert short_id("f" * 32) == short_id("f" * 32) != short_id("f" * 31 + "e")
    assert {len(short_id(f"{n:032x}")) for n in (1, 57, 2**127)} == {22}


def table(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        pytest.skip(f"needs {path.name} of the shared folder beside the checkout")
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("fixture", FIXTURES)
@pytest.mark.runs
def test_fixtures_give_fastchats_tables(tmp_path: Path, fixture: str) -> None:
    single = [
        row for row in table(SHARED / "fixtures/expected_single.csv") if row["fixture"] == fixture
    ]
    pair = [
        row for row in table(SHARED / "fixtures/expected_pair.csv") if row["fixture"] == fixture
    ]
    compared = 0
    for baseline in {row["baseline"] for row in pair} | {""}:
        with Workspace.open(tmp_path / f"w{baseline}", write=True) as workspace:
            report = import_fastchat(SHARED / "fixtures" / fixture, workspace, baseline=baseline)
            mode = "pairwise-baseline" if baseline else "pairwise-all"
            chosen = [row for row in report.evaluations if row.mode == mode]
            games = [g for row in chosen for g in imported_outcomes(workspace, row, "fastchat")]
            for counts in tally(matches(games, "fastchat"), mode.removeprefix("pairwise-")):
                [expected] = [
                    row
                    for row in pair
                    if (row["baseline"], row["model"]) == (baseline, counts.model)
                ]
                for name in ("win", "loss", "tie", "n"):
                    assert getattr(counts, name) == int(expected[name])
                compared += 1
            for row in [] if baseline else report.evaluations:
                if row.mode == "single":
                    compared += 1
                    [expected] = [each for each in single if each["model"] == row.model]
                    compare(scores(workspace, row, "fastchat"), expected)
    assert compared == len(single) + len(pair)


def compare(found: dict[tuple[str, str], Score], expected: dict[str, str]) -> None:
    for part, name, count in (
        (("turn", "1"), "turn1", "n_turn1"),
        (("turn", "2"), "turn2", "n_turn2"),
        (("all", ""), "average", "n"),
    ):
        assert found[part].mean == pytest.approx(float(expected[name]), abs=1e-9)
        assert found[part].scored == int(expected[count])
    total = found["all", ""]
    assert total.planned - total.scored == int(expected["n_dropped"])


@pytest.mark.parametrize("fixture", FIXTURES)
@pytest.mark.runs
def test_fixtures_survive_the_way_there_and_back(tmp_path: Path, fixture: str) -> None:
    source = SHARED / "fixtures" / fixture
    if not source.is_dir():
        pytest.skip("needs the fixtures of the shared folder beside the checkout")
    with Workspace.open(tmp_path / "w", write=True) as workspace:
        rows = import_fastchat(source, workspace).evaluations
        export_fastchat(workspace, tmp_path / "out", rows)
    for path in source.rglob("*.jsonl"):
        mine, theirs = read(tmp_path / "out" / path.relative_to(source)), read(path)
        assert [list(record) for record in mine] == [list(record) for record in theirs]
        assert sorted(map(repr, mine)) == sorted(map(repr, theirs))


def test_a_fixture_with_two_answer_versions_is_not_averaged_over_both(tmp_path: Path) -> None:
    source = SHARED / "fixtures" / "orpo_duplicates"
    if not source.is_dir():
        pytest.skip("needs the fixtures of the shared folder beside the checkout")
    with Workspace.open(tmp_path / "w", write=True) as workspace:
        report = import_fastchat(source, workspace)
        [row] = [row for row in report.evaluations if row.model == "mistral-orpo"]
        safe = scores(workspace, row, "safe")["all", ""]
        records = read(source / "model_judgment" / "gpt-4_single.jsonl")
    newest: dict[tuple[int, int], Record] = {}
    for record in sorted(records, key=lambda record: record["tstamp"]):
        if record["model"] == "mistral-orpo" and record["score"] != -1:
            newest[record["question_id"], record["turn"]] = record
    assert (safe.planned, safe.scored) == (160, 160)
    assert safe.mean == pytest.approx(sum(r["score"] for r in newest.values()) / 160)
    assert "mistral-orpo, judge gpt-4, single: 160 of 320 judgments repeat" in report.text()


@pytest.mark.parametrize("parity", ["safe", "fastchat"])
@pytest.mark.runs
def test_the_oracle_scores(tmp_path: Path, parity: str) -> None:
    expected = {row["model"]: row for row in table(SHARED / "oracle/expected_single.csv")}
    categories = table(SHARED / "oracle/expected_category.csv")
    judged = tmp_path / "in" / "model_judgment" / "gpt-4_single.jsonl"
    judged.parent.mkdir(parents=True)
    os.symlink(SHARED / "oracle/lmsys_gpt4_single_scoreonly.jsonl", judged)
    with Workspace.open(tmp_path / "w", write=True) as workspace:
        rows = import_fastchat(tmp_path / "in", workspace).evaluations
        assert {row.model for row in rows} == set(expected)
        for row in rows:
            found = scores(workspace, row, parity)
            compare(found, expected[row.model])
            for each in categories:
                if each["model"] == row.model:
                    mean = found["category", each["category"]].mean
                    assert mean == pytest.approx(float(each["average"]), abs=1e-9)


@pytest.mark.parametrize("parity", ["safe", "fastchat"])
@pytest.mark.parametrize("baseline", ["", "gpt-3.5-turbo"])
@pytest.mark.runs
def test_the_oracle_votes(tmp_path: Path, parity: str, baseline: str) -> None:
    rows = table(SHARED / "oracle/expected_pair.csv")
    mode = "pairwise-baseline" if baseline else "pairwise-all"
    expected = {
        row["model"]: row
        for row in rows
        if (row["dataset"], row["baseline"]) == ("lmsys_gpt4_pair", baseline)
    }
    votes = SHARED / "oracle/lmsys_gpt4_pair_votes_fastchat.jsonl"
    with Workspace.open(tmp_path / "w", write=True) as workspace:
        evaluations = import_fastchat(votes, workspace, baseline=baseline).evaluations
        chosen = [row for row in evaluations if row.mode == mode]
        games = [game for row in chosen for game in imported_outcomes(workspace, row, parity)]
    found = {
        counts.model: counts
        for counts in tally(matches(games, parity), mode.removeprefix("pairwise-"))
    }
    assert set(found) == set(expected)
    for model, counts in found.items():
        for name in ("win", "loss", "tie", "n"):
            assert getattr(counts, name) == int(expected[model][name])
