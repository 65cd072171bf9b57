import json
import multiprocessing
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paths import ROOT

from mtbench_ray.errors import UserError
from mtbench_ray.workspace.journal import Journal, read, replacing, well_formed

ROWS = [{"n": 1, "text": "plain"}, {"n": 2, "text": "\ud835 \u2028\x00"}, {"n": 3, "text": "é"}]


def lines(rows: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def rows_of(path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    problems: list[str] = []
    return [row for _, row in read(path, problems.append)], problems


def test_rows_come_back_equal(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    with Journal(path) as journal:
        for row in ROWS:
            journal.append(json.dumps(row))
    assert rows_of(path) == (ROWS, [])
    assert path.read_bytes().count(b"\n") == 3


def test_unicode_line_separators_do_not_split_a_row(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    text = "p\u2028q\u0085r\x0bs\x00t\u2029"
    path.write_bytes(json.dumps({"text": text}, ensure_ascii=False).encode() + b"\n")
    assert rows_of(path) == ([{"text": text}], [])


def test_crlf_bom_and_blank_lines_are_taken(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"n": 1}\r\n\r\n  \n\n{"n": 2}')
    assert [number for number, _ in read(path)] == [1, 5]
    assert rows_of(path) == ([{"n": 1}, {"n": 2}], [])


def test_broken_middle_lines_are_named_and_left_out(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    deep = b"[" * 100_000
    path.write_bytes(b'{"n": 1}\n{"n": \n[1]\n' + deep + b'\n\x00\x00\n{"n": 2}\n')
    rows, problems = rows_of(path)
    assert rows == [{"n": 1}, {"n": 2}]
    assert [problem.split(":")[1] for problem in problems] == ["2", "3", "4", "5"]
    assert all(problem.startswith(str(path)) for problem in problems)


def test_a_row_with_a_number_that_is_none_is_a_broken_line(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    bad = ["NaN", "Infinity", "-Infinity", "1e999"]
    path.write_text("".join(f'{{"n": {number}}}\n' for number in [*bad, "1.5e3"]))
    rows, problems = rows_of(path)
    assert rows == [{"n": 1500.0}]
    assert len(problems) == len(bad)


def test_bytes_that_are_not_utf8_do_not_stop_the_reader(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    path.write_bytes(b'{"t": "caf\xe9"}\n{"t": "\xed\xa0\xb5"}\n')
    rows, problems = rows_of(path)
    assert rows == [{"t": "caf\ufffd"}, {"t": "\ud835"}]
    assert len(problems) == 1
    assert f"{path}:1:" in problems[0]


def test_torn_at_every_byte(tmp_path: Path) -> None:
    whole = lines(ROWS)
    ends = [len(lines(ROWS[:n])) for n in range(len(ROWS) + 1)]
    for cut in range(len(whole) + 1):
        path = tmp_path / "j.jsonl"
        path.write_bytes(whole[:cut])
        # A row whose line end alone is missing is complete.
        kept = max(n for n, end in enumerate(ends) if end <= cut + (n > 0))
        torn = cut not in (ends[kept], ends[kept] - 1)
        before, warned = rows_of(path)
        assert (before, len(warned)) == (ROWS[:kept], int(torn)), cut
        problems: list[str] = []
        with Journal(path, problem=problems.append) as journal:
            journal.append('{"n": 9}')
        assert rows_of(path) == ([*ROWS[:kept], {"n": 9}], []), cut
        assert len(problems) == int(torn)
        if torn:
            assert f"{path}:{kept + 1}:" in problems[0]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.text(max_size=30), max_size=5),
    st.sampled_from([b"", b"\n", b"\r\n", b"\n\n  \n", b"\x00\x00", b"\x00\n"]),
    st.data(),
)
def test_any_torn_tail(texts: list[str], after: bytes, data: st.DataObject) -> None:
    rows = [{"t": text} for text in texts]
    torn = json.dumps({"t": data.draw(st.text(max_size=30))}).encode()
    torn = torn[: data.draw(st.integers(1, len(torn) - 1))]
    problems: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "j.jsonl"
        path.write_bytes(lines(rows) + torn + after)
        Journal(path, problem=problems.append).close()
        assert rows_of(path) == (rows, [])
    assert len(problems) == 1


def test_a_long_torn_row_is_cut_back(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    path.write_bytes(b'{"n": 1}\n{"t": "' + b"x" * 300_000)
    Journal(path, problem=lambda problem: None).close()
    assert path.read_bytes() == b'{"n": 1}\n'


def test_a_broken_row_in_the_middle_is_kept_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    path.write_bytes(b'{"n": \n{"n": 2}\n')
    with Journal(path) as journal:
        journal.append('{"n": 3}')
    assert path.read_bytes() == b'{"n": \n{"n": 2}\n{"n": 3}\n'


def test_more_than_one_line_is_refused(tmp_path: Path) -> None:
    with Journal(tmp_path / "j.jsonl") as journal, pytest.raises(ValueError, match="one line"):
        journal.append('{"a":\n1}')


def write_rows(path: Path, writer: int, start: Any) -> None:
    with Journal(path) as journal:
        start.wait()
        for row in range(200):
            journal.append(json.dumps({"writer": writer, "row": row, "text": "x" * 20_000}))


def test_eight_writers_of_one_file_do_not_mix_lines(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    spawn = multiprocessing.get_context("spawn")
    start = spawn.Barrier(8)
    writers = [spawn.Process(target=write_rows, args=(path, n, start)) for n in range(8)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(120)
    rows, problems = rows_of(path)
    assert problems == []
    assert sorted((row["writer"], row["row"]) for row in rows) == [
        (writer, row) for writer in range(8) for row in range(200)
    ]


def fill(journal: Journal, row: str) -> None:
    for _ in range(100):
        journal.append(row)


def test_full_disk_keeps_what_is_there_and_goes_on_when_there_is_room(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * 30_000)
    path = small_disk / "j.jsonl"
    row = json.dumps({"t": "x" * 3_000})
    with Journal(path) as journal:
        with pytest.raises(UserError, match="No space left") as caught:
            fill(journal, row)
        written = path.stat().st_size // (len(row) + 1)
        assert "Free some space" in caught.value.hint
        assert written > 0
        assert path.read_bytes() == (row + "\n").encode() * written
        ballast.unlink()
        journal.append(row)
    assert path.read_bytes() == (row + "\n").encode() * (written + 1)


def test_full_disk_leaves_the_old_file(small_disk: Path) -> None:
    path = small_disk / "summary.json"
    path.write_text("old")
    with pytest.raises(UserError, match="No space left"), replacing(path) as temporary:
        temporary.write_bytes(b"x" * 100_000)
    assert path.read_text() == "old"
    assert [entry.name for entry in small_disk.iterdir()] == ["summary.json"]


def test_a_partly_written_row_is_taken_back(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    journal = Journal(path)
    journal.append('{"n": 1}')
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(UserError, match=r"j\.jsonl"):
            journal.append(json.dumps({"t": "x" * 200}))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == b'{"n": 1}\n'
    journal.close()


def test_things_in_the_way_are_refused(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    victim = tmp_path / "victim"
    victim.write_text("precious, no line end")
    (tmp_path / "link").symlink_to(victim)
    for name in ("folder", "pipe", "link", "victim/below"):
        with pytest.raises(UserError, match=name):
            Journal(tmp_path / name)
    with pytest.raises(UserError, match="pipe"):
        list(read(tmp_path / "pipe"))
    with pytest.raises(UserError, match="absent"):
        list(read(tmp_path / "absent"))
    assert victim.read_text() == "precious, no line end"


def test_a_deleted_journal_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    journal = Journal(path, sync_s=0.0)
    path.unlink()
    with pytest.raises(UserError, match="deleted"):
        journal.append('{"n": 1}')
    with pytest.raises(UserError, match="deleted"):
        journal.close()


def test_rows_of_a_killed_writer_are_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    code = (
        "import os, signal, sys; from pathlib import Path\n"
        "from mtbench_ray.workspace.journal import Journal\n"
        "journal = Journal(Path(sys.argv[1])); journal.append('{\"n\": 1}')\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=False, cwd=ROOT)
    assert rows_of(path) == ([{"n": 1}], [])


def test_replacing_writes_whole_files_only(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    with replacing(path) as temporary:
        temporary.write_text("one")
    with pytest.raises(ZeroDivisionError), replacing(path) as temporary:
        temporary.write_text(str(1 / 0))
    assert path.read_text() == "one"
    assert [entry.name for entry in path.parent.iterdir()] == ["file"]


def test_well_formed() -> None:
    assert well_formed("x\ud835y\udc00") == "x\ufffdy\ufffd"
    assert well_formed("\ud835\udc00") == "\U0001d400"
    assert well_formed("\ufeffa\x00\u2028") == "\ufeffa\x00\u2028"
