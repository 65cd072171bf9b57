"""launch/slurm.sbatch with srun and scontrol that start real raylets on this machine."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from paths import ROOT
from ray_cluster import environment, free_port

pytestmark = [pytest.mark.rays, pytest.mark.timeout(150)]

SCRIPT = ROOT / "launch" / "slurm.sbatch"

SRUN = """\
#!/usr/bin/env bash
# Runs the command here, as the step of one node; the second node has a GPU, of a kind.
echo "srun $*" >>"$STUB_CALLS"
more=()
while [ $# -gt 0 ]; do
  case $1 in
    --nodelist=*) node=${1#*=} ;;
    --*) ;;
    *) break ;;
  esac
  shift
done
if [ "$1" = hostname ]; then echo 127.0.0.1; exit; fi
[ "$node" != "$STUB_BROKEN" ] || exit 3
# Raylets of one machine need ports of their own.
case "$*" in
  *--head*) ;;
  *) more=(--node-ip-address=127.0.0.1) ;;
esac
exec "$@" "${more[@]}" --object-store-memory=100000000 --resources="{\\"$node\\": 1}"
"""
SCONTROL = """\
#!/usr/bin/env bash
echo "scontrol $*" >>"$STUB_CALLS"
if [ "$1 $2" = "show hostnames" ]; then printf '%s\\n' ${3//,/ }; fi
"""


@pytest.fixture
def slurm(tmp_path):
    """Starts the script as Slurm does; ends what is left of it."""
    stubs = tmp_path / "bin"
    stubs.mkdir()
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
        (stubs / name).write_text(text)
        (stubs / name).chmod(0o755)
    started = []

    def start(*settings, nodes="node1,node2", **env):
        number = str(os.getpid() * 10 + len(started))
        full = environment(
            PATH=f"{stubs}:{os.environ['PATH']}", SLURM_JOB_ID=number, SLURM_JOB_NODELIST=nodes,
            SLURM_SUBMIT_DIR=str(SCRIPT.parents[1]), SLURM_CPUS_ON_NODE="2",
            MTBENCH_RAY_PYTHON=sys.executable, MTBENCH_RAY_PORT=str(free_port()),
            MTBENCH_RAY_WAIT_S="60", MTBENCH_RAY_RAY_LOG=str(tmp_path / "ray.log"),
            STUB_CALLS=str(tmp_path / "calls"), **{"STUB_BROKEN": ""} | env,
        )  # fmt: skip
        process = subprocess.Popen(
            ["bash", str(SCRIPT), *settings], env=full, text=True, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        started.append((process, number))
        process.number = number
        return process

    yield start
    for process, number in started:
        if process.poll() is None:
            process.terminate()
            process.wait(30)
        assert raylets(number) == []


def raylets(number):
    """Processes of Ray that belong to the job."""
    import psutil

    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = " ".join(process.info["cmdline"] or ())
        if f"/tmp/mtbench-{number}/" in words and process.status() != psutil.STATUS_ZOMBIE:
            found.append(words[:80])
    return found


@pytest.fixture
def settings(stub, questions, tmp_path):
    return ["model=m", "engine=fake", "cluster.ray=always", "judge=openai", "judge.model=stub",
            f"judge.base_url={stub.url}", f"question_path={questions}",
            f"workspace={tmp_path / 'shared'}"]  # fmt: skip


def calls(tmp_path):
    return (tmp_path / "calls").read_text()


def test_a_job_starts_ray_on_all_nodes_runs_and_ends_it(slurm, settings, tmp_path):
    job = slurm(*settings)
    out, err = job.communicate(timeout=120)
    assert job.returncode == 0, err + (tmp_path / "ray.log").read_text()
    assert "8/8" in out
    assert "Ray on node1 node2 at 127.0.0.1:" in err
    (record,) = [json.loads(p.read_text()) for p in tmp_path.glob("shared/runs/*/record.json")]
    assert record["job"] == f"slurm {job.number}"
    starts = [line for line in calls(tmp_path).splitlines() if " start " in line]
    assert ["--head" in line for line in starts] == [True, False]
    assert all("--num-cpus=2" in line for line in starts)
    assert raylets(job.number) == []


def test_near_the_time_limit_the_run_ends_in_order_and_the_job_is_requeued(
    slurm, settings, stub, tmp_path
):
    slow = [*settings, "engine.fake_seconds_per_token=0.01"]
    job = slurm(*slow, nodes="node1")
    answers = tmp_path / "shared" / "answers.jsonl"
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline and not (answers.exists() and answers.read_text()):
        time.sleep(0.2)
    os.kill(job.pid, signal.SIGUSR1)
    _, err = job.communicate(timeout=60)
    assert job.returncode == 130, err
    assert f"scontrol requeue {job.number}" in calls(tmp_path)
    (record,) = [json.loads(p.read_text()) for p in tmp_path.glob("shared/runs/*/record.json")]
    assert record["status"] == "interrupted"
    assert raylets(job.number) == []
    # Slurm runs the same script with the same words again.
    again = slurm(*settings, nodes="node1", SLURM_RESTART_COUNT="1")
    out, err = again.communicate(timeout=120)
    assert again.returncode == 0, err
    assert "8/8" in out
    assert stub.stats()["most_good_per_request"] == 1
    jobs = {json.loads(p.read_text())["job"] for p in tmp_path.glob("shared/runs/*/record.json")}
    assert f"slurm {again.number} restart 1" in jobs


def test_a_node_without_ray_is_an_error_and_nothing_is_left(slurm, settings, tmp_path):
    job = slurm(*settings, STUB_BROKEN="node2")
    _, err = job.communicate(timeout=90)
    assert job.returncode == 2, err
    assert "Ray ended on one of node1 node2" in err
    assert not (tmp_path / "shared").exists()
    assert raylets(job.number) == []


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({"SLURM_JOB_ID": ""}, "sbatch launch/slurm.sbatch model="),
        ({"MTBENCH_RAY_PYTHON": "/nowhere/python"}, "bash launch/setup.sh"),
    ],
)
def test_what_is_missing_is_told(env, said):
    full = environment(SLURM_JOB_ID="1", SLURM_JOB_NODELIST="a", **{}) | env
    done = subprocess.run(["bash", str(SCRIPT), "model=m"], capture_output=True, text=True,
                          env=full, check=False)  # fmt: skip
    assert done.returncode == 2
    assert said in done.stderr


def test_slurm_reads_the_options_of_the_script():
    """They end at the first line that is neither empty nor a comment."""
    options = []
    for line in SCRIPT.read_text().splitlines():
        if line and not line.startswith("#"):
            break
        if line.startswith("#SBATCH "):
            options.append(line.split()[1].partition("=")[0])
    assert {"--requeue", "--signal", "--ntasks-per-node", "--nodes", "--open-mode"} <= set(options)
