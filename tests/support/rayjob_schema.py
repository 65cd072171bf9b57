"""The part of the RayJob schema (ray.io/v1, KubeRay 1.7) that the manifests use, by its rules.

Written from the fields' documentation, not copied. With MTBENCH_RAYJOB_CRD=FILE the tests also
check against the official file (helm-chart/kuberay-operator/crds/ray.io_rayjobs.yaml).
"""

import re
from typing import Any


def closed(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    """An object without other fields: kubectl refuses unknown ones."""
    return {"type": "object", "properties": properties, "required": list(required),
            "additionalProperties": False}  # fmt: skip


TEXT = {"type": "string"}
COUNT = {"type": "integer", "minimum": 0}
TEXTS = {"type": "object", "additionalProperties": TEXT}
QUANTITY = {
    "anyOf": [{"type": "integer"}, {"type": "string", "pattern": r"^[0-9.]+(m|[KMGT]i?)?$"}]
}
QUANTITIES = {"type": "object", "additionalProperties": QUANTITY}
CONTAINER = closed(
    {
        "name": TEXT,
        "image": TEXT,
        "ports": {"type": "array", "items": closed({"name": TEXT, "containerPort": COUNT})},
        "resources": closed({"requests": QUANTITIES, "limits": QUANTITIES}),
        "env": {"type": "array", "items": closed({"name": TEXT, "value": TEXT}, "name")},
        "envFrom": {
            "type": "array",
            "items": closed({"secretRef": closed({"name": TEXT, "optional": {"type": "boolean"}})}),
        },
        "volumeMounts": {
            "type": "array",
            "items": closed({"name": TEXT, "mountPath": TEXT}, "name", "mountPath"),
        },
    },
    "name",
    "image",
)
VOLUME = closed(
    {
        "name": TEXT,
        "persistentVolumeClaim": closed({"claimName": TEXT}, "claimName"),
        "emptyDir": closed({"medium": TEXT, "sizeLimit": QUANTITY}),
        "configMap": closed({"name": TEXT}),
    },
    "name",
)
TEMPLATE = closed(
    {
        "spec": closed(
            {
                "restartPolicy": {"enum": ["Never", "Always", "OnFailure"]},
                "terminationGracePeriodSeconds": COUNT,
                "nodeSelector": TEXTS,
                "tolerations": {
                    "type": "array",
                    "items": closed({"key": TEXT, "operator": TEXT, "effect": TEXT, "value": TEXT}),
                },
                "containers": {"type": "array", "items": CONTAINER, "minItems": 1},
                "volumes": {"type": "array", "items": VOLUME},
            },
            "containers",
        )
    },
    "spec",
)
CLUSTER = closed(
    {
        "rayVersion": TEXT,
        "enableInTreeAutoscaling": {"type": "boolean"},
        "autoscalerOptions": closed({"idleTimeoutSeconds": COUNT}),
        "headGroupSpec": closed({"rayStartParams": TEXTS, "template": TEMPLATE}, "template"),
        "workerGroupSpecs": {
            "type": "array",
            "items": closed(
                {
                    "groupName": TEXT,
                    "replicas": COUNT,
                    "minReplicas": COUNT,
                    "maxReplicas": COUNT,
                    "rayStartParams": TEXTS,
                    "template": TEMPLATE,
                },
                "groupName", "maxReplicas", "minReplicas", "template",
            ),
        },
    },
    "headGroupSpec",
)  # fmt: skip
RAYJOB = closed(
    {
        "apiVersion": {"const": "ray.io/v1"},
        "kind": {"const": "RayJob"},
        "metadata": closed({"name": TEXT}, "name"),
        "spec": closed(
            {
                "entrypoint": TEXT,
                "runtimeEnvYAML": TEXT,
                "submissionMode": {"enum": ["K8sJobMode", "HTTPMode", "SidecarMode"]},
                "submitterConfig": closed({"backoffLimit": COUNT}),
                "submitterPodTemplate": TEMPLATE,
                "shutdownAfterJobFinishes": {"type": "boolean"},
                "ttlSecondsAfterFinished": COUNT,
                "backoffLimit": COUNT,
                "activeDeadlineSeconds": {"type": "integer", "minimum": 1},
                "rayClusterSpec": CLUSTER,
            },
            "entrypoint", "rayClusterSpec",
        ),
    },
    "apiVersion", "kind", "metadata", "spec",
)  # fmt: skip


def mistakes(job: dict[str, Any]) -> list[str]:
    """What KubeRay's operator would refuse beyond the schema."""
    spec, found = job["spec"], []
    name = job["metadata"]["name"]
    if len(name) > 47 or not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name):
        found.append("name")
    if spec.get("ttlSecondsAfterFinished") and not spec.get("shutdownAfterJobFinishes"):
        found.append("ttl without shutdown")
    if spec.get("submissionMode") == "SidecarMode" and "submitterPodTemplate" in spec:
        found.append("submitter in sidecar mode")
    for group in spec["rayClusterSpec"].get("workerGroupSpecs", []):
        if not group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]:
            found.append(f"replicas of {group['groupName']}")
        template = group["template"]["spec"]
        volumes = {volume["name"] for volume in template.get("volumes", [])}
        for container in template["containers"]:
            if not {mount["name"] for mount in container.get("volumeMounts", [])} <= volumes:
                found.append("a mount without a volume")
            resources = container.get("resources", {})
            gpu = "nvidia.com/gpu"
            if resources.get("requests", {}).get(gpu) != resources.get("limits", {}).get(gpu):
                found.append("requests and limits of GPUs differ")
    return found


def strict(schema: Any) -> Any:
    """An official schema with unknown fields refused, as ``kubectl apply`` does."""
    if isinstance(schema, list):
        return [strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: strict(value) for key, value in schema.items()}
    if "properties" in made and isinstance(schema["properties"], dict):
        keep = schema.get("x-kubernetes-preserve-unknown-fields")
        made.setdefault("additionalProperties", bool(keep))
    if made.get("x-kubernetes-int-or-string"):
        made.pop("type", None)
    return made
