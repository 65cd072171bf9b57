"""What the end of a run imports is imported while the last judge calls are waited for."""

import subprocess
import sys

import pytest
from stub_server import StubServer

from mtbench_ray.cli.main import main
from mtbench_ray.reports import main as reports
from mtbench_ray.run import session


@pytest.mark.runs
@pytest.mark.parametrize("stage", ["all", "judge"])
def test_tables_are_prepared_once_while_a_judge_is_waited_for(
    stage, questions, tmp_path, monkeypatch
):
    seen = []
    finish = reports.finish

    def finished(*arguments, **named):
        seen.append("finished")
        return finish(*arguments, **named)

    monkeypatch.setattr(session, "warm_up", lambda: seen.append("imported"))
    monkeypatch.setattr(reports, "finish", finished)
    with StubServer(latency=0.4) as stub:
        line = ["model=org/m", "engine=fake", "judge=openai", "judge.model=stub",
                f"judge.base_url={stub.url}", "judge.api_key_env=null", "judge.concurrency=4",
                f"question_path={questions}", f"workspace={tmp_path}/work",
                "sampling.max_tokens=40"]  # fmt: skip
        if stage == "judge":
            assert main([*line, "stage=answers"]) == 0
            assert seen == ["finished"], "no judge, nothing to wait for"
            seen.clear()
        assert main([*line, f"stage={stage}"]) == 0
        assert seen == ["imported", "finished"]
        assert main([*line, f"stage={stage}"]) == 0
    assert seen == ["imported", "finished", "finished"], "nothing was pending"


def test_what_is_imported_is_all_that_tables_take(tmp_path):
    script = """
import sys
from pathlib import Path
from mtbench_ray.schema import Turn
from mtbench_ray.workspace.parquet import warm_up, write_table
warm_up()
before = set(sys.modules)
write_table(Path(sys.argv[1]), Turn, [Turn("a", 1, "b", 1, "m", 0, "x", "ok")])
print(len([name for name in before if name.startswith("pyarrow")]) > 3)
print(sorted(name for name in set(sys.modules) - before if name.startswith(("pa", "py"))))
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "t.parquet")],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines() == ["True", "[]"]
