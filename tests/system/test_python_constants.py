"""Constants of other people's Python files."""

import pytest

from mtbench_ray.errors import UserError
from mtbench_ray.system.python_constants import constant, text_of

SOURCE = b'''
import not_installed_anywhere
raise SystemExit("this is never run")
PROMPT = "say " "it\\n"
TYPED: str = """two
lines"""
NUMBER = 3
MADE = open("/etc/passwd").read()


class Task:
    PROMPT = "of the task"


def build(text):
    if text:
        return "first {}".format(text, "second")
    return "third"


CLEAN = """
text
""".strip()
ODD = " x ".strip("x")
SETTINGS = {"hard": {"prompt": PROMPT}, "soft.x": 1, "soft": {"prompt": "be " "kind"}}
'''


def test_texts_are_read_and_nothing_is_run():
    assert constant(SOURCE, "PROMPT") == "say it\n"
    assert constant(SOURCE, "TYPED") == "two\nlines"
    assert text_of("Task.PROMPT")(SOURCE) == b"of the task"
    assert constant(SOURCE, "SETTINGS.soft.prompt") == "be kind"
    assert constant(SOURCE, "CLEAN") == "text"
    assert [constant(SOURCE, f"build.{n}") for n in range(3)] == ["first {}", "second", "third"]


NO_TEXTS = (
    "NUMBER MADE ABSENT Other.PROMPT PROMPT.X SETTINGS SETTINGS.hard.prompt SETTINGS.none Task"
    " build build.3 build.x ODD"
)


@pytest.mark.parametrize("name", NO_TEXTS.split())
def test_what_is_no_text_is_an_error(name):
    with pytest.raises(UserError, match="is no text"):
        constant(SOURCE, name)


def test_a_file_that_is_no_python_is_an_error():
    with pytest.raises(UserError):
        constant(b"<html>", "PROMPT")
