"""A reply that this program has read is not read again; any other one is."""

import dataclasses

import pytest
from verdicts import judged, prompt_file, slot, view

from mtbench_ray.config import JudgeConfig
from mtbench_ray.errors import EXIT_OK, EXIT_PARTIAL
from mtbench_ray.judges import outcomes
from mtbench_ray.judges.outcomes import read_again, with_proof
from mtbench_ray.judges.pairwise import Pairwise
from mtbench_ray.judges.prompts import load_prompts
from mtbench_ray.judges.single import Single
from mtbench_ray.reports import shown


@pytest.fixture
def reads(monkeypatch):
    """The ids of judgments whose replies are read, from now on."""
    found = []
    for kind in (Single, Pairwise):

        def read(self, asked, view, reply, real=kind.read):
            found.append(asked.judgment_id)
            return real(self, asked, view, reply)

        monkeypatch.setattr(kind, "read", read)
    return found


def another_program(monkeypatch):
    monkeypatch.setattr(outcomes, "program", lambda: "another")
    outcomes._way.cache_clear()


@pytest.fixture(autouse=True)
def fresh_ways():
    yield
    outcomes._way.cache_clear()


@pytest.mark.parametrize("mode", ["single", "pairwise-all"])
def test_a_report_reads_no_reply_that_the_run_has_read(mode, cli, reads, monkeypatch):
    cli.stub.script.first = ("empty", "cut", "garbage", "filter", "500", "ok", "cut", "empty")
    line = ["-m", "model=org/a,org/b", f"mode={mode}", "judge.max_retries=0"]
    assert cli(*line, "judge.parse_retries=0") == EXIT_PARTIAL
    rows = cli.rows("judgments.jsonl")
    with_text = [row["judgment_id"] for row in rows if row["text"]]
    assert {row["judgment_id"] for row in rows if row["read_as"]} == set(with_text)
    kept = cli.workspace / shown.FILE

    def report(*words):
        kept.unlink(missing_ok=True)
        reads.clear()
        assert cli.verb("report", "format=json", *words) in (EXIT_OK, EXIT_PARTIAL)
        return cli.out

    whole = report()
    assert reads == []
    report("parity=fastchat")
    assert set(reads) == set(with_text), "rows hold what parity safe reads"
    another_program(monkeypatch)
    assert report() == whole
    assert set(reads) == set(with_text)


def test_a_run_with_nothing_pending_reads_nothing(cli, reads):
    assert cli("model=org/a") == 0
    reads.clear()
    assert cli("model=org/a") == 0
    assert cli.calls == 0
    assert reads == []


USUAL = view(prompts=load_prompts("own", prompt_file()))


def read_now(text="Rating: [[2]] [T]or Rating: [[9]]", value=9.0):
    return with_proof(USUAL, judged(slot(), value, f"{value:g}", text=text).judgment)


def tagged():
    """The same evaluation with a judge that thinks between other tags."""
    tags = {"thinking_open": "[T]", "thinking_close": "[/T]"}
    row = dataclasses.replace(USUAL.evaluation, judge_settings=str(tags))
    return dataclasses.replace(USUAL, judge=JudgeConfig(model="j", **tags), evaluation=row)


def test_other_settings_read_again():
    row = read_now()
    assert row.read_as
    assert read_again(USUAL, row) is row
    assert read_again(tagged(), row).value == 2


@pytest.mark.parametrize(
    "change", [{"text": "Rating: [[3]]"}, {"finish_reason": "length"}, {"value": 4.0},
               {"label": "4"}, {"status": "unparsed"}],
)  # fmt: skip
def test_a_row_that_was_changed_by_hand_is_read_again(change, reads):
    row = dataclasses.replace(read_now(), **change)
    reads.clear()
    read_again(USUAL, row)
    assert reads == [row.judgment_id]


def test_what_would_be_read_in_another_way_gets_no_proof():
    assert read_now(value=7.0).read_as == ""
    assert read_now(text="I do not know.", value=7.0).read_as == ""
    assert with_proof(tagged(), read_now()).read_as == ""
