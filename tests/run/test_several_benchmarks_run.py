"""Three checkpoints over three benchmarks: one engine start and two swaps, and kill -9."""

import json
import sys
from collections import Counter

import pytest
from crash import Run, rows, until
from paths import TESTS
from stub_server import StubServer

pytest.importorskip("if_verifiable", reason="needs the extra ifeval")

JUDGED = [(1, "Describe a mill."), (2, "Describe the tide."), (3, "Describe old maps.")]
CHECKED = {
    "ifeval": [("a", "Say it without a comma.", "punctuation:no_comma", {}),
               ("b", "Say it in 5 words or more.", "length_constraints:number_words",
                {"relation": "at least", "num_words": 5})],
    "ifbench": [("c", "Use many vowels.", "count:unique_word_count", {"N": 3})],
}  # fmt: skip
PLANNED = 3 * (len(JUDGED) + 2 * 3)


def files(folder):
    judged = folder / "judged.jsonl"
    judged.write_text("".join(
        json.dumps({"question_id": number, "category": "generic", "turns": [text]}) + "\n"
        for number, text in JUDGED
    ))  # fmt: skip
    found = {"vicuna": judged}
    for name, prompts in CHECKED.items():
        found[name] = folder / f"{name}.jsonl"
        found[name].write_text("".join(
            json.dumps({"key": key, "prompt": text, "instruction_id_list": [one],
                        "kwargs": [kwargs]}) + "\n"
            for key, text, one, kwargs in prompts
        ))  # fmt: skip
    return found


def line(folder, stub, workspace, models):
    return [
        "-m", f"model={','.join(models)}", "benchmark=[vicuna,ifeval,ifbench]", "judge=openai",
        "judge.model=stub", f"judge.base_url={stub.url}", "judge.api_key_env=null",
        *(f"benchmark.{name}.question_path={path}" for name, path in files(folder).items()),
        "benchmark.vicuna.reference_path=null", "engine.replicas=1",
        "sampling.max_tokens=48", f"workspace={workspace}",
    ]  # fmt: skip


def kinds(workspace):
    """Events of engines, of all runs of a workspace."""
    records = [json.loads(path.read_text()) for path in workspace.glob("runs/*/record.json")]
    return Counter(event["kind"] for record in records for event in record["events"])


def every_planned_verdict_once(workspace):
    good = Counter(
        row["judgment_id"] for row in rows(workspace, "judgments.jsonl") if row["status"] == "ok"
    )
    assert len(good) == PLANNED
    assert set(good.values()) == {1}
    turns = Counter((row["answer_id"], row["turn"]) for row in rows(workspace, "answers.jsonl"))
    assert len(turns) == 3 * 6
    assert set(turns.values()) == {1}


@pytest.fixture
def models(tmp_path):
    sys.path.insert(0, str(TESTS / "bench"))
    from random_models import make_model

    return [str(make_model(tmp_path / f"step_{seed}", "tiny", seed)) for seed in (1, 2, 3)]


@pytest.mark.engine
@pytest.mark.rays
@pytest.mark.timeout(900)
def test_a_sweep_over_benchmarks_starts_once_and_swaps_for_each_further_checkpoint(
    models, tmp_path
):
    pytest.importorskip("vllm", reason="needs the extra cpu")
    with StubServer() as stub:
        run = Run(*line(tmp_path, stub, tmp_path / "work", models), "engine.dtype=float32")
        assert run.wait(600) == 0, run.err
    found = kinds(tmp_path / "work")
    assert (found["start"], found["swap"], found["restart"]) == (1, 2, 0), found
    every_planned_verdict_once(tmp_path / "work")


@pytest.mark.rays
def test_after_kill_9_in_the_middle_and_again_every_planned_verdict_is_there_once(tmp_path):
    """With the fake engine, and a real judge and real checks."""
    models = [f"org/step_{number}" for number in (1, 2, 3)]
    slow = ("engine=fake", "engine.fake_seconds_per_token=0.01", "engine.max_num_seqs=2")
    with StubServer(latency=0.05) as stub:
        args = [*line(tmp_path, stub, tmp_path / "work", models), *slow]
        for enough in (4, 10):
            run = Run(*args)
            until(lambda many=enough: len(rows(tmp_path / "work", "answers.jsonl")) >= many, 60)
            run.kill()
            run.gone_after(30)
        run = Run(*args)
        assert run.wait(120) == 0, run.err
    every_planned_verdict_once(tmp_path / "work")
