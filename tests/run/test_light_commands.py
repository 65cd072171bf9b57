"""Commands import no library that they do not use: most of what a short one takes is imports."""

import subprocess
import sys

import pytest
from stub_server import StubServer

from mtbench_ray.cli.main import main

HEAVY = ("torch", "transformers", "vllm", "ray", "pandas", "datasets", "openai", "pyarrow",
         "mtbench_ray.judges.stage", "mtbench_ray.run.watch")  # fmt: skip
SCRIPT = f"""
import sys
from mtbench_ray.cli.main import main
code = main(sys.argv[1:])
print(code, *(name for name in {HEAVY} if name in sys.modules), file=sys.stderr)
"""


def loaded(*line):
    """The exit code of a command line and what is loaded of the heavy modules."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *line], capture_output=True, text=True, check=True
    )
    code, *modules = done.stderr.splitlines()[-1].split()
    return int(code), set(modules)


@pytest.mark.runs
def test_each_command_loads_what_it_uses(questions, tmp_path):
    with StubServer() as stub:
        line = ["model=org/m", "engine=fake", "judge=openai", "judge.model=stub",
                f"judge.base_url={stub.url}", "judge.api_key_env=null", "sampling.max_tokens=20",
                f"question_path={questions}", f"workspace={tmp_path}/work"]  # fmt: skip
        assert loaded("plan", *line) == (0, set())
        assert main([*line, "stage=answers"]) == 0
        judged = {"openai", "pyarrow", "mtbench_ray.judges.stage"}
        assert loaded(*line, "stage=judge") == (0, judged)
        assert loaded(*line) == (0, set()), "nothing is pending"
