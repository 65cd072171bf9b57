"""The manifest of a KubeRay job, filled from settings; ``launch/kuberay.sh`` applies it.

python -m mtbench_ray.cli.kuberay NAME [--cpu|--gpu] [--image I] [--upload] key=value ...
"""

from __future__ import annotations

import base64
import copy
import io
import re
import shlex
import sys
import tomllib
import zipfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mtbench_ray.cli.hydra_app import compose, conf_dir, presets
from mtbench_ray.cli.overrides import config_folders, read
from mtbench_ray.cli.typed_secrets import take_secrets
from mtbench_ray.config import DEMO_MODEL, RunConfig
from mtbench_ray.errors import EXIT_OK, EXIT_USAGE, UserError
from mtbench_ray.generate.cluster import needs_ray

MOST_ENGINES = 8
"""Engines of a sweep where ``engine.replicas`` does not say."""
WAIT_S = 1200
"""Seconds that a run waits for its workers: a node may have to be bought and an image fetched."""
LONGEST_NAME = 47
CONFIG_MAP_BYTES = 1_000_000
_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_GPU = "nvidia.com/gpu"
_CODE = "/code/mtbench_ray.zip"
_VOLUME = "/data"


@dataclass
class Asked:
    """What was typed.

    Attributes:
        gpus: Which manifest; None: as the settings need.
        upload: Send the code in a ConfigMap.
        manifest: A file of the user's own instead of the shipped ones.
    """

    name: str = ""
    settings: list[str] = field(default_factory=list)
    gpus: bool | None = None
    image: str = ""
    upload: bool = False
    manifest: Path | None = None


def parse(args: Sequence[str]) -> Asked:
    """Read a command line.

    Raises:
        UserError: No name, a name that Kubernetes does not take, or a secret among the settings.
    """
    asked = Asked()
    rest = iter(args)
    for arg in rest:
        if arg in ("--cpu", "--gpu"):
            asked.gpus = arg == "--gpu"
        elif arg == "--upload":
            asked.upload = True
        elif arg in ("--image", "--manifest"):
            value = next(rest, "")
            if not value:
                raise UserError(f"{arg} needs a value", f"{arg} VALUE")
            if arg == "--image":
                asked.image = value
            else:
                asked.manifest = Path(value)
        elif arg.startswith(("-", "~", "+")) or "=" in arg:
            asked.settings.append(arg)
        elif asked.name:
            raise UserError(f"two names: '{asked.name}' and '{arg}'", "settings are key=value")
        else:
            asked.name = arg
    if len(asked.name) > LONGEST_NAME or not _NAME.fullmatch(asked.name):
        raise UserError(
            f"'{asked.name}' is not a name of a KubeRay job",
            f"small letters, digits and -, a letter first, {LONGEST_NAME} characters at most",
        )
    folders = config_folders(asked.settings)
    typed = read(asked.settings, presets(folders)).args
    if secrets := take_secrets(typed).values:
        raise UserError(
            f"{'.'.join(next(iter(secrets)))} is a secret and would stand in the job's manifest",
            "put it into the secret mtbench-keys and name its variable: '${oc.env:NAME}'",
        )
    return asked


def blocks(configs: Sequence[RunConfig]) -> Counter[int]:
    """Workers that the jobs of a run want, by the GPUs of each: one for an engine, one for a server
    of a local judge. With ``judge.schedule=after`` judges take the places of the engines.
    """
    first = configs[0]
    engines: Counter[int] = Counter()
    if first.engine.kind == "vllm" and first.stage != "judge":
        models = len({(c.model.path, c.model.adapter, c.model.revision) for c in configs})
        count = first.engine.replicas or min(models, MOST_ENGINES)
        engines[first.engine.tensor_parallel * first.engine.pipeline_parallel] = count
    judges: Counter[int] = Counter()
    local = {
        (c.judge.model, c.judge.tensor_parallel): c.judge.replicas
        for c in configs
        if c.judge.kind == "local" and first.stage != "answers"
    }
    for (_, gpus), replicas in local.items():
        judges[gpus] += replicas
    if all(c.judge.schedule == "after" for c in configs if c.judge.kind == "local"):
        return engines | judges
    return engines + judges


def wants_gpus(configs: Sequence[RunConfig]) -> bool:
    """Whether an engine or a judge of the run is more than the demo model, which CPUs do."""
    judged = any(c.judge.kind == "local" and c.judge.model != DEMO_MODEL for c in configs)
    answered = any(
        c.engine.kind == "vllm" and not c.model.embedded and c.stage != "judge" for c in configs
    )
    return judged or answered


def fill(
    manifest: Mapping[str, Any], asked: Asked, configs: Sequence[RunConfig], gpus: bool
) -> list[dict[str, Any]]:
    """The Kubernetes objects of a run: the job, and the ConfigMap of its code where asked for.

    Args:
        manifest: The shipped job, or one of the user's own.
        configs: The composed settings of each job.
        gpus: Whether workers have GPUs.

    Raises:
        UserError: The workspace is not on the volume, or the manifest has no worker group.
    """
    job = copy.deepcopy(dict(manifest))
    job["metadata"] = {**job.get("metadata", {}), "name": asked.name}
    spec, cluster = job["spec"], job["spec"]["rayClusterSpec"]
    wanted = blocks(configs)
    need = sum(size * count for size, count in wanted.items())

    settings = list(asked.settings)
    keys = dict(arg.lstrip("+").split("=", 1) for arg in settings if "=" in arg)
    workspace = keys.get("workspace", f"{_VOLUME}/results/{asked.name}")
    if "workspace" not in keys:
        settings.append(f"workspace={workspace}")
    elif not workspace.startswith(f"{_VOLUME}/"):
        raise UserError(
            f"workspace={workspace} is gone with the pod",
            f"choose a folder of the volume: workspace={_VOLUME}/results/{asked.name}",
        )
    if wanted and "cluster.wait_s" not in keys:
        settings.append(f"cluster.wait_s={WAIT_S}")
    if gpus and wanted and "cluster.num_gpus" not in keys:
        settings.append(f"cluster.num_gpus={need}")
    spec["entrypoint"] = shlex.join(["python", "-m", "mtbench_ray", *settings])

    groups = cluster.get("workerGroupSpecs") or []
    if not groups:
        raise UserError("the manifest has no workerGroupSpecs", "begin with launch/rayjob-gpu.yaml")
    if gpus:
        cluster["workerGroupSpecs"] = [
            _group(groups[0], size, count) for size, count in sorted(wanted.items())
        ]
    elif not wanted and not any(needs_ray(c.engine, c.cluster) for c in configs):
        cluster["workerGroupSpecs"] = []  # the driver does it all
    if asked.image:
        for template in _templates(cluster):
            template["spec"]["containers"][0]["image"] = asked.image
    if not asked.upload:
        return [job]
    image = cluster["headGroupSpec"]["template"]["spec"]["containers"][0]["image"]
    name = f"{asked.name}-code"
    _send(spec, name, image)
    code = base64.b64encode(zipped_code()).decode()
    if len(code) > CONFIG_MAP_BYTES:
        most = CONFIG_MAP_BYTES // 1000
        raise UserError(
            f"the code has {len(code) // 1000} kB, and a ConfigMap takes {most}",
            "build an image: launch/Dockerfile",
        )
    config_map = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name},
        "binaryData": {Path(_CODE).name: code},
    }
    return [config_map, job]


def _group(template: Mapping[str, Any], size: int, count: int) -> dict[str, Any]:
    """A worker group of ``count`` pods with ``size`` GPUs each, from one of single GPUs."""
    group = copy.deepcopy(dict(template))
    group["groupName"] = f"gpu-{size}"
    group |= {"replicas": count, "minReplicas": 0, "maxReplicas": count}
    resources = group["template"]["spec"]["containers"][0]["resources"]
    for kind in ("requests", "limits"):
        have = resources[kind]
        one = int(have.get(_GPU, 1))
        resources[kind] = {
            key: size if key == _GPU else _times(value, size / one) for key, value in have.items()
        }
    return group


def _times(quantity: Any, factor: float) -> str:
    """A Kubernetes quantity of whole units, so many times."""
    number, unit = re.fullmatch(r"([0-9.]+)(.*)", str(quantity)).groups()  # type: ignore[union-attr]
    return f"{round(float(number) * factor)}{unit}"


def _templates(cluster: Mapping[str, Any]) -> list[dict[str, Any]]:
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    return [group["template"] for group in groups]


def _send(spec: dict[str, Any], config_map: str, image: str) -> None:
    """Let the pod that submits the job upload the code, and Ray install what else is needed."""
    from omegaconf import OmegaConf

    raw = OmegaConf.create(spec.get("runtimeEnvYAML") or "{}")
    environment = dict(OmegaConf.to_container(raw))  # type: ignore[arg-type]
    environment |= {"working_dir": _CODE, "pip": dependencies()}
    spec["runtimeEnvYAML"] = OmegaConf.to_yaml(OmegaConf.create(environment))
    spec["submitterPodTemplate"] = {
        "spec": {
            "restartPolicy": "Never",
            "containers": [
                {
                    "name": "ray-job-submitter",
                    "image": image,
                    "volumeMounts": [{"name": "code", "mountPath": str(Path(_CODE).parent)}],
                }
            ],
            "volumes": [{"name": "code", "configMap": {"name": config_map}}],
        }
    }


def dependencies() -> list[str]:
    """What mtbench_ray needs beside Ray, as pip takes it.

    Raises:
        UserError: There is no checkout around this package.
    """
    path = conf_dir().parent / "pyproject.toml"
    if not path.is_file():
        raise UserError("--upload needs a checkout", "or build an image: launch/Dockerfile")
    project = tomllib.loads(path.read_text("utf-8"))["project"]
    return [text for text in project["dependencies"] if not text.startswith("ray")]


def zipped_code() -> bytes:
    """The package and its settings; the same bytes for the same files."""
    package = Path(__file__).resolve().parents[1]
    found = io.BytesIO()
    with zipfile.ZipFile(found, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for folder in (package, conf_dir()):
            for path in sorted(folder.rglob("*")):
                if path.is_file() and "__pycache__" not in path.parts:
                    name = path.relative_to(folder.parent).as_posix()
                    archive.writestr(zipfile.ZipInfo(name), path.read_bytes(), zipfile.ZIP_DEFLATED)
    return found.getvalue()


def main(args: Sequence[str]) -> int:
    """Print the manifest; returns the exit code."""
    import yaml

    try:
        asked = parse(args)
        configs = compose(asked.settings)
        gpus = wants_gpus(configs) if asked.gpus is None else asked.gpus
        file = f"rayjob{'-gpu' * gpus}.yaml"
        path = asked.manifest or conf_dir().parent / "launch" / file
        try:
            manifest = yaml.safe_load(path.read_text("utf-8"))
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror}", "--manifest FILE") from None
        objects = fill(manifest, asked, configs, gpus)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_USAGE
    print(_dump(yaml, objects), end="")
    return EXIT_OK


def _dump(yaml: Any, objects: Sequence[Mapping[str, Any]]) -> str:
    class Plain(yaml.SafeDumper):  # type: ignore[misc]
        def ignore_aliases(self, data: Any) -> bool:
            return True

    text: str = yaml.dump_all(objects, Dumper=Plain, sort_keys=False, width=1000)
    return text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
