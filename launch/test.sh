#!/usr/bin/env bash
# Runs all checks; sets up .venv first where needed.
#
#   bash launch/test.sh          all, as CI does: tests with engines and Ray two at a time, those by the
#                                clock one by one, then the rest
#   bash launch/test.sh quick    in two minutes: no engine, no Ray, no whole run, no process started
#   bash launch/test.sh -n 2 -m "not engine and not rays"     (other arguments are pytest's)
#   bash launch/test.sh -k parse
set -euo pipefail
for arg; do
  case $arg in -h | --help) sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; exit ;; esac
done
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
bash "$root/launch/setup.sh" dev
cd -- "$root"
# A Ray started by a test must not write an auth token into the home folder.
export RAY_AUTH_MODE=disabled
# Hundreds of processes import the same modules: without kept bytecode each compiles them anew.
unset PYTHONDONTWRITEBYTECODE

step() {
  local name=$1
  shift
  echo "test: $name" >&2
  "$@" || {
    local code=$?
    echo "error: $name failed (exit code $code)" >&2
    exit "$code"
  }
}
python=.venv/bin/python
step "ruff check" "$python" -m ruff check .
step "ruff format" "$python" -m ruff format --check .
step "mypy" "$python" -m mypy
if [ "$*" = quick ]; then
  step "pytest, quick" "$python" -m pytest -m "not engine and not rays and not runs" \
    -n $(($(nproc) + 1)) --dist worksteal
elif [ $# -gt 0 ]; then
  step "pytest" "$python" -m pytest "$@"
else
  # Two at a time, files whole: tests of a file share engines and clusters.
  step "pytest, engines and Ray" "$python" -m pytest -m "engine or rays" -n 2 --dist loadfile
  step "pytest, by the clock" "$python" -m pytest -m "clock and not engine and not rays"
  # More workers than cores: many tests wait for what they have started.
  step "pytest, the rest" "$python" -m pytest -m "not engine and not rays and not clock" \
    -n $((2 * $(nproc))) --dist worksteal
fi
