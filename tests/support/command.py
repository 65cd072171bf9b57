"""The command line in the test's process, against the stub judge."""

import json

from mtbench_ray.cli.main import main
from mtbench_ray.errors import EXIT_OK
from mtbench_ray.run import main as run
from mtbench_ray.run.main import RunResult


class Cli:
    """The command line with the usual settings of these tests."""

    def __init__(self, stub, questions, references, workspace, capsys):
        self.stub, self.capsys, self.workspace = stub, capsys, workspace
        self.usual = [
            "engine=fake",
            f"question_path={questions}",
            f"reference_path={references}",
            f"workspace={workspace}",
        ]
        self.judge = ["judge=openai", "judge.model=stub", f"judge.base_url={stub.url}"]

    def __call__(self, *args, judge=True):
        before = self.stub.stats()["calls"]
        code = main([*(self.judge if judge else []), *self.usual, *args])
        self.out, self.err = self.capsys.readouterr()
        self.calls = self.stub.stats()["calls"] - before
        return code

    def verb(self, *args):
        code = main([*args, f"workspace={self.workspace}"])
        self.out, self.err = self.capsys.readouterr()
        return code

    @property
    def summary(self):
        return json.loads((self.workspace / "summary.json").read_text())

    def rows(self, name):
        return [json.loads(line) for line in (self.workspace / name).read_text().splitlines()]


def composed(monkeypatch, tmp_path, *args, model=True, judge=True):
    """The settings that a line gives, as the run gets them."""
    seen = []

    def take(configs, **_):
        seen.extend(configs)
        return RunResult(EXIT_OK, [None for _ in configs])

    monkeypatch.setattr(run, "run_jobs", take)
    monkeypatch.chdir(tmp_path)
    usual = ["model=org/m"] * model + ["judge=none"] * judge + ["engine=fake"]
    assert main([*args, *usual]) == 0
    return seen
