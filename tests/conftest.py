"""Small inputs of our own, and a judge that runs in the test's process."""

import json
import os
import subprocess

import pytest
from command import Cli
from questions import QUESTIONS
from stub_server import StubServer

os.environ.setdefault("RAY_AUTH_MODE", "disabled")
os.environ.setdefault("HF_HUB_OFFLINE", "1")


def pytest_collection_modifyitems(items):
    """Tests that make whole runs, or start processes, are marked: ``launch/test.sh quick`` leaves
    them out."""
    for item in items:
        if {"cli", "run", "stub_run"} & set(getattr(item, "fixturenames", ())):
            item.add_marker("runs")


@pytest.fixture
def questions(tmp_path):
    """A question file of four own questions in two categories."""
    path = tmp_path / "own_questions.jsonl"
    path.write_text(
        "".join(
            json.dumps({"question_id": number, "category": category, "turns": turns}) + "\n"
            for number, category, turns in QUESTIONS
        )
    )
    return path


@pytest.fixture
def references(tmp_path):
    """Reference answers to the math questions."""
    path = tmp_path / "own_references.jsonl"
    path.write_text(
        "".join(
            json.dumps({"question_id": number, "choices": [{"index": 0, "turns": ["144", "12"]}]})
            + "\n"
            for number in (2, 4)
        )
    )
    return path


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 64 kB, where the tests may mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("needs the right to mount a tmpfs")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture
def stub():
    """A judge that listens on this machine."""
    with StubServer() as server:
        yield server


@pytest.fixture
def cli(stub, questions, references, tmp_path, capsys):
    """The command line with the fake engine, the stub judge and the small questions."""
    return Cli(stub, questions, references, tmp_path / "work", capsys)
