from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pathvalidate import is_valid_filename

from mtbench_ray.workspace.filenames import MAX_BYTES, safe_name, safe_names

AWKWARD = [
    "org/model-7b", "a:b", "a\\b", "..", ".", "../x", "/etc/passwd", "-rf", ".hidden", "con", "CON",
    "nul", "aux.txt", "com1", "dot.", "space ", " space", "", " ", "x" * 300, "x" * 301, "a\x00b",
    "~", "~root", "a\nb", "x\ud835y", "caf\u00e9", "cafe\u0301", "\u4f60\u597d", "\u202e",
    "a*b", "a?b",
]  # fmt: skip


@pytest.mark.parametrize("label", ["Qwen2.5-7B-Instruct", "gpt-4", "step_100", "a", "7"])
def test_plain_labels_are_their_own_names(label: str) -> None:
    assert safe_name(label) == label


@pytest.mark.parametrize("label", AWKWARD)
def test_awkward_labels_give_one_flat_file(label: str, tmp_path: Path) -> None:
    name = safe_name(label)
    path = tmp_path / f"{name}.jsonl"
    path.write_text("x")
    assert [entry.name for entry in tmp_path.iterdir()] == [f"{name}.jsonl"]
    assert len(name.encode()) <= MAX_BYTES


def test_awkward_labels_never_meet_also_without_case() -> None:
    assert len({safe_name(label).casefold() for label in AWKWARD}) == len(AWKWARD)


def test_a_name_that_was_made_safe_cannot_be_typed_as_a_label() -> None:
    made = safe_name("org/model")
    assert safe_name(made) != made


def test_readable_part_stays() -> None:
    assert safe_name("org/model-7b").startswith("org_model-7b~")


def test_labels_that_differ_in_case_only_get_names_that_do_not() -> None:
    names = safe_names(["Step", "step", "other", "a/B", "a/b"])
    assert names["other"] == "other"
    assert len({name.casefold() for name in names.values()}) == 5


@settings(deadline=None)
@given(st.text(), st.text())
@example("a/b", "a_b")
@example("a", "a ")
@example("\u00e9", "e\u0301")
def test_two_texts_two_names(one: str, other: str) -> None:
    assert (safe_name(one) == safe_name(other)) == (one == other)


@settings(deadline=None)
@given(st.one_of(st.text(max_size=400), st.text("./\\~-_ aA1\x00:", max_size=250)))
def test_every_name_is_a_file_name_everywhere(text: str) -> None:
    name = safe_name(text)
    assert is_valid_filename(name, platform="universal")
    assert name.isascii()
    assert len(name) <= MAX_BYTES
    assert name[0] not in ".-~"
    assert "/" not in name
    assert name not in ("", ".", "..")
