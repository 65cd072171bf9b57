"""CPU seconds of commands that start no engine, beside what they import.

    python tests/bench/command_cost.py              about a minute; three tries, the least counts

Printed: seconds of CPU (user and system) of ``plan`` with a checkpoint's template, of
``stage=judge`` with 160 judgments, and of a line with nothing pending; what the imports of Hydra,
openai and transformers take by themselves in the same run; which heavy modules each command loads.
The checkpoint is a small one made here, its judge a stub in a process of its own. Python keeps what
it has compiled, as it does for a user, whatever PYTHONDONTWRITEBYTECODE says here.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS / "support"))
HEAVY = ("transformers", "torch", "vllm", "ray", "openai", "pandas", "datasets")
ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
AIMS = {"plan": 2.0, "stage=judge": 2.0, "nothing pending": 1.0}


def cpu(*command: str) -> float:
    """CPU seconds of a command and of its children.

    Raises:
        RuntimeError: It failed.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, check=False, env=ENVIRONMENT
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr[-1000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def loaded(*command: str) -> list[str]:
    """Heavy modules that a command imports."""
    text = subprocess.run(
        [sys.executable, "-X", "importtime", *command], capture_output=True, text=True, check=False
    ).stderr
    seen = {line.rpartition("|")[2].strip() for line in text.splitlines() if "|" in line}
    return [name for name in HEAVY if name in seen]


def main() -> None:
    """Measure and print."""
    from checkpoints import write_checkpoint

    stub = subprocess.Popen(
        [sys.executable, str(TESTS / "support" / "stub_server.py"), "--latency", "0.01"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert stub.stdout is not None
    address = stub.stdout.readline().strip()
    found: dict[str, tuple[float, list[str]]] = {}
    try:
        with tempfile.TemporaryDirectory() as folder:
            model = write_checkpoint(Path(folder, "m"), "{{ bos_token }}{{ messages[0].content }}",
                                     config={"max_position_embeddings": 8192})  # fmt: skip
            os.chdir(folder)
            judge = ["judge=openai", "judge.model=stub", f"judge.base_url={address}",
                     "judge.api_key_env=null", "quiet=true"]  # fmt: skip
            line = ["-m", "mtbench_ray", "model=org/m", "engine=fake", *judge, "workspace=w"]
            plan = ["-m", "mtbench_ray", "plan", f"model={model}", "engine=vllm", *judge,
                    "workspace=p"]  # fmt: skip
            for name in ("hydra", "openai", "transformers.AutoTokenizer"):
                module, _, part = name.partition(".")
                code = f"from {module} import {part}" if part else f"import {module}"
                found[f"import of {name}"] = min(cpu("-c", code) for _ in range(3)), []
            found["plan"] = min(cpu(*plan) for _ in range(3)), loaded(*plan)
            cpu(*line, "stage=answers")
            took = []
            for attempt in range(3):
                Path("w/judgments.jsonl").unlink(missing_ok=True)
                took.append(cpu(*line, "stage=judge"))
                if attempt == 0:
                    Path("w/judgments.jsonl").unlink()
                    modules = loaded(*line, "stage=judge")
            found["stage=judge"] = min(took), modules
            found["nothing pending"] = min(cpu(*line) for _ in range(3)), loaded(*line)
    finally:
        stub.kill()
    base = found["import of hydra"][0]
    print("| what | CPU | of import of hydra | aim | loads |\n|---|---|---|---|---|")
    for name, (seconds, heavy) in found.items():
        aim = f"<= {AIMS[name]:g} s" if name in AIMS else ""
        print(f"| {name} | {seconds:.2f} s | {seconds / base:.1f} | {aim} | {', '.join(heavy)} |")


if __name__ == "__main__":
    main()
