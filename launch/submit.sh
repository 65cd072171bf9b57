#!/usr/bin/env bash
# Submits a run to a Ray cluster and follows its log. The same line again resumes it.
#
#   bash launch/submit.sh --address http://HEAD:8265 model=... judge=... workspace=/shared/results
#
# --address URL   the cluster's job server (default: RAY_API_SERVER_ADDRESS, or this machine's)
# --env NAME      give the run this variable of yours, or NAME=VALUE; may be repeated. Where the
#                 name is that of a secret only the driver gets it, in a file of the upload, and
#                 neither the dashboard nor `ray job list` shows it. Whoever may submit jobs to the
#                 cluster could read it: a key in the cluster's own environment is better.
# --file PATH     upload this file or folder of yours too (question_path=..., --config-dir=...);
#                 settings name it by its last part; may be repeated
# --installed     upload no code: mtbench_ray is installed on every node
# --pip           Ray installs the small packages that mtbench_ray needs; Ray and vLLM are there
# --python PATH   Python on the cluster's head (default: python)
# --id NAME       submission id (default: mtbench-TIME-PID)
# --no-wait       do not follow the log
# --dry-run       show what would be uploaded and run
#
# The run is on the head: workspace= is a path there, absolute, on a disk that outlives the job.
# Exit codes are those of the run: 0 all scored, 2 a mistake, 3 finished with failures, 130 stopped.
set -euo pipefail
for arg; do
  case $arg in -h | --help) sed -n '2,/^set /s/^# \{0,1\}//p' "$0" | sed '$d'; exit ;; esac
done
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
limit_mb=${MTBENCH_RAY_UPLOAD_MB:-50}

fail() {
  printf 'error: %s\n' "$1" >&2
  [ -z "${2:-}" ] || printf '  %s\n' "$2" >&2
  exit 2
}
value() { [ $# -ge 2 ] || fail "$1 needs a value" "bash launch/submit.sh --help"; }

address=${RAY_API_SERVER_ADDRESS:-http://127.0.0.1:8265}
python=python id=mtbench-$(date -u +%Y%m%dT%H%M%SZ)-$$
upload=1 pip='' wait=1 dry=''
settings=() names=() files=()
while [ $# -gt 0 ]; do
  case $1 in
    --address) value "$@"; address=$2; shift ;;
    --env) value "$@"; names+=("$2"); shift ;;
    --file) value "$@"; files+=("$2"); shift ;;
    --python) value "$@"; python=$2; shift ;;
    --id) value "$@"; id=$2; shift ;;
    --installed) upload='' ;;
    --pip) pip=1 ;;
    --no-wait) wait='' ;;
    --dry-run) dry=1 ;;
    *) settings+=("$1") ;;
  esac
  shift
done
[ ${#settings[@]} -gt 0 ] || fail "no settings" "bash launch/submit.sh model=... judge=... workspace=/..."
case " ${settings[*]}" in
  *" workspace=/"*) ;;
  *) fail "workspace= must be an absolute path on the cluster's head: the job's own folder is removed after it" \
    "add workspace=/shared/results, on a disk that outlives the job" ;;
esac

# The Python here that has Ray with its job client.
here=$root/.venv/bin/python
[ -x "$here" ] || here=$(command -v python3) || fail "no python3" "bash launch/setup.sh"
[ -n "$dry" ] || "$here" -c 'import ray.job_submission, aiohttp' 2>/dev/null ||
  fail "$here has no Ray job client" "$here -m pip install 'ray[default]'"

stage=$(mktemp -d)
trap 'rm -rf -- "$stage"' EXIT
secret=''
if [ -n "$upload" ]; then
  # Only what a run needs is copied: no results, caches or checkpoints can be among it.
  cp -R -- "$root/mtbench_ray" "$root/conf" "$stage/"
  find "$stage" -name __pycache__ -prune -exec rm -r {} +
fi
for file in ${files[@]+"${files[@]}"}; do
  [ -e "$file" ] || fail "$file is not here" "--file takes a file or folder of this machine"
  name=$(basename -- "$file")
  [ ! -e "$stage/$name" ] || fail "two files of the upload are called $name" "rename one of them"
  cp -RL -- "$file" "$stage/$name"
done
env_names=() env_values=()
for name in ${names[@]+"${names[@]}"}; do
  case $name in
    *=*) text=${name#*=} name=${name%%=*} ;;
    *) [ -n "${!name+set}" ] || fail "--env $name: it is not set here" "export $name=..."
      text=${!name} ;;
  esac
  case ${name^^} in
    *KEY* | *TOKEN* | *SECRET* | *PASSWORD*)
      secret=1
      (umask 077 && printf 'export %s=%q\n' "$name" "$text" >>"$stage/job_secrets") ;;
    *) env_names+=("$name") env_values+=("$text") ;;
  esac
done
size=$(find "$stage" -type f -printf '%s\n' | awk '{ all += $1 } END { print all + 0 }')
if ((size > limit_mb * 1000000)); then
  printf 'largest files of the upload:\n' >&2
  find "$stage" -type f -printf '%s\t%P\n' | sort -rn | awk -F '\t' \
    'NR <= 5 { printf "  %8.1f MB  %s\n", $1 / 1e6, $2 }' >&2
  fail "the upload has $((size / 1000000)) MB, and $limit_mb are allowed" \
    "put large files on a disk of the cluster and name them there, or set MTBENCH_RAY_UPLOAD_MB"
fi

commit=$(git -C "$root" describe --always --dirty --abbrev=40 '--exclude=*' 2>/dev/null || true)
# Ray kills a stopped job after 3 s; a run lets its calls end and writes what it has before.
env_names+=(RAY_JOB_STOP_WAIT_TIME_S MTBENCH_RAY_COMMIT) env_values+=(30 "$commit")
runtime_env=$(
  for index in "${!env_names[@]}"; do printf '%s\0%s\0' "${env_names[index]}" "${env_values[index]}"; done |
    "$here" -c '
import json, pathlib, sys, tomllib
root, pip = sys.argv[1:]
words = sys.stdin.read().split("\0")[:-1]
env = {"env_vars": dict(zip(words[::2], words[1::2]))}
if pip:
    project = tomllib.loads(pathlib.Path(root, "pyproject.toml").read_text("utf-8"))["project"]
    env["pip"] = [text for text in project["dependencies"] if not text.startswith("ray")]
print(json.dumps(env))' "$root" "$pip"
)
command=("$python" -m mtbench_ray "${settings[@]}")
# shellcheck disable=SC2016  # expanded on the cluster
[ -z "$secret" ] || command=(bash -c '. ./job_secrets && exec "$0" "$@"' "${command[@]}")
submit=("$here" -m ray.scripts.scripts job submit --address "$address" --submission-id "$id"
  --runtime-env-json "$runtime_env" --no-wait)
[ -z "$(ls -A "$stage")" ] || submit+=(--working-dir "$stage")

printf 'submit: %s, %d kB to %s\n' "$id" $((size / 1000)) "$address" >&2
if [ -n "$dry" ]; then
  (cd -- "$stage" && find . -type f -printf '%P\n' | sort)
  printf '%q ' "${submit[@]}" -- "${command[@]}"
  echo
  exit
fi
ray() { "$here" -m ray.scripts.scripts job "$1" --address "$address" "${@:2}"; }
"${submit[@]}" -- "${command[@]}" >"$stage.log" 2>&1 || {
  code=$?
  tail -n 20 "$stage.log" >&2
  rm -f -- "$stage.log"
  fail "the job was not taken (exit code $code)" "is the job server at $address? --address names another"
}
rm -f -- "$stage.log"
printf 'submit: follow with  ray job logs --follow %s;  end with  ray job stop %s\n' "$id" "$id" >&2
[ -n "$wait" ] || exit 0
# Ctrl-C ends only the following.
trap 'printf "\nsubmit: the job goes on; end it with  ray job stop --address %s %s\n" "$address" "$id" >&2; exit 130' INT
ray logs --follow "$id" 2>/dev/null || true
"$here" - "$address" "$id" <<'END'
import sys
import time

from ray.job_submission import JobStatus, JobSubmissionClient

address, job = sys.argv[1:]
client = JobSubmissionClient(address)
while not (info := client.get_job_info(job)).status.is_terminal():
    time.sleep(1.0)
if info.status == JobStatus.SUCCEEDED:
    sys.exit(0)
if info.status == JobStatus.STOPPED:
    print("submit: the job was stopped; the same line again resumes it", file=sys.stderr)
    sys.exit(130)
if not info.driver_exit_code:  # it did not come to the run
    print(f"error: {info.message}", file=sys.stderr)
sys.exit(info.driver_exit_code or 1)
END
