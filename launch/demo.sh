#!/usr/bin/env bash
# Runs the main job on the embedded demo model and judge; sets up .venv first where needed.
# Takes as many questions as fit into five minutes on this machine, and the same ones again in the
# same workspace. Arguments are passed on as settings and win over the ones here:
#
#   bash launch/demo.sh limit=80
set -euo pipefail
for arg; do
  case $arg in -h | --help) sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; exit ;; esac
done
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
bash "$root/launch/setup.sh"

max_tokens=128
case " $* " in
  *" sampling.max_tokens="*) ;;
  *) echo "demo: answers have at most $max_tokens new tokens per turn (sampling.max_tokens=$max_tokens)," \
    "not the 1024 of MT-Bench, so that a CPU takes minutes; expect truncated answers." >&2 ;;
esac
# A model or a judge may be given only once.
settings=("sampling.max_tokens=$max_tokens")
case " $*" in *" judge="*) ;; *) settings=(judge=local "${settings[@]}") ;; esac
case " $*" in *" model="*) ;; *) settings=(model=smollm2-135m "${settings[@]}") ;; esac
# How many questions this machine answers in five minutes; nothing where you choose them.
read -ra sized <<<"$("$root/.venv/bin/python" -P -m mtbench_ray.run.demo_size "$@" || true)"
# -P: a folder named mtbench_ray in the working directory must not be run instead.
exec "$root/.venv/bin/python" -P -m mtbench_ray "${settings[@]}" "${sized[@]}" "$@"
