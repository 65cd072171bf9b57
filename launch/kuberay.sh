#!/usr/bin/env bash
# Runs settings as a KubeRay job: fills launch/rayjob.yaml or launch/rayjob-gpu.yaml and applies it.
# The same line again resumes it.
#
#   bash launch/kuberay.sh NAME model=... judge=... [key=value ...] [--dry-run]
#
# --dry-run       print the manifest and apply nothing
# --cpu, --gpu    which manifest (default: CPU for the demo model and for engine=openai)
# --image IMAGE   image of head and workers (default: mtbench-ray:cpu or mtbench-ray:gpu)
# --upload        the code goes along in a ConfigMap, for an image that has Ray and vLLM but not
#                 mtbench_ray: --image rayproject/ray-llm:2.60.0-py311-cu128
# --manifest FILE one of your own instead
#
# GPUs and workers follow from the settings: a worker holds one engine, or one server of a local
# judge. engine.replicas says how many engines (default: one for each model, at most 8).
# NAMESPACE and context are those of kubectl; the workspace is /data/results/NAME.
set -euo pipefail
for arg; do
  case $arg in -h | --help) sed -n '2,/^set /s/^# \{0,1\}//p' "$0" | sed '$d'; exit ;; esac
done
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
python=$root/.venv/bin/python
[ -x "$python" ] || python=python3

dry='' words=()
for arg; do
  if [ "$arg" = --dry-run ]; then dry=1; else words+=("$arg"); fi
done
manifest=$(cd -- "$root" && "$python" -m mtbench_ray.cli.kuberay ${words[@]+"${words[@]}"})
if [ -n "$dry" ]; then
  printf '%s\n' "$manifest"
  exit
fi
command -v kubectl >/dev/null || {
  printf 'error: no kubectl\n  install it, or add --dry-run and apply what is printed\n' >&2
  exit 2
}
name=${words[0]}
for arg in "${words[@]}"; do
  case $arg in -* | *=*) ;; *) name=$arg; break ;; esac
done
# A job of this name that has ended would only be changed, not run.
kubectl delete rayjob "$name" --ignore-not-found --wait=true
printf '%s\n' "$manifest" | kubectl apply -f -
printf 'follow with  kubectl logs -f -l job-name=%s;  end with  kubectl delete rayjob %s\n' \
  "$name" "$name" >&2
