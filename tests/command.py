"""The command line in the test's process, against the stub judge."""

import json

from mtbench_ray.cli.main import main


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
