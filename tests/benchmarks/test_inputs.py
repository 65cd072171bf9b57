"""Questions and references from a user's files, the official ones, and data sets of the hub."""

import json

import pytest
from verdicts import official_files

from mtbench_ray.cli.main import main
from mtbench_ray.config import JudgeConfig, ModelConfig, RunConfig
from mtbench_ray.errors import UserError
from mtbench_ray.planning.questions import choose, load_data
from mtbench_ray.workspace.workspace import Workspace

PENS = ["A shop sells 3 pens for 2 euros. What do 12 pens cost?", "And 30 pens?"]


@pytest.fixture
def official():
    try:
        return official_files()
    except UserError as error:
        pytest.skip(f"no official files: {error.message}")


def write(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def question(number, category="math", turns=PENS, **more):
    return {"question_id": number, "category": category, "turns": turns, **more}


def reference(number, *turns):
    return {"question_id": number, "choices": [{"turns": list(turns)}]}


def load(**settings):
    return load_data(RunConfig(ModelConfig("m"), JudgeConfig(model="j"), **settings))


def test_own_questions_never_get_the_official_reference_of_their_number(official, tmp_path):
    own = write(tmp_path / "q.jsonl", question(111), question(500))
    loaded = load(question_path=own)
    assert [q.references for q in loaded.data.questions] == [(), ()]
    assert set(loaded.data.files) == {"questions", "judge_prompts"}
    assert set(loaded.notes) == {111, 500}


def test_a_fork_that_numbers_on_keeps_the_references_of_the_texts(official, tmp_path):
    rows = [json.loads(line) for line in official["questions"].read_text("utf-8").splitlines()]
    fork = [row for row in rows if row["question_id"] != 111]
    for row in fork:
        row["question_id"] -= row["question_id"] > 111
    loaded = load(question_path=write(tmp_path / "q.jsonl", *fork))
    known = {q.turns: q.references for q in load().data.questions}
    assert all(q.references == known[q.turns] for q in loaded.data.questions)
    assert sum(bool(q.references) for q in loaded.data.questions) == 29
    assert set(loaded.data.files) == {"questions", "references", "judge_prompts"}


def test_a_copy_of_the_official_files_is_the_official_benchmark(official, tmp_path):
    copies = {}
    for part in ("questions", "references"):
        copies[part] = tmp_path / official[part].name
        copies[part].write_bytes(official[part].read_bytes())
    one = load()
    for paths in (
        {"question_path": str(copies["questions"])},
        {"reference_path": str(copies["references"])},
        {f"{part[:-1]}_path": str(path) for part, path in copies.items()},
    ):
        assert load(**paths) == one
    with Workspace.open(tmp_path / "w", write=True) as workspace:
        # The name of the snapshot is part of what earlier runs are known by.
        assert workspace.save_data(one.data) == "2963356129f434274bcb4b354ad742c9"


@pytest.mark.parametrize(
    ("settings", "code"),
    [(["limit=1"], 0), (["categories=[Writing]"], 0), ([], 2), (["categories=[math]"], 2)],
)
def test_a_missing_reference_concerns_only_a_run_that_asks_the_question(
    settings, code, tmp_path, capsys
):
    questions = write(tmp_path / "q.jsonl", question(1, "writing"), question(2), question(3))
    references = write(tmp_path / "r.jsonl", reference(2, "8", "20"))
    line = ["plan", "model=a/b", "engine=fake", "judge=openai", "judge.model=j",
            "judge.prompts=rubric5", f"question_path={questions}",
            f"reference_path={references}"]  # fmt: skip
    assert main([*line, *settings]) == code
    said = capsys.readouterr().err
    assert ("no reference answer to question 3" in said) == (code == 2)


def test_a_judge_without_a_reference_is_told_in_the_plan(tmp_path, capsys):
    questions = write(tmp_path / "q.jsonl", question(5, "math", reference=["8"]))
    line = ["plan", "model=a/b", "engine=fake", "judge=openai", "judge.model=j",
            "judge.prompts=rubric5", f"question_path={questions}"]  # fmt: skip
    assert main(line) == 0
    assert "question 5: the reference in its row is not of every turn" in capsys.readouterr().out


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A data set where ``datasets`` looks first: the folder org/name."""
    folder = tmp_path / "org" / "name"
    folder.mkdir(parents=True)
    write(
        folder / "train.jsonl",
        {"prompt_id": 7, "category": "math", "prompt": PENS, "reference": ["8", "20"]},
        {"prompt_id": 8, "category": "writing", "prompt": ["A poem."], "reference": []},
    )
    monkeypatch.chdir(tmp_path)
    return folder


def test_questions_come_from_a_data_set_of_the_hub(hub):
    for typed in ("hf://org/name", "hf://org/name?split=train"):
        loaded = load(question_path=typed)
        one, two = loaded.data.questions
        assert (one.question_id, one.turns, one.references) == (7, tuple(PENS), ("8", "20"))
        assert (two.question_id, two.turns, two.references) == (8, ("A poem.",), ())
        assert loaded.data.files["questions"].startswith(f"{typed} sha256:")


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("hf://", "not the address of a hub data set"),
        ("hf://org/name?rows=3", "not the address of a hub data set"),
        ("hf://org/name?split=test", "has the splits train, not test"),
        ("hf://org/other", "cannot be loaded"),
    ],
)
def test_a_data_set_that_is_not_there(typed, message, hub):
    with pytest.raises(UserError, match=message):
        load(question_path=typed)


def test_a_data_set_is_typed_as_any_setting(hub, capsys):
    assert main(["model=a/b", "judge=none", "engine=fake", "workspace=w", "limit=1",
                 "question_path=hf://org/name?split=train"]) == 0  # fmt: skip
    assert "2/2" in capsys.readouterr().out


def test_categories_are_chosen_without_case(tmp_path):
    path = write(tmp_path / "q.jsonl", question(1, "Writing"), question(2, "stem"))
    config = RunConfig(question_path=path, categories=["WRITING"])
    assert [q.question_id for q in choose(config, load(question_path=path).data.questions)] == [1]
