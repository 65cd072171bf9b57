import json
import secrets
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtbench_ray.errors import UserError
from mtbench_ray.schema import Judgment, Turn, encode
from mtbench_ray.workspace import parquet
from mtbench_ray.workspace.parquet import mistyped, read_rows, write_table


def turn(**fields: Any) -> Turn:
    values: dict[str, Any] = {
        "answer_id": "a", "turn": 1, "benchmark": "mt_bench", "question_id": 81, "model": "m",
        "sample": 0, "content": "text", "status": "ok",
    }  # fmt: skip
    return Turn(**(values | fields))


def judgment(**fields: Any) -> Judgment:
    values: dict[str, Any] = {
        "judgment_id": "j", "match_id": "j", "mode": "single", "benchmark": "mt_bench",
        "question_id": "q-1", "category": "writing", "turn": 1, "model": "m", "judge": "gpt",
        "judge_prompt": "single-v1", "status": "ok", "value": 7.5, "label": "7.5",
    }  # fmt: skip
    return Judgment(**(values | fields))


def test_rows_of_both_kinds_come_back_equal(tmp_path: Path) -> None:
    turns = [
        turn(history=("one", ""), seed=2**40, compliant=None),
        turn(question_id="81", reasoning="why", compliant=False, content="\u2028\x00é"),
        turn(question_id=10**30, latency_s=1),
    ]
    judgments = [judgment(answer_ids=("a", "b")), judgment(value=None, label=None, cost_usd=0.5)]
    write_table(tmp_path / "t.parquet", Turn, turns)
    write_table(tmp_path / "j.parquet", Judgment, judgments)
    assert list(read_rows(tmp_path / "t.parquet", Turn)) == turns
    assert list(read_rows(tmp_path / "j.parquet", Judgment)) == judgments


def test_the_schema_does_not_depend_on_the_rows(tmp_path: Path) -> None:
    from pyarrow import parquet

    write_table(tmp_path / "empty.parquet", Turn, [])
    write_table(tmp_path / "one.parquet", Turn, [turn()])
    schema = parquet.read_schema(tmp_path / "empty.parquet")
    assert schema == parquet.read_schema(tmp_path / "one.parquet")
    assert str(schema.field("history").type) == "list<element: string>"
    assert not schema.field("answer_id").nullable
    assert schema.field("seed").nullable
    meta = parquet.ParquetFile(tmp_path / "one.parquet").metadata
    assert meta.row_group(0).column(0).compression == "ZSTD"


def test_lone_surrogates_are_replaced_and_flagged(tmp_path: Path) -> None:
    from pyarrow import parquet

    path = tmp_path / "t.parquet"
    write_table(path, Turn, [turn(content="x\ud835y"), turn(history=("\udc00",)), turn()])
    rows = parquet.read_table(path).to_pylist()
    assert [row["replaced"] for row in rows] == [True, True, False]
    assert rows[0]["content"] == "x\ufffdy"


def test_many_rows_go_out_in_batches(tmp_path: Path) -> None:
    from pyarrow import parquet

    path = tmp_path / "t.parquet"
    write_table(path, Turn, (turn(answer_id=str(n)) for n in range(2500)))
    assert parquet.ParquetFile(path).metadata.num_row_groups == 3
    assert [row.answer_id for row in read_rows(path, Turn)] == [str(n) for n in range(2500)]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=2, max_size=2))
def test_any_text_survives(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> None:
    path = tmp_path_factory.getbasetemp() / "any.parquet"
    rows = [turn(content=texts[0], history=(texts[1],), question_id=texts[1])]
    write_table(path, Turn, rows)
    assert list(read_rows(path, Turn)) == rows


def test_values_of_a_wrong_type_are_named() -> None:
    assert mistyped(turn(latency_s=1, question_id="x")) is None
    wrong: dict[str, Any] = {
        "status": ["ok"], "turn": True, "content": None, "seed": 2**63, "history": (1,),
        "sampling": {}, "question_id": 1.5, "compliant": 1,
    }  # fmt: skip
    for name, value in wrong.items():
        assert mistyped(turn(**{name: value})) == name


def test_a_journal_with_foreign_rows_gives_the_good_ones(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    older = json.loads(encode(turn()))
    del older["schema"], older["run_id"]
    rows = [
        older | {"extra": 1},
        {"no": "turn"},
        older | {"status": ["ok"]},
        older | {"schema": "x"},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    problems: list[str] = []
    assert list(read_rows(path, Turn, problems.append)) == [turn()]
    assert [problem.split(":")[1] for problem in problems] == ["2", "3", "4"]


def test_rows_of_a_newer_version_are_refused(tmp_path: Path) -> None:
    (tmp_path / "answers.jsonl").write_text(encode(turn(schema=2)) + "\n")
    write_table(tmp_path / "answers.parquet", Turn, [turn(schema=2)])
    for name in ("answers.jsonl", "answers.parquet"):
        with pytest.raises(UserError, match="newer version") as caught:
            list(read_rows(tmp_path / name, Turn))
        assert "Upgrade" in caught.value.hint


def test_a_full_disk_leaves_the_old_table(small_disk: Path) -> None:
    path = small_disk / "t.parquet"
    write_table(path, Turn, [turn()])
    noise = [turn(content=secrets.token_hex(2000), answer_id=str(n)) for n in range(100)]
    with pytest.raises(UserError, match="No space left") as caught:
        write_table(path, Turn, noise)
    assert "Free some space" in caught.value.hint
    assert list(read_rows(path, Turn)) == [turn()]
    assert [entry.name for entry in small_disk.iterdir()] == ["t.parquet"]


def test_a_file_that_is_no_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(b"PAR1 not really")
    for name in ("x.parquet", "absent.parquet"):
        with pytest.raises(UserError, match="cannot read"):
            list(read_rows(tmp_path / name, Turn))


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.sampled_from([2**63, -(2**63), -(2**63) - 1]),
    st.floats(allow_nan=False), st.text(max_size=3), st.just(("a", "b")), st.just(("a", 1)),
    st.just([]), st.just({}),
)  # fmt: skip
FIELDS = st.sampled_from(
    ["question_id", "turn", "content", "seed", "history", "latency_s", "compliant", "error"]
)


@given(st.lists(st.dictionaries(FIELDS, VALUES, max_size=3), min_size=1, max_size=20))
def test_what_earlier_rows_were_like_changes_no_check(changes: list[dict[str, Any]]) -> None:
    parquet._RIGHT.clear()
    rows = [turn(**fields) for fields in changes]
    assert [mistyped(row) for row in rows] == [parquet._mistyped(row) for row in rows]
