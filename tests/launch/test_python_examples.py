"""The Python examples of the documentation are run, on the fake engine and a stub judge."""

import functools
import re

import pytest
from paths import ROOT

import mtbench_ray

pytestmark = pytest.mark.runs

PAGES = ("README.md", "launch/README.md")
EXAMPLES = [
    pytest.param(block, id=f"{page}-{number}")
    for page in PAGES
    for number, block in enumerate(
        re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    )
]


def test_there_are_examples():
    assert len(EXAMPLES) >= 1


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_runs_as_it_stands(example, stub, questions, references, tmp_path, monkeypatch):
    def with_stubs(call, **settings):
        @functools.wraps(call)
        def wrapped(*args, **more):
            return call(*args, **settings | more)

        return wrapped

    judge = {"judge.base_url": stub.url, "quiet": True}
    run = judge | {
        "engine": "fake", "question_path": str(questions), "reference_path": str(references),
    }  # fmt: skip
    monkeypatch.setenv("OPENAI_API_KEY", "sk-stub-0123456789")
    monkeypatch.chdir(tmp_path)
    for name, settings in (("evaluate", run), ("plan", run), ("judge", judge)):
        monkeypatch.setattr(mtbench_ray, name, with_stubs(getattr(mtbench_ray, name), **settings))
    exec(compile(example, "example", "exec"), {})
    assert stub.stats()["calls"] > 0
