import dataclasses
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from paths import ROOT

from mtbench_ray.errors import UserError
from mtbench_ray.schema import (
    AnswerSet,
    BenchmarkData,
    EngineEvent,
    Evaluation,
    Judgment,
    Question,
    Turn,
    Unit,
    encode,
)
from mtbench_ray.workspace.parquet import read_rows
from mtbench_ray.workspace.run_record import RunRecord
from mtbench_ray.workspace.workspace import Workspace


def turn(status: str = "ok", content: str = "text", answer_id: str = "a", number: int = 1) -> Turn:
    return Turn(answer_id, number, "mt_bench", 81, "org/m", 0, content, status)


def judgment(status: str = "ok", text: str = "fine", judgment_id: str = "j") -> Judgment:
    value = 7.0 if status == "ok" else None
    return Judgment(
        judgment_id, judgment_id, "single", "mt_bench", 81, "writing", 1, "org/m", "gpt",
        "single-v1", status, text=text, value=value,
    )  # fmt: skip


def evaluation() -> Evaluation:
    units = (Unit(81, 0, "a"), Unit("q", 0, "b"))
    return Evaluation(
        AnswerSet("org/m", "{}", units), "gpt", "{}", "pairwise-baseline", "d",
        opponent=AnswerSet("base", "{}", (), "import"), error="why",
    )  # fmt: skip


def test_rows_are_there_after_opening_again(tmp_path: Path) -> None:
    text = "x\ud835y \u2028 \x00"
    with Workspace.open(tmp_path / "new" / "w", write=True) as workspace:
        workspace.append(turn(content=text))
        workspace.append(judgment(text=text))
    with Workspace.open(tmp_path / "new" / "w", write=False) as workspace:
        assert workspace.turns["a", 1] == turn(content=text)
        assert workspace.judgments["j"] == judgment(text=text)
        assert workspace.problems == []


@pytest.mark.parametrize(
    ("statuses", "counts"),
    [
        (["ok", "error"], 0),
        (["error", "ok"], 1),
        (["error", "context_overflow"], 1),
        (["ok", "truncated"], 1),
        (["empty", "error", "error"], 0),
    ],
)
def test_the_newest_good_turn_counts(tmp_path: Path, statuses: list[str], counts: int) -> None:
    rows = [turn(status, f"text {n}") for n, status in enumerate(statuses)]
    with Workspace.open(tmp_path, write=True) as workspace:
        for row in rows:
            workspace.append(row)
        assert workspace.turns["a", 1] == rows[counts]
    with Workspace.open(tmp_path, write=False) as workspace:
        assert workspace.turns["a", 1] == rows[counts]
        assert list(read_rows(tmp_path / "answers.jsonl", Turn)) == rows


@pytest.mark.parametrize(
    ("statuses", "counts"),
    [
        (["ok", "unparsed"], 0),
        (["truncated", "ok", "error"], 1),
        (["error", "unparsed"], 1),
        (["unparsed", "error", "refused"], 0),
        (["unparsed", "unparsed", "context_overflow"], 1),
    ],
)
def test_the_newest_good_judgment_counts(tmp_path: Path, statuses: list[str], counts: int) -> None:
    rows = [judgment(status, f"text {n}") for n, status in enumerate(statuses)]
    with Workspace.open(tmp_path, write=True) as workspace:
        for row in rows:
            workspace.append(row)
    with Workspace.open(tmp_path, write=False) as workspace:
        assert dict(workspace.judgments) == {"j": rows[counts]}
        assert list(read_rows(tmp_path / "judgments.jsonl", Judgment)) == rows


def test_newest_is_file_order_when_the_clock_goes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(2_000_000_000, 0, -100_000_000))
    monkeypatch.setattr(time, "time", lambda: float(next(clock)))
    for salt in ("", "fresh", "fresh"):
        with Workspace.open(tmp_path, write=True) as workspace:
            if salt and not workspace.salt:
                workspace.start_over(["x"])
            record = workspace.new_run({}, [], ["x"])
            record.status = "finished"
            workspace.save_run(record)
    with Workspace.open(tmp_path, write=False) as workspace:
        records = workspace.run_records()
        assert [record.number for record in records] == [1, 2, 3]
        assert records[0].started > records[1].started > records[2].started
        assert workspace.salt == records[1].salt == records[2].salt != ""


def test_a_torn_tail_is_cut_back_with_one_warning(tmp_path: Path) -> None:
    with Workspace.open(tmp_path, write=True) as workspace:
        workspace.append(turn())
    path = tmp_path / "answers.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"answer_id": "b", "tur\n\n')
    with Workspace.open(tmp_path, write=True) as workspace:
        assert list(workspace.turns) == [("a", 1)]
        assert len(workspace.problems) == 1
        assert f"{path}:2:" in workspace.problems[0]
    assert path.read_bytes() == whole


def test_a_file_of_junk_does_not_flood_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "answers.jsonl").write_text("junk\n" * 500)
    with Workspace.open(tmp_path, write=False) as workspace:
        assert len(workspace.problems) == 500
    assert len(caplog.records) == 20


def test_opening_with_nothing_to_do_leaves_the_bytes(tmp_path: Path) -> None:
    with Workspace.open(tmp_path, write=True) as workspace:
        workspace.append(turn())
        workspace.append(judgment())
    before = {path: path.read_bytes() for path in tmp_path.glob("*.jsonl")}
    Workspace.open(tmp_path, write=True).close()
    assert {path: path.read_bytes() for path in tmp_path.glob("*.jsonl")} == before


def test_rows_of_a_newer_version_are_refused_and_the_lock_is_given_back(tmp_path: Path) -> None:
    (tmp_path / "answers.jsonl").write_text(encode(turn()).replace('"schema":1', '"schema":9'))
    for write in (True, True, False):
        with pytest.raises(UserError, match="newer version"):
            Workspace.open(tmp_path, write=write)


@pytest.mark.parametrize("root", ["s3://bucket/w", "gs://bucket/w", Path("hdfs://host/w")])
def test_remote_workspaces_are_refused(root: str | Path) -> None:
    for write in (True, False):
        with pytest.raises(UserError, match="local folder"):
            Workspace.open(root, write=write)


def test_reading_needs_a_workspace_and_makes_none(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no workspace"):
        Workspace.open(tmp_path / "absent", write=False)
    assert list(tmp_path.iterdir()) == []


def test_a_second_run_is_refused_and_readers_are_not(tmp_path: Path) -> None:
    with Workspace.open(tmp_path, write=True) as workspace:
        workspace.append(turn())
        with pytest.raises(UserError, match=f"pid {os.getpid()}"):
            Workspace.open(tmp_path, write=True)
        with Workspace.open(tmp_path, write=False) as reader:
            assert ("a", 1) in reader.turns
            with pytest.raises(RuntimeError, match="not open for writing"):
                reader.append(turn())
    Workspace.open(tmp_path, write=True).close()


def test_an_unwritable_folder_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "w"
    folder.mkdir()
    bind = ["mount", "--bind", str(folder), str(folder)]
    if os.geteuid() != 0:
        folder.chmod(0o500)
    elif subprocess.run(bind, capture_output=True).returncode != 0:
        pytest.skip("root ignores modes and may not mount here")
    else:
        subprocess.run(["mount", "-o", "remount,ro,bind", str(folder)], check=True)
    try:
        with pytest.raises(UserError, match="cannot write") as caught:
            Workspace.open(folder, write=True)
        assert "may write" in caught.value.hint
        Workspace.open(folder, write=False).close()
    finally:
        if os.geteuid() == 0:
            subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(workspace: Workspace) -> None:
    for n in range(100):
        workspace.append(turn(content="x" * 3000, answer_id=str(n)))


def test_a_full_disk_loses_no_row(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * 20_000)
    with Workspace.open(small_disk / "w", write=True) as workspace:
        with pytest.raises(UserError, match="No space left") as caught:
            fill(workspace)
        assert "Free some space" in caught.value.hint
        counted = dict(workspace.turns)
        with pytest.raises(UserError, match="No space left"):
            workspace.write_text("summary.json", "x" * 30_000)
    assert counted
    ballast.unlink()
    with Workspace.open(small_disk / "w", write=True) as workspace:
        assert dict(workspace.turns) == counted
        assert workspace.problems == []
        workspace.append(turn(answer_id="new"))


def test_run_records_come_back_equal_and_foreign_ones_are_left_out(tmp_path: Path) -> None:
    with Workspace.open(tmp_path, write=True) as workspace:
        record = workspace.new_run({"judge": {"api_key_env": "KEY"}}, [evaluation()], ["run"])
        record.events.append(EngineEvent("start", "org/m", "0", 1.5))
        workspace.save_run(record)
        junk = {
            "torn": '{"run_id": "2',
            "list": "[]",
            "other": '{"run_id": "x"}',
            "odd": f'{{"run_id": "{record.run_id}", "number": "9", "started": 0}}',
        }
        for name, text in junk.items():
            workspace.write_text(f"runs/{name}/record.json", text)
        assert workspace.run_records() == [record]
        assert workspace.new_run({}, [], []).number == 2
        assert len(workspace.problems) == 4


def test_fresh_runs_change_the_salt_and_go_on_after_a_kill(tmp_path: Path) -> None:
    command = ["run", "fresh=true"]

    def fresh_run(status: str) -> RunRecord:
        with Workspace.open(tmp_path, write=True) as workspace:
            workspace.start_over(command)
            record = workspace.new_run({}, [], command)
            record.status = status
            workspace.save_run(record)
            return record

    killed = fresh_run("running")
    assert fresh_run("interrupted").salt == killed.salt
    done = fresh_run("finished")
    assert done.salt == killed.salt
    assert fresh_run("finished").salt != done.salt


def test_a_planted_key_is_nowhere(tmp_path: Path) -> None:
    key = "sk-planted-0123456789"
    with Workspace.open(tmp_path, write=True, secrets=[f"{key}\n"]) as workspace:
        workspace.append(turn("error", content=f"401 {key}"))
        workspace.append(judgment("error", text=f"{key}"))
        record = workspace.new_run({"header": key}, [evaluation()], [f"judge.key={key}"])
        workspace.save_run(record)
        timeline = workspace.timeline(record.run_id)
        timeline.add("error", message=f"bad {key}")
        timeline.close()
        workspace.write_text("summary.json", key)
        workspace.write_parquet()
        assert workspace.turns["a", 1].content == "401 ***"
    found = subprocess.run(["grep", "-r", key, str(tmp_path)], capture_output=True)
    assert (found.returncode, found.stdout) == (1, b"")


def test_snapshots_come_back_equal_or_not_at_all(tmp_path: Path) -> None:
    questions = (Question("mt_bench", 81, "writing", ("a\ud835", "b"), references=("r",)),)
    data = BenchmarkData("mt_bench", questions, "fastchat", "{}\n", {"questions": "q.jsonl"})
    with Workspace.open(tmp_path, write=True) as workspace:
        name = workspace.save_data(data)
        assert workspace.save_data(data) == name
        assert workspace.load_data(name) == data
        path = tmp_path / "data" / f"{name}.json"
        path.write_text(path.read_text().replace("writing", "cooking"))
        for bad in (name, "0" * 32, "../answers"):
            with pytest.raises(UserError):
                workspace.load_data(bad)


@pytest.mark.parametrize("broken", ["{", None])
def test_a_broken_snapshot_is_written_anew_by_the_next_run(
    tmp_path: Path, broken: str | None
) -> None:
    data = BenchmarkData("mt_bench", (), "fastchat", "{}\n", {})
    with Workspace.open(tmp_path, write=True) as workspace:
        path = tmp_path / "data" / f"{workspace.save_data(data)}.json"
    path.unlink()
    if broken:
        path.write_text(broken)
    with Workspace.open(tmp_path, write=True) as workspace:
        assert workspace.load_data(workspace.save_data(data)) == data
        before = path.stat().st_mtime_ns
        workspace.save_data(data)
        assert path.stat().st_mtime_ns == before


@pytest.mark.parametrize("key", ["judgment_id", "finish_reason_of_j", "12345678"])
def test_a_key_that_a_row_is_made_of_leaves_the_row(tmp_path: Path, key: str) -> None:
    row = dataclasses.replace(judgment(text=f"bad {key}"), created=1712345678.5)
    with Workspace.open(tmp_path, write=True, secrets=[key]) as workspace:
        workspace.append(row)
    with Workspace.open(tmp_path, write=False) as workspace:
        (kept,) = workspace.judgments.values()
    hidden = key if key == "judgment_id" else "***"
    assert kept == dataclasses.replace(row, text=f"bad {hidden}")


def test_a_plan_writes_no_snapshot(tmp_path: Path) -> None:
    data = BenchmarkData("mt_bench", (), "fastchat", "", {})
    with Workspace.open(tmp_path, write=False) as workspace:
        assert workspace.load_data(workspace.save_data(data)) == data
    assert list(tmp_path.iterdir()) == []


def test_a_snapshot_with_a_secret_is_found_again(tmp_path: Path) -> None:
    data = BenchmarkData("mt_bench", (), "fastchat", "say sk-planted-0123", {})
    with Workspace.open(tmp_path, write=True, secrets=["sk-planted-0123"]) as workspace:
        assert workspace.load_data(workspace.save_data(data)).judge_prompts == "say ***"


def test_paths_out_of_the_workspace_are_refused(tmp_path: Path) -> None:
    with Workspace.open(tmp_path, write=True) as workspace:
        record = workspace.new_run({}, [], [])
        record.run_id = "../../x"
        with pytest.raises(UserError, match="run id"):
            workspace.save_run(record)
        with pytest.raises(UserError, match="run id"):
            workspace.timeline("..")


def test_kill_of_the_writer_loses_nothing_and_doubles_nothing(tmp_path: Path) -> None:
    code = (
        "import sys; from mtbench_ray.schema import Turn\n"
        "from mtbench_ray.workspace.workspace import Workspace\n"
        "with Workspace.open(sys.argv[1], write=True) as workspace:\n"
        "    for n in range(len(workspace.turns), 100_000):\n"
        "        workspace.append(Turn(str(n), 1, 'b', n, 'm', 0, 'x' * 5000, 'ok'))\n"
        "        print(n, flush=True)\n"
    )
    dice = random.Random(6)
    told = -1
    for _ in range(8):
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, cwd=ROOT
        )
        assert process.stdout is not None
        assert process.stdout.readline()
        time.sleep(dice.uniform(0, 0.05))
        process.kill()
        output = process.stdout.read().split()
        process.wait()
        told = max(told, *(int(n) for n in output), 0)
    Workspace.open(tmp_path, write=True).close()
    counted = Counter(row.answer_id for row in read_rows(tmp_path / "answers.jsonl", Turn))
    assert set(counted.values()) == {1}
    assert len(counted) in (told + 1, told + 2)
    assert set(counted) == {str(n) for n in range(len(counted))}


def test_judge_prompts_stay_on_disk_and_are_there_when_asked_for(tmp_path: Path) -> None:
    row = judgment(judgment_id="a")
    with Workspace.open(tmp_path, write=True) as workspace:
        for name in ("a", "b"):
            workspace.append(
                dataclasses.replace(judgment(judgment_id=name), user_prompt=f"rate \ud835 {name}")
            )
        assert workspace.judgments["b"].user_prompt == "rate \ud835 b"
        held = [item.user_prompt for item in workspace._judgments.values()]
        assert held == ["", ""]
    with Workspace.open(tmp_path, write=False) as workspace:
        assert [item.user_prompt[-1] for item in workspace.judgments.values()] == ["a", "b"]
        (tmp_path / "judgments.jsonl").write_text("{}\n")
        with pytest.raises(UserError, match="changed while"):
            workspace.judgments[row.judgment_id]


def test_equal_texts_of_rows_are_held_once(tmp_path: Path) -> None:
    text = "an answer that is long enough"
    first = dataclasses.replace(turn(content=text), raw="".join([*text]))
    second = dataclasses.replace(
        turn(content="more", number=2), raw="<think>x</think>more", history=("".join([*text]),)
    )
    verdict = dataclasses.replace(judgment(), user_prompt="asked", match_id="".join("j"))
    workspaces = []
    with Workspace.open(tmp_path, write=True) as written:
        for row in (first, second, verdict):
            written.append(row)
        workspaces.append(written)
    with Workspace.open(tmp_path, write=False) as read_again:
        assert read_again.judgments["j"] == verdict
        workspaces.append(read_again)
    for workspace in workspaces:
        one, two = workspace.turns["a", 1], workspace.turns["a", 2]
        assert (one, two) == (first, second)
        assert one.raw is one.content is two.history[0]
        assert two.raw is not two.content
        assert one.model is two.model is workspace.verdicts["j"].model
        assert workspace.verdicts["j"].user_prompt == ""


@pytest.mark.parametrize("answer", [["a"], {}, None, 1])
def test_a_row_whose_answer_has_no_name_is_left_out(answer: object, tmp_path: Path) -> None:
    row = json.loads(encode(dataclasses.replace(turn(number=2), history=("x",))))
    (tmp_path / "answers.jsonl").write_text(json.dumps(row | {"answer_id": answer}) + "\n")
    with Workspace.open(tmp_path, write=False) as workspace:
        assert not workspace.turns
        assert "answer_id has a value of a wrong type" in workspace.problems[0]
