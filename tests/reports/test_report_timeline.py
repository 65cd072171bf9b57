"""``report timeline``: what a run did when, as text and as a trace for Perfetto and Chrome."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stub_server import StubServer

from mtbench_ray.cli.main import main
from mtbench_ray.reports.timeline import Span, spans_of, text_of, trace_of

KINDS = ("phase", "engine", "answers", "turn", "judgment")


def check_trace(trace):
    """By the Trace Event Format: what each kind of event must have, and that stretches of a row lie
    in one another or apart."""
    assert set(trace) == {"traceEvents", "displayTimeUnit"}
    assert trace["displayTimeUnit"] in ("ms", "ns")
    named, rows = set(), {}
    for event in trace["traceEvents"]:
        assert type(event["name"]) is str
        assert type(event["pid"]) is type(event["tid"]) is int
        if event["ph"] == "M":
            key, kind = {
                "process_name": ("name", str),
                "thread_name": ("name", str),
                "process_sort_index": ("sort_index", int),
            }[event["name"]]
            assert type(event["args"][key]) is kind
            named.add((event["pid"], event["tid"]))
            assert set(event) == {"ph", "name", "pid", "tid", "args"}
            continue
        assert type(event["ts"]) is int
        assert event["ts"] >= 0
        if event["ph"] == "C":
            assert all(type(value) is int and value >= 0 for value in event["args"].values())
            assert set(event) == {"ph", "name", "pid", "tid", "ts", "args"}
            continue
        assert event["ph"] == "X"
        assert type(event["dur"]) is int
        assert event["dur"] >= 0
        assert set(event) == {"ph", "name", "cat", "pid", "tid", "ts", "dur", "args"}
        rows.setdefault((event["pid"], event["tid"]), []).append(
            (event["ts"], event["ts"] + event["dur"])
        )
    assert set(rows) <= named
    for stretches in rows.values():
        for number, (begin, end) in enumerate(stretches):
            for other, until in stretches[number + 1 :]:
                assert begin <= other
                assert other >= end or until <= end
    assert json.loads(json.dumps(trace)) == trace
    return rows


def event(what, t, **fields):
    return {"t": t, "event": what, **fields}


EVENTS = [
    event("phase", 101.0, name="Ray", replica="", ended=101.0, seconds=1.0),
    event("phase", 112.0, name="tokenizer", replica="n-1", ended=105.0, seconds=3.0005),
    event("phase", 112.0, name="weights", replica="n-1", ended=111.0, seconds=6.0),
    event("engine", 112.0, kind="start", model="a", replica="n-1", ended=112.0, seconds=10.0,
          detail=""),
    *[event("turn", 112.0 + n, answer=f"x{n}", turn=1, model="a", begun=112.0, generated=113.0 + n,
            status="ok") for n in range(3)],
    event("judgment", 116.0, id="j", answers=["x0"], turn=1, started=113.1, judged=116.0,
          status="ok"),
    event("engine", 115.9, kind="swap", model="b", replica="n-1", ended=115.9, seconds=0.5,
          detail="from device memory"),
    event("turn", 118.0, answer="y", turn=1, model="b", begun=116.0, generated=118.0, status="ok"),
]  # fmt: skip


def test_events_are_stretches_of_time_in_lanes():
    spans = spans_of(EVENTS)
    seen = [(s.lane, s.kind, s.name, s.begin, s.end) for s in spans if s.kind != "turn"]
    assert seen == [
        ("run", "phase", "Ray", 100.0, 101.0),
        ("engine n-1", "engine", "start a", 102.0, 112.0),
        # The clock's last digits said half a millisecond earlier than the start itself.
        ("engine n-1", "phase", "tokenizer", 102.0, 105.0),
        ("engine n-1", "phase", "weights", 105.0, 111.0),
        ("engine n-1", "answers", "a", 112.0, 115.0),
        ("judge calls", "judgment", "turn 1", 113.1, 116.0),
        ("engine n-1", "engine", "swap b", 115.4, 115.9),
        ("engine n-1", "answers", "b", 116.0, 118.0),
    ]
    assert [s.end for s in spans if s.lane == "turns of a"] == [115.0, 114.0, 113.0]


def test_the_trace_nests_a_start_and_gives_turns_rows_of_their_own():
    trace = trace_of(spans_of(EVENTS))
    rows = check_trace(trace)
    names = {e["pid"]: e["args"]["name"] for e in trace["traceEvents"]
             if e["name"] == "process_name"}  # fmt: skip
    assert list(names.values()) == ["run", "engine n-1", "turns of a", "turns of b", "judge calls"]
    by_lane = {name: sum(pid == key for pid, _ in rows) for key, name in names.items()}
    # Three turns that begin at once and end one after the other lie in one another.
    assert by_lane == dict.fromkeys(names.values(), 1)
    counts = [e["args"]["count"] for e in trace["traceEvents"]
              if e["ph"] == "C" and names[e["pid"]] == "turns of a"]  # fmt: skip
    assert counts == [3, 2, 1, 0]


def test_the_text_has_a_line_for_each_stretch_and_how_many_turns_ran_at_once():
    lines = text_of(spans_of(EVENTS), "run x").splitlines()
    assert lines[0] == "run x"
    assert lines[2].split() == ["0", "s", "18.0", "s"]
    shown = {line.strip().split("  ")[0]: line for line in lines[3:]}
    assert "2.0 s + 10.00" in shown["start a"]
    assert shown["start a"].count("=") == 34
    assert "15.4 s + 0.50" in shown["swap b"]
    assert "3, at most 3 at once, 12.0 to 15.0 s" in shown["turns of a"]
    assert shown["turns of b"].rstrip().endswith("@@")


def test_timelines_of_older_versions_are_read():
    spans = spans_of([
        event("turn", 2.0, answer="x", turn=1, generated=1.5, status="ok"),
        event("engine", 1.0, kind="start", model="a", replica="r", seconds=0.4, detail=""),
        event("note", 1.0, text="whatever comes later"),
    ])  # fmt: skip
    assert [(s.lane, s.begin, s.end) for s in spans] == [
        ("engine r", 0.6, 1.0), ("turns of answers", 1.5, 1.5),
    ]  # fmt: skip
    check_trace(trace_of(spans))


@given(st.lists(st.tuples(st.sampled_from(KINDS), st.sampled_from("xyz"), st.floats(0, 50),
                          st.floats(0, 9)), max_size=30))  # fmt: skip
def test_any_stretches_make_a_sound_trace_that_keeps_all_of_them(found):
    spans = sorted(
        (Span(f"{'engine' if kind in KINDS[:3] else kind} {lane}", kind, "n", 1e9 + begin,
              1e9 + begin + length)
         for kind, lane, begin, length in found),
        key=lambda span: (span.begin, -span.end),
    )  # fmt: skip
    rows = check_trace(trace_of(spans))
    assert sum(map(len, rows.values())) == len(spans)
    if spans:
        assert len(text_of(spans, "t").splitlines()) >= 4


@pytest.mark.runs
def test_a_run_is_drawn_with_the_parts_of_its_starts(questions, tmp_path, capsys):
    work = tmp_path / "work"
    with StubServer(latency=0.05) as stub:
        code = main([
            "-m", "model=org/a,org/b", "engine=fake", "judge=openai", "judge.model=stub",
            f"judge.base_url={stub.url}", "judge.api_key_env=null", f"question_path={questions}",
            f"workspace={work}", "sampling.max_tokens=40", "engine.fake_seconds_per_token=0.002",
            "engine.fake_faults={slow_start: 0.2, swap_s: 0.1}",
        ])  # fmt: skip
    assert code == 0
    capsys.readouterr()
    assert main(["report", "timeline", f"workspace={work}"]) == 0
    text = capsys.readouterr().out
    for words in ("start org/a", "a scripted wait", "swap org/b", "turns of org/b", "judge calls"):
        assert words in text
    target = tmp_path / "trace.json"
    line = ["report", "timeline", f"workspace={work}", "format=trace", f"out={target}"]
    assert main(line) == 0
    assert capsys.readouterr().out.strip() == str(target)
    trace = json.loads(target.read_text())
    check_trace(trace)
    kinds = [e["cat"] for e in trace["traceEvents"] if e["ph"] == "X"]
    assert (kinds.count("turn"), kinds.count("judgment")) == (16, 16)
    assert (kinds.count("engine"), kinds.count("answers")) == (2, 2)
    assert main(["report", "timeline", f"workspace={work}", "run=1999"]) == 2
    assert "the last runs: 20" in capsys.readouterr().err
    assert main(["report", f"workspace={work}", "run=1999"]) == 2
    assert "is of `report timeline`" in capsys.readouterr().err
    assert main(["report", "timeline", f"workspace={work}", "format=csv"]) == 2
    assert "format=table|trace" in capsys.readouterr().err
