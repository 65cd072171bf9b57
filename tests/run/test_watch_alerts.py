"""A checkpoint that falls by more than noise is told once, and a failing alert ends nothing."""

import http.server
import json
import threading
from typing import ClassVar

import pytest
from small_models import small_model
from watching import Watching

from mtbench_ray.judges.base import ScoreOptions
from mtbench_ray.reports.falls import fall
from mtbench_ray.reports.results import Results, current
from mtbench_ray.run import after_round
from mtbench_ray.run.alerts import send
from mtbench_ray.workspace.workspace import Workspace

pytestmark = pytest.mark.runs

TOKEN = "T0K3N-qq7xz9-hhk2"


@pytest.fixture
def root(tmp_path):
    (tmp_path / "ckpts").mkdir()
    return tmp_path / "ckpts"


@pytest.fixture
def watching(stub, tmp_path, root, capsys, monkeypatch):
    monkeypatch.setattr(after_round.PicturesBeside, "update", lambda self: None)
    path = tmp_path / "eight.jsonl"
    lines = [{"question_id": n, "category": "writing", "turns": [f"Say {n}.", "And again."]}
             for n in range(8)]  # fmt: skip
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    line = [
        "model=checkpoints", f"model.root={root}", "engine=fake", "judge=openai",
        "judge.model=stub", f"judge.base_url={stub.url}", f"question_path={path}",
        "sampling.max_tokens=20",
    ]  # fmt: skip
    return Watching(tmp_path / "work", line, capsys)


def training(root, stub, *ratings):
    """The steps of a training whose checkpoints get these ratings from the judge."""
    steps = []
    for number, rating in enumerate(ratings, start=1):

        def land(number=number, rating=rating):
            stub.script.text = rating and f"Rating: [[{rating}]]"
            small_model(root / f"step_{number}", float(number))

        steps += [land, 4]
    return [*steps, lambda: (root / "DONE").touch(), 1]


def command(tmp_path, code=0):
    """An alert command that keeps what it gets."""
    return f"watch.alert='cat >> {tmp_path}/sent; echo >> {tmp_path}/sent; exit {code}'"


def sent(tmp_path):
    path = tmp_path / "sent"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_each_fall_is_told_once_to_a_command(watching, root, stub, tmp_path):
    steps = training(root, stub, 6, 8, 3, 3, 9, 4)
    assert watching(*steps, args=[command(tmp_path)]) == 0, watching.err
    told = sent(tmp_path)
    assert [(one["step"], one["best"]["step"]) for one in told] == [(3, 2), (6, 5)]
    first = told[0]
    assert (first["event"], first["score"], first["best"]["score"]) == ("score_fell", 3.0, 8.0)
    assert first["difference"] == -5.0
    assert first["ci_low"] <= -5.0 <= first["ci_high"] < 0
    assert first["judge"] == "stub"
    assert first["workspace"] == str(watching.workspace)
    assert "step_3 fell to 3.00 from 8.00" in first["text"]
    assert watching.err.count("alert: ") == 2
    assert watching(4, args=[command(tmp_path)]) == 0
    assert len(sent(tmp_path)) == 2, "a watch that is started again sends none twice"


def test_noise_is_no_fall(watching, root, stub, tmp_path):
    assert watching(*training(root, stub, "", "", ""), args=[command(tmp_path)]) == 0
    means = [one["average"]["mean"] for one in watching.summary["results"]]
    assert len(set(means)) > 1
    assert sent(tmp_path) == []


def test_the_interval_is_that_of_the_paired_difference(watching, root, stub):
    """One earlier checkpoint: as wide as the bootstrap of `compare` makes it, or somewhat wider."""
    from mtbench_ray.reports.comparison import compare

    assert watching(*training(root, stub, "", 1)) == 0
    with Workspace.open(watching.workspace, write=False) as workspace:
        results = Results(workspace, ScoreOptions())
        old, new = current(workspace)
        found = fall(results, new, [old])
        pair = compare(new, old, results.items(new), results.items(old), results.options)["all"]
    assert found is not None
    assert found.score - found.best_score == pytest.approx(pair["mean"])
    wide, usual = found.high - found.low, pair["ci_high"] - pair["ci_low"]
    assert 0.8 * usual < wide < 1.6 * usual


def test_an_alert_that_fails_ends_nothing_and_is_sent_later(watching, root, stub, tmp_path):
    steps = training(root, stub, 8, 3)
    assert watching(*steps, args=[command(tmp_path, code=7)]) == 0
    assert "an alert could not be sent: the command ended with exit code 7" in watching.err
    (tmp_path / "sent").unlink()
    assert watching(4, args=[command(tmp_path)]) == 0
    assert [one["step"] for one in sent(tmp_path)] == [2]
    assert watching(4, args=[command(tmp_path)]) == 0
    assert len(sent(tmp_path)) == 1


class Hook(http.server.BaseHTTPRequestHandler):
    bodies: ClassVar[list[dict]] = []
    code = 200

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        Hook.bodies.append(json.loads(body) | {"path": self.path})
        self.send_response(Hook.code)
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def hook():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hook)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    Hook.bodies, Hook.code = [], 200
    yield f"http://127.0.0.1:{server.server_port}/hooks/{TOKEN}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("code", [200, 500])
def test_a_webhook_gets_it_and_its_address_is_nowhere(code, watching, root, stub, hook):
    Hook.code = code
    assert watching(*training(root, stub, 8, 3), args=[f"watch.alert={hook}"]) == 0
    (body, *more) = Hook.bodies
    assert (body["step"], body["path"]) == (2, f"/hooks/{TOKEN}")
    assert ("status 500" in watching.err) == bool(code == 500)
    assert len(more) <= 1
    files = [path for path in watching.workspace.rglob("*") if path.is_file()]
    assert not [path for path in files if TOKEN.encode() in path.read_bytes()]
    assert TOKEN not in watching.out + watching.err


def test_a_service_that_is_not_there_is_a_reason_without_its_address():
    assert send(f"https://127.0.0.1:1/{TOKEN}", "{}") == "127.0.0.1:1: ConnectError"


def test_a_command_that_hangs_is_ended(monkeypatch, tmp_path):
    from mtbench_ray.run import alerts

    monkeypatch.setattr(alerts, "TIMEOUT_S", 0.2)
    assert "took longer" in send("sleep 60", "{}")
