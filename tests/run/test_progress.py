"""The display of a run, on a terminal and in a log."""

import io
import os
import pty
import re
import select
import subprocess
import sys
import time

import pytest
from paths import ROOT
from stub_server import StubServer

from mtbench_ray.cli.main import main
from mtbench_ray.planning.plan import Board
from mtbench_ray.run import progress as module
from mtbench_ray.run.progress import Progress, _span
from mtbench_ray.run.standings import Count
from mtbench_ray.schema import AnswerSet, EngineEvent, Evaluation

pytestmark = pytest.mark.runs

ODD = "a[red]b[/nothing] \x1b[2J$x$ 模型"


@pytest.fixture
def stub():
    with StubServer() as server:
        yield server


@pytest.fixture
def line(stub, questions, references, tmp_path):
    return [
        "engine=fake", f"question_path={questions}", f"reference_path={references}",
        f"workspace={tmp_path / 'work'}", "judge=openai", "judge.model=stub",
        f"judge.base_url={stub.url}",
    ]  # fmt: skip


def on_a_terminal(args, size=(24, 100), **environment):
    """Output of a command line on a pseudo terminal, and its exit code."""
    leader, follower = pty.openpty()
    os.set_blocking(leader, False)
    process = subprocess.Popen(
        [sys.executable, "-m", "mtbench_ray", *args],
        stdin=follower, stdout=subprocess.DEVNULL, stderr=follower,
        cwd=ROOT,
        env={**os.environ, "TERM": "xterm", "LINES": str(size[0]), "COLUMNS": str(size[1]),
             **environment},
    )  # fmt: skip
    os.close(follower)
    shown = b""
    while process.poll() is None or select.select([leader], [], [], 0.2)[0]:
        try:
            shown += os.read(leader, 65536)
        except BlockingIOError:
            time.sleep(0.02)
        except OSError:
            break
    os.close(leader)
    return shown.decode(), process.wait(10)


def test_in_a_log_each_model_gets_one_line_and_the_end_is_said_once(line, capsys):
    names = ["/ckpts/of/one/long/run/step_100", "/ckpts/of/one/long/run/step_200"]
    assert main(["-m", f"model={','.join(names)}", *line]) == 0
    lines = capsys.readouterr().err.splitlines()
    done = [text for text in lines if text.startswith("done")]
    assert sorted(text.split()[-1] for text in done) == ["…/step_100", "…/step_200"]
    assert [text.split()[1] for text in done] == ["1/2", "2/2"]
    assert all("8/8 scored" in text and "average" in text for text in done)
    assert len([text for text in lines if "models 2/2" in text]) == 1
    assert "turns 16/16  judged 16/16" in lines[-1]
    assert "\x1b" not in "".join(lines)
    # Seven lines say what the run is.
    assert len(lines) <= 5 + 7


def test_the_average_of_the_line_is_that_of_the_table(line, capsys):
    assert main(["model=org/m", "judge.samples=2", *line]) == 0
    shown = capsys.readouterr()
    average = re.search(r"average +([\d.]+)", shown.err)[1]
    row = next(text for text in shown.out.splitlines() if text.startswith("org/m"))
    assert row.split()[4] == average


def test_the_mean_so_far_is_read_as_the_table_is(line, stub, capsys):
    def means(*more):
        assert main(["model=org/m", *line, *more]) == 0
        shown = capsys.readouterr()
        row = next(text for text in shown.out.splitlines() if text.startswith("org/m"))
        return re.findall(r"(?:average|mean so far) +([\d.]+)", shown.err), row.split()[4]

    stub.script.text = "Rating: [[2]] [T]or Rating: [[9]]"
    tags = ["judge.thinking_open='[T]'", "judge.thinking_close='[/T]'"]
    assert means("limit=1") == (["9.00", "9.00"], "9.00")
    # the first question's stored replies are read again with these tags
    assert means("limit=2", *tags) == (["2.00", "2.00"], "2.00")
    stub.script.text = "I give it [7]."
    fastchat = ["judge.model=other", "parity=fastchat", "workspace=" + line[3][10:] + "_other"]
    assert means("limit=1", *fastchat) == (["7.00", "7.00"], "7.00")
    assert means("limit=2", *fastchat) == (["7.00", "7.00"], "7.00")


def test_a_rerun_counts_what_is_there(line, capsys):
    assert main(["model=org/a", *line]) == 0
    capsys.readouterr()
    assert main(["-m", "model=org/a,org/b", *line]) == 0
    lines = capsys.readouterr().err.splitlines()
    first = next(text for text in lines if text.startswith("done"))
    assert first.startswith("done 1/2")
    assert first.endswith("org/a")
    assert "turns 16/16  judged 16/16" in lines[-1]


def test_a_bad_model_says_so_at_once_in_its_line(line, capsys):
    faults = "engine.fake_faults={models: [org/bad], fail_start: no room}"
    assert main(["-m", "model=org/bad,org/b", faults, *line]) == 3
    err = capsys.readouterr().err
    (bad,) = [text for text in err.splitlines() if text.startswith("done") and "org/bad" in text]
    assert "n/a  0/8 scored (8 answer_error)" in bad


def test_two_judges_are_told_apart(line, capsys):
    assert main(["-m", "model=org/a", *line, "judge.model=one,two"]) == 0
    done = [text for text in capsys.readouterr().err.splitlines() if text.startswith("done")]
    assert sorted(text.split()[-1] for text in done) == ["one", "two"]


def test_pairs_name_their_opponent_and_count_its_turns(line, capsys):
    pair = ["mode=pairwise-baseline", "baseline=org/a"]
    assert main(["-m", "model=org/a,org/b", *pair, *line]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert any(text.endswith("org/b against org/a") for text in lines)
    assert "turns 16/16  judged 16/16" in lines[-1]


def test_quiet_shows_nothing_but_what_went_wrong(line, stub, capsys):
    assert main(["model=org/m", "quiet=true", *line]) == 0
    assert capsys.readouterr().err == ""
    stub.script.always = "401"
    assert main(["model=org/n", "quiet=true", *line]) == 3
    err = capsys.readouterr().err
    assert "stopped" in err
    assert "turns" not in err


def test_on_a_terminal_one_line_is_renewed_and_the_table_grows(line):
    slow = ["engine.fake_seconds_per_token=0.003", "sampling.max_tokens=300"]
    shown, code = on_a_terminal(["-m", "model=org/a,org/b", *slow, *line])
    assert code == 0, shown
    assert shown.count("\x1b[2K") > 3, "no line was renewed"
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    assert [text.split()[1] for text in plain.splitlines() if text.startswith("done")] == [
        "1/2", "2/2",
    ]  # fmt: skip
    last = [text for text in plain.split("\n") if "models 2/2" in text][-1]
    assert "judged 16/16" in last
    assert plain.rstrip().endswith(last.strip())


def test_a_narrow_terminal_cuts_the_line_and_a_dumb_one_gets_plain_lines(line, tmp_path):
    shown, code = on_a_terminal(["model=org/a", *line], size=(24, 30))
    assert code == 0, shown
    shown, code = on_a_terminal(["model=org/b", *line], TERM="dumb")
    assert code == 0, shown
    assert "\x1b[2K" not in shown


def a_display(monkeypatch, clock, **more):
    """A display of one failed model, with a clock and a log of its own."""
    log = io.StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    row = Evaluation(AnswerSet(ODD, "{}", ()), "", "{}", "answers", "", error=f"no {ODD}")
    return Progress([row], Board([], {}), None, quiet=False, **more), log


def test_odd_names_do_no_harm(monkeypatch):
    shown, log = a_display(monkeypatch, [0.0])
    with shown:
        shown.engine(EngineEvent("failed", ODD, "0", 1.0, detail=f"{ODD}\nsecond\ud800line"))
    text = log.getvalue()
    assert "a[red]b[/nothing] ?[2J$x$ 模型" in text
    assert "\x1b" not in text
    assert "second?line" in text


def test_the_time_left_waits_for_some_rows_and_goes_by_the_last_minutes(monkeypatch):
    clock = [0.0]
    shown, log = a_display(monkeypatch, clock)
    judged = shown._standings.verdicts["j"] = Count(wanted=104)
    with shown:
        for second in range(1, 241):
            clock[0] = float(second)
            # Four in the first minute, then one in two seconds.
            judged.done = min(second // 15, 4) + max(0, second - 60) // 2
            shown.tick()
            if second == 60:
                assert "left" not in log.getvalue()
            if second == 240:
                assert log.getvalue().splitlines()[-1].endswith("about 20 s left")


def test_nothing_is_said_of_the_time_left_when_rows_stay_away_or_all_is_over(monkeypatch):
    clock = [0.0]
    shown, log = a_display(monkeypatch, clock)
    fast, slow = (Count(wanted=100) for _ in "ab")
    shown._standings.verdicts |= {"fast": fast, "slow": slow}
    with shown:
        for second in range(1, 106):
            clock[0] = float(second)
            if second <= 60:
                fast.done, slow.done = second, second // 6
            shown.tick()
            if second == 60:
                # By the slow one: 90 more, one in six seconds.
                assert log.getvalue().splitlines()[-1].endswith("about 9 min left")
    lines = log.getvalue().splitlines()
    assert "left" not in lines[-1]
    assert "left" not in lines[-2]


def test_equal_answers_are_all_counted_when_their_one_verdict_is_there(line, capsys):
    replies = ", ".join(f"{number}: [one, two]" for number in (1, 2, 3, 4))
    same = ["sampling.samples=2", f"engine.fake_faults={{replies: {{{replies}}}}}"]
    assert main(["model=org/a", *line, *same]) == 0
    shown = capsys.readouterr()
    assert "judged 16/16" in shown.err.splitlines()[-1]
    mean = re.search(r"mean so far ([\d.]+)", shown.err.splitlines()[-1])[1]
    assert next(t for t in shown.out.splitlines() if t.startswith("org/a")).split()[4] == mean


def test_a_log_gets_a_few_lines_a_minute(monkeypatch):
    clock = [0.0]
    shown, log = a_display(monkeypatch, clock)
    with shown:
        for second in range(120):
            clock[0] = float(second)
            shown.tick()
            shown.engine(EngineEvent("swap", "m", "0", 1.0))
    lines = log.getvalue().splitlines()
    assert len([text for text in lines if " turns " in text]) == 120 // 15 - 1
    assert len([text for text in lines if "engine swap" in text]) == 120 // 15


def test_a_long_start_of_engines_is_said(line, monkeypatch, capsys):
    monkeypatch.setattr(module, "PLAIN_EVERY_S", 0.1)
    assert main(["model=m", "engine.fake_faults.slow_start=1.5", *line]) == 0
    lines = capsys.readouterr().err.splitlines()
    starting = [number for number, text in enumerate(lines) if "engines are starting" in text]
    started = [number for number, text in enumerate(lines) if text.startswith("engine start")]
    assert starting
    assert max(starting) < min(started)


@pytest.mark.parametrize(
    ("seconds", "words"), [(7.4, "7 s"), (99, "99 s"), (601, "10 min"), (7300, "2 h 2 min")]
)
def test_times_in_words(seconds, words):
    assert _span(seconds) == words


def test_tokens_are_counted_while_no_turn_has_ended(monkeypatch):
    clock = [0.0]
    shown, log = a_display(monkeypatch, clock)
    shown._standings.turns_wanted = 4
    with shown:
        for second in (10.0, 20.0):
            clock[0] = second
            for engine in ("host 1", "host 2"):
                tokens = int(second) * 4
                shown.beat(EngineEvent("beat", "m", "0", 0.0, engine, tokens=tokens))
        line = log.getvalue().splitlines()[-1]
        assert "turns 0/4  120 tokens so far  6 tok/s" in line, (
            "one engine's newest and the other's"
        )
        assert "starting" not in line
        # Its tokens are counted with its row, and not twice until the next beat.
        shown._count_ended(80)
        assert sum(shown._under_way.values()) == 80


def test_what_takes_long_before_the_run_is_told_and_what_does_not_is_not(monkeypatch, capsys):
    monkeypatch.setattr(module, "PLAIN_EVERY_S", 0.1)
    for quiet, seconds, lines in ((False, 0.35, 2), (True, 0.35, 0), (False, 0.0, 0)):
        with module.report_while_long("starting Ray", quiet=quiet):
            time.sleep(seconds)
        said = capsys.readouterr().err.splitlines()
        assert len(said) >= lines if lines else not said
        assert all(text.endswith("starting Ray") for text in said)
