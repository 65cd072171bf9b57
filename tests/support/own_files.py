"""A benchmark of ours with small files of our own in the place of its official ones."""

import hashlib

from command import Cli
from stub_server import StubServer, completion

from mtbench_ray.benchmarks import get_benchmark
from mtbench_ray.judges.base import ScoreOptions
from mtbench_ray.reports.page.collect import collect
from mtbench_ray.system.assets import Asset
from mtbench_ray.workspace.workspace import Workspace


def with_own_files(monkeypatch, folder, name, files):
    """Give a registered benchmark other files, by part; they are fetched and checked like its own.

    Returns:
        The benchmark.
    """
    benchmark = get_benchmark(name)
    given = {}
    for part, text in files.items():
        path = folder / f"official_{part}"
        path.write_bytes(text.encode())
        sha256 = hashlib.sha256(text.encode()).hexdigest()
        given[part] = Asset(path.name, sha256, url=path.as_uri())
    monkeypatch.setattr(benchmark, "files", given, raising=False)
    monkeypatch.setenv("MTBENCH_RAY_CACHE", str(folder / "cache"))
    return benchmark


class Line(Cli):
    """The command line for a benchmark, with the fake engine and a stub judge."""

    def __init__(self, stub, name, workspace, capsys):
        super().__init__(stub, "", "", workspace, capsys)
        self.usual = [f"benchmark={name}", "engine=fake", f"workspace={workspace}"]

    def criteria(self):
        """What the page shows of verdicts: by question, each criterion with its value."""
        with Workspace.open(self.workspace, write=False) as workspace:
            found = collect(workspace, ScoreOptions(resamples=0))
        return {
            item.id: {one.criterion: one.value for one in item.verdicts[0]} for item in found.items
        }

    def plan(self, *args):
        return self.verb("plan", *self.judge, *self.usual[:2], *args)


class Saying(StubServer):
    """A service that says what a function of the prompt says."""

    def __init__(self, says, **script):
        super().__init__(**script)
        self.says = says

    def written(self, body, prompt, digest):
        text = self.says(prompt)
        return completion(text, "stop", len(prompt) // 4, len(text) // 4), len(text) // 4
