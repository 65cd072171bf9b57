#!/usr/bin/env bash
# Sets up .venv in the checkout with everything that the demo needs; with "dev" also what the
# tests need. Does nothing where that was done before. demo.sh and test.sh call it.
#
#   bash launch/setup.sh [dev]
#
# PYTHON             the Python to build .venv with (default: the first of python3, python3.13,
#                    python3.12, python3.11 that is 3.11 or newer)
# MTBENCH_RAY_EXTRA  cpu or gpu (default: gpu where nvidia-smi shows a card)
set -euo pipefail
for arg; do
  case $arg in -h | --help) sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; exit ;; esac
done
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
venv=$root/.venv
stamp=$venv/mtbench_ray.stamp
log=$venv/setup.log

say() { printf 'setup: %s\n' "$*" >&2; }
fail() {
  printf 'error: %s\n' "$1" >&2
  [ -z "${2:-}" ] || printf '  %s\n' "$2" >&2
  exit 2
}

extra=${MTBENCH_RAY_EXTRA:-}
if [ -z "$extra" ]; then
  extra=cpu
  if command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q GPU; then extra=gpu; fi
fi
case $extra in
  cpu | gpu) ;;
  *) fail "MTBENCH_RAY_EXTRA is '$extra'" "it takes cpu or gpu" ;;
esac
wanted="demo${1:+ $1}"

# The stamp says what was installed, from which settings and into which folder: a moved checkout
# or a changed pyproject.toml is set up again. It is one line of key and one of extras.
key="$extra $(cat -- "$root/pyproject.toml" "$root/launch/setup.sh" | cksum) $root"
had_key='' had=''
is_ready() {
  [ -f "$stamp" ] && [ -x "$venv/bin/python" ] || return 1
  { read -r had_key && read -r had; } <"$stamp" || return 1
  [ "$had_key" = "$key" ] && [[ " $had " == *" ${1:-demo} "* ]]
}
if is_ready "$@"; then exit 0; fi
if [ -n "$had_key" ] && [ "${had_key%% *}" != "$extra" ]; then
  fail "$venv was set up for ${had_key%% *}, and this machine wants $extra" \
    "remove it (rm -r '$venv'), or keep it with MTBENCH_RAY_EXTRA=${had_key%% *}"
fi

fits='import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 15))'
find_python() {
  local name
  for name in ${PYTHON:+"$PYTHON"} ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
    if command -v "$name" >/dev/null && "$name" -c "$fits" 2>/dev/null; then
      printf '%s' "$name"
      return
    fi
  done
  name=${PYTHON:-python3}
  fail "no Python from 3.11 to 3.14 found ($name is $("$name" -V 2>&1 || true))" \
    "install one, or name it: PYTHON=/path/to/python3.12 bash launch/demo.sh"
}

# Runs a command with its output in the log, and says every half minute that it is still going.
child=''
trap '[ -z "$child" ] || kill "$child" 2>/dev/null || true' EXIT
trap 'exit 130' INT TERM
step() {
  say "$1"
  shift
  "$@" >>"$log" 2>&1 &
  child=$!
  local code=0 begun=$SECONDS said=$SECONDS
  while kill -0 "$child" 2>/dev/null; do
    sleep 0.2
    if ((SECONDS - said >= 30)); then
      said=$SECONDS
      say "  ... still going after $((SECONDS - begun)) s"
    fi
  done
  wait "$child" || code=$?
  child=''
  if [ "$code" != 0 ]; then
    tail -n 15 "$log" | sed 's/^/    /' >&2
    local hint=''
    # The CPU builds of torch are not on every package index, nor for every Python.
    if grep -qE '(depends on|found for) torch==[0-9.]+\+cpu' "$log"; then
      hint="pip must find a CPU build of torch for $("$venv/bin/python" -V): add PyTorch's own index
  of CPU builds to your pip configuration (pytorch.org, Get Started), or take another Python:
  rm -r '$venv', then PYTHON=python3.11 bash launch/demo.sh"
    fi
    fail "this step failed; the whole log is in $log" "$hint"
  fi
}

if ! "$venv/bin/python" -c '' 2>/dev/null; then
  [ ! -e "$venv" ] || [ -e "$venv/pyvenv.cfg" ] ||
    fail "$venv is there and is no virtual environment" "move it away"
  python=$(find_python)
  "$python" -c 'import venv, ensurepip' 2>/dev/null ||
    fail "$python cannot make virtual environments (no venv or ensurepip module)" \
      "on Debian and Ubuntu: apt install python3-venv; or PYTHON=another python"
  say "$("$python" -V) makes $venv"
  # --clear: a .venv whose Python does not run (it was removed or moved) is of no use.
  "$python" -m venv --clear "$venv"
fi
"$venv/bin/python" -c "$fits" ||
  fail "$venv holds $("$venv/bin/python" -V), and 3.11 to 3.14 is needed" "rm -r '$venv'"
# Two set-ups at once would break each other's packages.
if command -v flock >/dev/null; then
  exec 9>"$venv/setup.lock"
  flock -n 9 || { say "waiting for another set-up of $venv"; flock 9; }
  if is_ready "$@"; then exit 0; fi
fi

begun=$SECONDS
: >"$log"
pip=("$venv/bin/python" -m pip --disable-pip-version-check)
"$venv/bin/python" -m pip --version >/dev/null 2>&1 ||
  step "adding pip to .venv" "$venv/bin/python" -m ensurepip
# Not compiled: Python does that for the modules that are used, and most never are.
step "installing mtbench_ray[$extra,${wanted// /,}] into .venv: vLLM, PyTorch and Ray, about 4 GB,
  2 to 5 minutes the first time" \
  "${pip[@]}" install --no-input --no-compile -e "${root}[$extra,${wanted// /,}]"

# pip may pick a torchvision that does not match torch, and then transformers does not import.
# Text models need none of the three.
for name in torchvision torchaudio torchcodec; do
  if "$venv/bin/python" -c "import importlib.util, sys; sys.exit(not importlib.util.find_spec('$name'))" &&
    ! "$venv/bin/python" -c "import $name" >>"$log" 2>&1; then
    step "removing $name: it does not work with this torch, and text models do not need it" \
      "${pip[@]}" uninstall --yes "$name"
  fi
done
step "checking that what was installed works together" \
  "$venv/bin/python" -c 'import ray.data, vllm, openai, hydra
import vllm.v1.engine.async_llm
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM'

printf '%s\n%s\n' "$key" "$wanted" >"$stamp"
say "done in $((SECONDS - begun)) s"
