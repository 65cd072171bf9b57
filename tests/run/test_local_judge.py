"""Local judges of a run: when their servers start, and what happens when their watch ends."""

import http.client
import json
import shutil

import pytest
from small_models import small_model
from stub_server import StubServer
from watching import Watching, count_rows

from mtbench_ray.cli.main import main
from mtbench_ray.run import judge_pool as judging
from mtbench_ray.run.ray_runtime import RayRuntime

run_order: list[str] = []


class Group:
    """Stands for the servers of a local judge: one that is up at once."""

    remarks = ()
    at_once = None

    def __init__(self, url, error):
        self.base_urls, self.error, self.died = [url], error, False

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
        return {0: "its last words"} if self.died else {}

    def restart(self, timeout):
        run_order.append("restart")
        self.died = False

    def stop(self):
        run_order.append("stop")


@pytest.fixture
def run(questions, tmp_path, capsys, monkeypatch):
    """A line with a local judge; no Ray. ``run.started`` are the servers that were started."""
    monkeypatch.setattr(RayRuntime, "start", lambda self: None)
    monkeypatch.setattr(judging, "gpus_by_node", list)
    with StubServer() as stub:

        def start(judge, key, **_):
            run.started.append(judge.model)
            run.groups.append(Group(stub.url, run.error))
            return run.groups[-1]

        monkeypatch.setattr("mtbench_ray.judges.local_server.server.local_servers", start)

        def run(*more):
            code = main([
                "model=org/m", "engine=fake", "judge=local", "judge.model=org/judge",
                f"question_path={questions}", f"workspace={tmp_path}/work",
                "sampling.max_tokens=20", *more,
            ])  # fmt: skip
            return code, capsys.readouterr().err

        run.started, run.groups, run.error = [], [], None
        run_order.clear()
        yield run


@pytest.mark.parametrize("schedule", ["together", "after", "auto"])
def test_a_local_judge_is_started_once_and_only_where_something_is_pending(run, schedule):
    code, err = run(f"judge.schedule={schedule}")
    assert (code, run.started) == (0, ["org/judge"]), err
    early = ["ready", "read", "begin"] if schedule == "after" else ["begin"]
    early.append("stop")
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


@pytest.fixture
def watching(run, questions, tmp_path, capsys):
    """A watch with a local judge beside a training run."""
    (tmp_path / "ckpts").mkdir()
    line = [
        "model=checkpoints", f"model.root={tmp_path}/ckpts", "engine=fake", "judge=local",
        "judge.model=org/judge", f"question_path={questions}", "sampling.max_tokens=20",
    ]  # fmt: skip
    return Watching(tmp_path / "work", line, capsys)


def test_a_watch_starts_its_judge_once(watching, run, tmp_path):
    small_model(tmp_path / "ckpts" / "step_1")

    def second():
        small_model(tmp_path / "ckpts" / "step_2", 2.0)

    def third():
        assert run_order == ["begin"]
        run.groups[0].died = True  # while nobody looks
        small_model(tmp_path / "ckpts" / "step_3", 3.0)

    code = watching(3, second, 3, third, 3, (tmp_path / "ckpts" / "DONE").touch, 1)
    assert code == 0, watching.err
    assert watching.scored() == dict.fromkeys(("step_1", "step_2", "step_3"), "8/8")
    assert count_rows(watching.workspace) == (0, 0, 0)
    assert run.started == ["org/judge"]
    assert run_order == ["begin", "restart", "stop"]
    assert watching.err.count("starting the local judge") == 1


@pytest.mark.parametrize("given_back", ["watch.release=true", "judge.schedule=after"])
def test_a_watch_leaves_no_card_to_a_judge_that_is_to_give_it_back(watching, tmp_path, given_back):
    small_model(tmp_path / "ckpts" / "step_1")

    def second():
        assert run_order[-1] == "stop"
        small_model(tmp_path / "ckpts" / "step_2", 2.0)

    code = watching(3, second, 3, (tmp_path / "ckpts" / "DONE").touch, 1, args=[given_back])
    assert code == 0, watching.err
    assert watching.scored() == dict.fromkeys(("step_1", "step_2"), "8/8")
    assert (run_order.count("begin"), run_order.count("stop")) == (2, 2)


def test_a_judge_whose_files_have_changed_is_started_anew(watching, run, tmp_path):
    folder = small_model(tmp_path / "judge")
    small_model(tmp_path / "ckpts" / "step_1")

    def second():
        shutil.rmtree(folder)
        small_model(folder, 7.0)
        small_model(tmp_path / "ckpts" / "step_2", 2.0)

    done = (tmp_path / "ckpts" / "DONE").touch
    code = watching(3, second, 3, done, 1, args=[f"judge.model={folder}"])
    assert code == 0, watching.err
    assert run_order == ["begin", "stop", "begin", "stop"]
    records = [json.loads(p.read_text()) for p in watching.workspace.glob("runs/*/record.json")]
    contents = {json.loads(row["judge_settings"])["content"] for record in records
                for row in record["evaluations"]}  # fmt: skip
    assert len(contents) == 2
