"""A watch in the test's process, beside a training whose every step the test makes."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from mtbench_ray.cli.hydra_app import compose
from mtbench_ray.run.signals import Interrupts
from mtbench_ray.run.watch import Watch
from mtbench_ray.schema import ANSWERED
from mtbench_ray.validate import validate
from mtbench_ray.workspace.workspace import Workspace

LOOK_S, SETTLE_S = 10.0, 30.0


class Watching:
    """Runs watches on one workspace, and says what came of them.

    Args:
        line: Settings of all of them.
    """

    def __init__(self, workspace: Path, line: Sequence[str], capsys) -> None:
        workspace.mkdir()  # a plan of one that is not there has another in its place
        self.workspace = workspace
        self._line = [
            *line, "watch=true", f"watch.look_s={LOOK_S}", f"watch.settle_s={SETTLE_S}",
            f"workspace={workspace}",
        ]  # fmt: skip
        self._capsys = capsys
        self._began = time.time()  # so no folder is old when it is first seen
        self.out = self.err = ""

    def __call__(self, *steps: Callable[[], object] | int, args: Sequence[str] = ()) -> int:
        """One watch; each time it waits, the next step of the training is made.

        Args:
            steps: A number: it waits so often and nothing happens.
        """
        script: list[Callable[[], object]] = []
        for step in steps:
            script += [lambda: None] * step if isinstance(step, int) else [step]
        now = [1000.0]

        def wait(seconds: float) -> None:
            assert script, f"the watch waits on: {capture()[1]}"
            now[0] += seconds
            script.pop(0)()

        def capture() -> tuple[str, str]:
            found = self._capsys.readouterr()
            self.out, self.err = self.out + found.out, self.err + found.err
            return self.out, self.err

        self.out = self.err = ""
        configs = [validate(config) for config in compose([*self._line, *args])]
        with Interrupts() as self.interrupts, Workspace.open(self.workspace, write=True) as opened:
            clocks = (lambda: now[0], lambda: self._began, wait)
            code = Watch(configs, opened, ["watch"], self.interrupts, *clocks).run()
        capture()
        self.left = len(script)
        return code

    @property
    def rounds(self) -> list[list[str]]:
        """The names of the checkpoints of each round, in order."""
        records = [json.loads(path.read_text()) for path in
                   self.workspace.glob("runs/*/record.json")]  # fmt: skip
        records.sort(key=lambda record: record["number"])
        return [
            [Path(row["answers"]["model"]).name for row in record["evaluations"]]
            for record in records
        ]

    def events(self) -> list[dict]:
        """What engines did, in all rounds."""
        records = [json.loads(path.read_text()) for path in
                   self.workspace.glob("runs/*/record.json")]  # fmt: skip
        records.sort(key=lambda record: record["number"])
        return [event for record in records for event in record["events"]]

    @property
    def summary(self) -> dict:
        return json.loads((self.workspace / "summary.json").read_text())

    def scored(self) -> dict[str, str]:
        """By the last folder of each model: scored/planned."""
        return {
            Path(one["model"]).name: f"{one['average']['scored']}/{one['average']['planned']}"
            for one in self.summary["results"]
        }


def count_rows(workspace: Path) -> tuple[int, int, int]:
    """Verdicts and turns that are planned and not there, those that are there twice, and rows of
    answers that no evaluation plans."""

    def rows(name: str) -> list[dict]:
        path = workspace / name
        lines = path.read_bytes().split(b"\n") if path.exists() else []
        return [json.loads(line) for line in lines if line]

    planned = set()
    for path in workspace.glob("runs/*/record.json"):
        for row in json.loads(path.read_text())["evaluations"]:
            planned |= {(unit["answer_id"], turn) for unit in map(_unit, row["answers"]["units"])
                        for turn in (1, 2)}  # fmt: skip
    turns = Counter(
        (row["answer_id"], row["turn"])
        for row in rows("answers.jsonl")
        if row["status"] in ANSWERED
    )
    judged = Counter(
        (row["answer_ids"][0], row["turn"])
        for row in rows("judgments.jsonl")
        if row["status"] == "ok"
    )
    missing = len(planned - turns.keys()) + len(planned - judged.keys())
    doubled = turns.total() - len(turns) + judged.total() - len(judged)
    return missing, doubled, len(turns.keys() - planned) + len(judged.keys() - planned)


def _unit(unit: list | dict) -> dict:
    return unit if isinstance(unit, dict) else {"answer_id": unit[2]}
