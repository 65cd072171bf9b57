"""launch/training.md does what it says: a real training, a real engine, a watch beside it."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from crash import rows
from paths import ROOT
from stub_server import StubServer

PAGE = (ROOT / "launch" / "training.md").read_text()
BLOCKS = re.findall(r"^```(python|bash)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_the_page_has_a_training_and_what_is_run_beside_it():
    assert [kind for kind, _ in BLOCKS] == ["python", "bash", "bash", "bash"]


@pytest.mark.engine
@pytest.mark.rays
@pytest.mark.runs
@pytest.mark.timeout(600)
def test_the_blocks_of_the_page_run_as_they_stand(tmp_path):
    training, *lines = (text for _, text in BLOCKS)
    (tmp_path / "train.py").write_text(training)
    path = [str(Path(sys.executable).parent), os.environ["PATH"]]
    with StubServer() as stub:
        env = os.environ | {
            "PATH": os.pathsep.join(path), "PYTHONPATH": str(ROOT), "RAY_AUTH_MODE": "disabled",
            "JUDGE": "stub", "JUDGE_URL": stub.url,
        }  # fmt: skip
        done = [
            subprocess.run(
                ["bash", "-euo", "pipefail", "-c", line], cwd=tmp_path, env=env, text=True,
                capture_output=True, timeout=500, check=False,
            )
            for line in lines
        ]  # fmt: skip
        calls = stub.stats()["calls"]
    watch, reports, gate = done
    for one in done:
        assert one.returncode == 0, one.stderr
        assert "Traceback" not in one.stderr
    assert "step 30: loss" in (tmp_path / "train.log").read_text()
    assert "the watch ends: the training is over (DONE)" in watch.stderr
    assert 16 <= calls <= 3 * 16, "each turn is judged once, and equal texts are one"
    results = tmp_path / "results"
    turns = [(row["answer_id"], row["turn"]) for row in rows(results, "answers.jsonl")]
    assert len(turns) == len(set(turns)) == 3 * 16
    summary = json.loads((results / "summary.json").read_text())
    assert {Path(one["model"]).name: one["average"]["scored"] for one in summary["results"]} == {
        "step_10": 16, "step_20": 16, "step_30": 16,
    }  # fmt: skip
    records = [json.loads(path.read_text()) for path in results.glob("runs/*/record.json")]
    assert len(records) >= 2, "checkpoints were taken as they landed"
    kinds = [event["kind"] for record in records for event in record["events"]]
    assert sorted(kinds) == ["start", "swap", "swap"], "one engine, which stayed warm"
    for file in ("curve/curve.svg", "report.html"):
        assert (results / file).stat().st_size > 1000
    assert "plots/curve.csv" in reports.stdout
    assert "best: " in reports.stdout
    assert re.search(r"gate: exit code [013]$", gate.stdout.strip())
