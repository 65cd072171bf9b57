"""launch/submit.sh and the code of launch/kuberay.sh --upload, against a real head with its job
server and a second raylet, on which all engines are."""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from paths import ROOT
from ray_cluster import LocalCluster, environment

from mtbench_ray.cli.kuberay import zipped_code
from mtbench_ray.config import ClusterConfig, EngineConfig
from mtbench_ray.generate.cluster import count_replicas, start_ray

pytest.importorskip("aiohttp_cors", reason="needs ray[default], the job server")
pytest.importorskip("opencensus", reason="needs ray[default], the job server")

pytestmark = [pytest.mark.rays, pytest.mark.timeout(180)]

KEY = "sk-of-the-test-4711"


@pytest.fixture(scope="module")
def cluster():
    with LocalCluster() as started:
        started.add_node(cpus=2)
        yield started


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """Another version of the code than the one that is installed here, which says where it ran."""
    root = tmp_path_factory.mktemp("checkout")
    for name in ("mtbench_ray", "conf", "launch"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", root)
    package = root / "mtbench_ray" / "__init__.py"
    package.write_text(package.read_text().replace('"0.1.0"', '"0.1.0+sent"'))
    worker = root / "mtbench_ray" / "generate" / "worker.py"
    worker.write_text(
        worker.read_text() + "\nimport os as _os\n"
        f"_p = {str(root / 'ran')!r}; _os.makedirs(_p, exist_ok=True)\n"
        "open(f'{_p}/{_os.getpid()}', 'w').write(__file__)\n"
    )
    return root


def submit(checkout, cluster, *args, **env):
    command = ["bash", str(checkout / "launch" / "submit.sh"), "--address", cluster.jobs_url,
               "--python", sys.executable, *args]  # fmt: skip
    # A checkout without .venv takes the Python of the PATH.
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.run(
        command, capture_output=True, text=True, timeout=150, check=False,
        env=environment(PATH=path, **env), cwd="/",
    )  # fmt: skip


@pytest.fixture
def settings(stub, questions, tmp_path):
    # The file of questions goes along in the upload.
    return ["--file", str(questions), "model=m", "engine=fake", "cluster.ray=always",
            "judge=openai", "judge.model=stub", f"judge.base_url={stub.url}",
            f"question_path={questions.name}", f"workspace={tmp_path / 'shared'}"]  # fmt: skip


def rows(folder, name):
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def records(folder):
    found = [json.loads(path.read_text()) for path in folder.glob("runs/*/record.json")]
    return sorted(found, key=lambda record: record["number"])


def test_a_submitted_run_uses_the_code_that_was_sent_and_the_same_line_again_resumes(
    cluster, checkout, settings, stub, tmp_path
):
    secret = "judge.extra_body.api_key=${oc.env:JUDGE_API_KEY}"
    done = submit(checkout, cluster, "--env", "JUDGE_API_KEY", "--id", "first-of-test", secret,
                  *settings, JUDGE_API_KEY=KEY)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "8/8" in done.stdout, "the log with the table is followed"
    shared = tmp_path / "shared"
    (record,) = records(shared)
    assert record["job"] == "ray first-of-test"
    assert record["versions"]["mtbench_ray"] == "0.1.0+sent"
    places = [path.read_text() for path in (checkout / "ran").iterdir()]
    assert len(places) >= 2, "the driver and an engine"
    assert all("working_dir_files" in place for place in places)
    # The judge was sent the key, and no log or list of Ray has it.
    assert {body["api_key"] for body in stub.seen.bodies} == {KEY}
    listed = cluster.job("list")
    assert "first-of-test" in listed.stdout + listed.stderr
    assert KEY not in listed.stdout + listed.stderr + done.stdout + done.stderr
    logs = [path for path in (cluster.folder).glob("session_*/logs/**/*") if path.is_file()]
    assert len(logs) > 5
    assert not [path for path in logs if KEY in path.read_text(errors="replace")]
    assert not [p for p in shared.rglob("*") if p.is_file() and KEY.encode() in p.read_bytes()]

    calls = stub.stats()["calls"]
    again = submit(checkout, cluster, "--env", "JUDGE_API_KEY", secret, *settings,
                   JUDGE_API_KEY=KEY)  # fmt: skip
    assert again.returncode == 0, again.stderr
    assert "nothing was pending" in again.stdout
    assert stub.stats()["calls"] == calls


def test_ray_job_stop_ends_in_order_and_submitting_again_pays_only_for_the_rest(
    cluster, checkout, settings, stub, tmp_path
):
    slow = [*settings, "engine.fake_seconds_per_token=0.03", "sampling.samples=3"]
    begun = submit(checkout, cluster, "--no-wait", "--id", "to-be-stopped", *slow)
    assert begun.returncode == 0, begun.stderr
    shared = tmp_path / "shared"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if (shared / "answers.jsonl").exists() and len(rows(shared, "answers.jsonl")) >= 2:
            break
        time.sleep(0.2)
    stopped = cluster.job("stop", "to-be-stopped")
    assert "was stopped" in stopped.stdout + stopped.stderr
    (record,) = records(shared)
    assert record["status"] == "interrupted", "it came to write its record"
    assert 2 <= len(rows(shared, "answers.jsonl")) < 24

    done = submit(checkout, cluster, *settings, "sampling.samples=3")
    assert done.returncode == 0, done.stdout + done.stderr
    answers = rows(shared, "answers.jsonl")
    assert len({(row["answer_id"], row["turn"]) for row in answers}) == len(answers) == 24
    judged = rows(shared, "judgments.jsonl")
    assert len({row["judgment_id"] for row in judged}) == len(judged) == 24
    assert stub.stats()["most_good_per_request"] == 1


def test_a_mistake_in_the_settings_is_told_with_the_exit_code_of_the_run(
    cluster, checkout, settings
):
    done = submit(checkout, cluster, *settings, "sampling.max_token=5")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "sampling.max_tokens" in done.stdout
    unheard = submit(checkout, cluster, *settings, "--address", "http://127.0.0.1:1")
    assert unheard.returncode == 2
    assert "is the job server at http://127.0.0.1:1?" in unheard.stderr


def test_the_zip_of_kuberay_upload_is_taken_by_a_job_server(cluster, tmp_path):
    """As the submitting pod of launch/kuberay.sh --upload gives it to Ray."""
    (tmp_path / "mtbench_ray.zip").write_bytes(zipped_code())
    environment = json.dumps({"working_dir": str(tmp_path / "mtbench_ray.zip")})
    say = "import mtbench_ray.cli.hydra_app as h; print(h.__file__, h.conf_dir())"
    done = cluster.job("submit", "--runtime-env-json", environment, "--", sys.executable, "-c", say)
    assert done.returncode == 0, done.stdout + done.stderr
    said = [line for line in done.stdout.splitlines() if "/hydra_app.py " in line]
    (line,) = [line for line in said if line.startswith("/")]
    assert all("working_dir_files" in word for word in line.split())


def test_gpus_of_a_node_that_joins_later_are_waited_for_and_used(cluster, capsys):
    """The GPUs are numbers that the raylet is told."""
    import ray

    config = ClusterConfig(address=cluster.address, num_gpus=2, wait_s=60)
    engine = EngineConfig(kind="vllm")
    start_ray(config)
    try:
        begun = time.monotonic()
        none = count_replicas(engine, ClusterConfig(address=cluster.address), 4, 80)
        assert (none, time.monotonic() - begun < 5) == (1, True), "CPUs, where no GPU is hoped for"
        later = threading.Timer(1.0, lambda: cluster.add_node(cpus=1, gpus=2))
        later.start()
        assert count_replicas(engine, config, 4, 80) == 2
        said = capsys.readouterr().err
        assert "waiting up to 60 s for 2 GPUs: the cluster has 0" in said
        later.join()
    finally:
        ray.shutdown()
