"""KubeRay: the shipped manifests, and those that launch/kuberay.sh makes from settings."""

import io
import os
import re
import shlex
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import jsonschema
import pyarrow.parquet as parquet
import pytest
import yaml
from checkpoints import write_checkpoint
from paths import ROOT
from rayjob_schema import RAYJOB, mistakes, strict

from mtbench_ray.cli import kuberay
from mtbench_ray.cli.hydra_app import compose
from mtbench_ray.cli.main import main

LAUNCH = ROOT / "launch"
SHIPPED = ("rayjob.yaml", "rayjob-gpu.yaml")


def shipped(name):
    return yaml.safe_load((LAUNCH / name).read_text())


def filled(*args, capsys):
    code = kuberay.main(args)
    out, err = capsys.readouterr()
    return code, list(yaml.safe_load_all(out)), err


def check(job):
    jsonschema.validate(job, RAYJOB)
    assert mistakes(job) == []
    if crd := os.environ.get("MTBENCH_RAYJOB_CRD"):
        versions = yaml.safe_load(Path(crd).read_text())["spec"]["versions"]
        (schema,) = [v["schema"]["openAPIV3Schema"] for v in versions if v["name"] == "v1"]
        jsonschema.Draft202012Validator(strict(schema)).validate(job)


def gpus(job):
    """GPUs of each worker, by group: (of one, how many at most)."""
    groups = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    found = []
    for group in groups:
        limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
        found.append((limits.get("nvidia.com/gpu", 0), group["maxReplicas"]))
    return found


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_manifest_is_a_rayjob(name):
    check(shipped(name))


def test_the_schema_of_the_tests_does_refuse():
    job = shipped("rayjob.yaml")
    job["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["replica"] = 1
    with pytest.raises(jsonschema.ValidationError, match="replica"):
        jsonschema.validate(job, RAYJOB)
    job = shipped("rayjob-gpu.yaml")
    job["spec"] |= {"shutdownAfterJobFinishes": False}
    assert mistakes(job) == ["ttl without shutdown"]


def test_the_official_schema_where_it_is_given():
    if not os.environ.get("MTBENCH_RAYJOB_CRD"):
        pytest.skip("MTBENCH_RAYJOB_CRD names no file")
    job = shipped("rayjob.yaml")
    job["spec"]["rayClusterSpec"]["headGroupSpec"]["rayStartParam"] = {}
    with pytest.raises(jsonschema.ValidationError):
        check(job)


@pytest.mark.parametrize("name", SHIPPED)
def test_workers_of_a_shipped_manifest_are_what_its_settings_ask_of_ray(name):
    job = shipped(name)
    words = shlex.split(job["spec"]["entrypoint"])
    assert words[:3] == ["python", "-m", "mtbench_ray"]
    configs = compose(words[3:])
    wanted = kuberay.blocks(configs)
    if kuberay.wants_gpus(configs):
        assert sorted(wanted.items()) == gpus(job)
        assert configs[0].cluster.num_gpus == sum(size * count for size, count in wanted.items())
    else:
        assert gpus(job) == [(0, 1)]
    assert any(word.startswith("workspace=/data/") for word in words)
    # A key is a reference, never a text.
    assert not re.search(r"sk-|api_key=", (LAUNCH / name).read_text())


@pytest.mark.parametrize("name", SHIPPED)
def test_the_entrypoint_of_a_shipped_manifest_runs(name, cli, questions, tmp_path):
    """The very line, with the engine, the volume and the hosted judge of this machine."""
    line = shipped(name)["spec"]["entrypoint"].replace("/data/", f"{tmp_path}/")
    words = [word for word in shlex.split(line)[3:] if not word.startswith(("judge=", "limit"))]
    for word in words:
        if word.startswith("model=/"):
            for folder in word.removeprefix("model=").split(","):
                write_checkpoint(Path(folder), "{{ messages[0]['content'] }}")
    judge = [*cli.judge, f"question_path={questions}", "engine=fake"]
    code = main([*words, *judge])
    _, err = cli.capsys.readouterr()
    assert code == 0, err
    (table,) = tmp_path.glob("results/*/scores.parquet")
    whole = [row for row in parquet.read_table(table).to_pylist() if row["dimension"] == "all"]
    assert [row["scored"] for row in whole] == [8] * (2 if "-m" in words else 1)


def test_versions_of_ray_are_the_same_everywhere():
    versions = {shipped(name)["spec"]["rayClusterSpec"]["rayVersion"] for name in SHIPPED}
    dockerfile = (LAUNCH / "Dockerfile").read_text()
    assert versions == set(re.findall(r"^ARG RAY=(.+)$", dockerfile, re.M))
    assert f"ray-llm:{versions.pop()}-" in (LAUNCH / "kuberay.sh").read_text()


def test_the_dockerfile_copies_what_there_is_and_names_extras_that_there_are():
    text = (LAUNCH / "Dockerfile").read_text()
    for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.M):
        *sources, _ = line.split()
        assert all((ROOT / source).exists() for source in sources), line
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = set(extras["optional-dependencies"])
    named = re.findall(r"\.whl\)\[([a-z,]+)\]", text)
    assert len(named) == 2
    assert {name for some in named for name in some.split(",")} <= extras
    targets = set(re.findall(r"^FROM .* AS (cpu|gpu)$", text, re.M))
    images = [c["image"] for name in SHIPPED for c in [
        shipped(name)["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"][0]
    ]]  # fmt: skip
    assert {image.partition(":")[2] for image in images} == targets
    assert "\nUSER ray\n" in text


@pytest.mark.parametrize(
    ("settings", "groups"),
    [
        (["model=a/b", "judge=gpt-4o"], [(1, 1)]),
        (["model=a/b", "judge=gpt-4o", "engine.replicas=3"], [(1, 3)]),
        (["-m", "model=a/b,c/d,e/f", "judge=gpt-4o"], [(1, 3)]),
        (["model=a/b", "judge=gpt-4o", "engine.tensor_parallel=4"], [(4, 1)]),
        (["model=a/b", "judge=local", "judge.model=j", "judge.tensor_parallel=2"],
         [(1, 1), (2, 1)]),
        (["model=a/b", "judge=local", "judge.model=j", "judge.replicas=2"], [(1, 3)]),
        (["model=a/b", "judge=local", "judge.model=j", "judge.schedule=after",
          "judge.replicas=2"], [(1, 2)]),
        (["model=a/b", "judge=local", "judge.model=j", "stage=judge"], [(1, 1)]),
    ],
)  # fmt: skip
def test_gpus_follow_from_the_settings(settings, groups, capsys):
    code, (job,), err = filled("a-name", *settings, capsys=capsys)
    assert code == 0, err
    check(job)
    assert gpus(job) == groups
    need = sum(size * count for size, count in groups)
    words = shlex.split(job["spec"]["entrypoint"])
    assert words[3 : 3 + len(settings)] == settings
    assert f"cluster.num_gpus={need}" in words
    assert "workspace=/data/results/a-name" in words
    assert compose(words[3:])[0].cluster.num_gpus == need


def test_memory_and_cpus_grow_with_the_gpus_of_a_worker(capsys):
    _, (job,), _ = filled("n", "model=a/b", "judge=gpt-4o", "engine.tensor_parallel=4",
                          capsys=capsys)  # fmt: skip
    (group,) = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    resources = group["template"]["spec"]["containers"][0]["resources"]
    assert resources["requests"] == {"cpu": "16", "memory": "128Gi", "nvidia.com/gpu": 4}


def test_a_judge_behind_an_api_and_an_engine_behind_one_need_no_worker(capsys):
    _, (job,), _ = filled("n", "model=m", "engine=openai", "engine.base_url=http://h/v1",
                          "judge=gpt-4o", capsys=capsys)  # fmt: skip
    check(job)
    assert job["spec"]["rayClusterSpec"]["workerGroupSpecs"] == []


def test_the_demo_model_runs_on_cpus(capsys):
    _, (job,), _ = filled("n", "model=smollm2-135m", "judge=local", "limit=8", capsys=capsys)
    check(job)
    assert gpus(job) == [(0, 1)]
    assert "num_gpus" not in job["spec"]["entrypoint"]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["model=a"], "'' is not a name"),
        (["Big", "model=a"], "'Big' is not a name"),
        (["n" * 48, "model=a"], "47 characters at most"),
        (["n", "model=a", "judge=gpt-4o", "workspace=results"], "gone with the pod"),
        (["n", "model=a", "judge=gpt-4o", "judge.extra_body.api_key=x1y2z3"],
         "would stand in the job's manifest"),
        (["n", "model=a", "judge=gpt-4o", "sampling.max_token=4"], "sampling.max_tokens"),
        (["n", "model=a", "--image"], "--image needs a value"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_before_anything_is_applied(args, said, capsys):
    code, objects, err = filled(*args, capsys=capsys)
    assert (code, objects) == (2, [])
    assert said in err
    assert "Traceback" not in err


def test_the_code_goes_along_in_a_config_map(capsys):
    import base64

    _, (code, job), _ = filled("n", "model=a/b", "judge=gpt-4o", "--upload", "--image", "some:one",
                               capsys=capsys)  # fmt: skip
    check(job)
    assert code["kind"] == "ConfigMap"
    assert len(code["binaryData"]["mtbench_ray.zip"]) < 1_000_000
    archive = zipfile.ZipFile(io.BytesIO(base64.b64decode(code["binaryData"]["mtbench_ray.zip"])))
    names = set(archive.namelist())
    assert {"mtbench_ray/__main__.py", "conf/config.yaml", "conf/judge/gpt-4o.yaml"} <= names
    assert not [name for name in names if "__pycache__" in name]
    submitter = job["spec"]["submitterPodTemplate"]["spec"]
    assert submitter["volumes"][0]["configMap"]["name"] == code["metadata"]["name"]
    environment = yaml.safe_load(job["spec"]["runtimeEnvYAML"])
    mounted = submitter["containers"][0]["volumeMounts"][0]["mountPath"]
    assert environment["working_dir"] == f"{mounted}/mtbench_ray.zip"
    assert environment["env_vars"]["RAY_JOB_STOP_WAIT_TIME_S"] == "30"
    assert any(text.startswith("hydra-core") for text in environment["pip"])
    cluster = job["spec"]["rayClusterSpec"]
    images = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    assert {g["template"]["spec"]["containers"][0]["image"] for g in images} == {"some:one"}


def test_the_script_prints_or_applies_what_the_module_makes(tmp_path):
    """With a kubectl that writes down what it is given."""
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(
        f'#!/bin/sh\necho "$*" >>{tmp_path}/calls\n'
        f'[ "$1" != apply ] || cat >{tmp_path}/applied.yaml\n'
    )
    kubectl.chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}"}
    line = ["bash", str(LAUNCH / "kuberay.sh"), "my-job", "model=a/b", "judge=gpt-4o"]
    shown = subprocess.run([*line, "--dry-run"], capture_output=True, text=True, env=env)
    assert shown.returncode == 0, shown.stderr
    assert not (tmp_path / "calls").exists()
    done = subprocess.run(line, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "applied.yaml").read_text() == shown.stdout
    assert (tmp_path / "calls").read_text().splitlines() == [
        "delete rayjob my-job --ignore-not-found --wait=true",
        "apply -f -",
    ]
    wrong = subprocess.run([*line, "x.y=1"], capture_output=True, text=True, env=env)
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("error: ")
