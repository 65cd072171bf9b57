"""Local judges of a run: when their servers start, and what happens when their watch ends."""

import http.client

import pytest
from stub_server import StubServer

from mtbench_ray.cli.main import main
from mtbench_ray.run import judge_pool as judging
from mtbench_ray.run.ray_runtime import RayRuntime

run_order: list[str] = []


class Group:
    """Stands for the servers of a local judge: one that is up at once."""

    remarks = ()
    at_once = None

    def __init__(self, url, error):
        self.base_urls, self.error = [url], error

    def make_ready(self):
        run_order.append("ready")

    def read_ahead(self):
        run_order.append("read")

    def begin(self):
        run_order.append("begin")

    def wait_ready(self, timeout):
        if self.error is not None:
            raise self.error

    def dead(self):
        return {}

    def stop(self):
        pass


@pytest.fixture
def run(questions, tmp_path, capsys, monkeypatch):
    """A line with a local judge; no Ray. ``run.started`` are the servers that were started."""
    monkeypatch.setattr(RayRuntime, "start", lambda self: None)
    monkeypatch.setattr(judging, "gpus_by_node", list)
    with StubServer() as stub:

        def start(judge, key, **_):
            run.started.append(judge.model)
            return Group(stub.url, run.error)

        monkeypatch.setattr("mtbench_ray.judges.local_server.server.local_servers", start)

        def run(*more):
            code = main([
                "model=org/m", "engine=fake", "judge=local", "judge.model=org/judge",
                f"question_path={questions}", f"workspace={tmp_path}/work",
                "sampling.max_tokens=20", *more,
            ])  # fmt: skip
            return code, capsys.readouterr().err

        run.started, run.error = [], None
        run_order.clear()
        yield run


@pytest.mark.parametrize("schedule", ["together", "after", "auto"])
def test_a_local_judge_is_started_once_and_only_where_something_is_pending(run, schedule):
    code, err = run(f"judge.schedule={schedule}")
    assert (code, run.started) == (0, ["org/judge"]), err
    early = ["ready", "read", "begin"] if schedule == "after" else ["begin"]
    assert list(dict.fromkeys(run_order)) == early
    # Answers are missing, but their verdicts are not this judge's: nothing can be judged.
    failing = "engine.fake_faults={error_on: [1, 2, 3, 4]}"
    code, err = run(f"judge.schedule={schedule}", "model.name=other", "model.path=o", failing)
    assert code == 3, err
    assert run_order.count("begin") == (1 if schedule == "after" else 2)


def test_a_watch_that_dies_of_something_unexpected_ends_its_judge_with_a_message(run):
    run.error = http.client.BadStatusLine("HTTP/9")
    code, err = run()
    assert code == 3
    assert "is not watched any more (BadStatusLine: HTTP/9)" in err
    assert "Traceback" not in err
