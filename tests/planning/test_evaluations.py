"""What an evaluation is: its id, what is part of what, and what tells two apart."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from verdict_rows import evaluation

from mtbench_ray.config import JudgeConfig, SamplingConfig, science
from mtbench_ray.planning.evaluations import (
    apart,
    distinguishing_settings,
    identified,
    joined,
    named,
    wanted,
)
from mtbench_ray.schema import AnswerSet, canonical


def with_judge(row, **settings):
    judge = json.loads(row.judge_settings) | settings
    return identified(replace(row, judge_settings=json.dumps(judge)))


def answered(row, **sampling):
    settings = json.loads(row.answers.settings) | {"sampling": sampling}
    return identified(replace(row, answers=replace(row.answers, settings=canonical(settings))))


def test_a_setting_at_its_default_is_in_no_id():
    assert science(SamplingConfig()) == {}
    assert science(SamplingConfig(max_tokens=7)) == {"max_tokens": 7}
    assert science(JudgeConfig(model="j", temperature=0.0)) == {"model": "j"}
    assert with_judge(evaluation(), temperature=0.0).evaluation_id == evaluation().evaluation_id


@pytest.mark.parametrize(
    "other",
    [
        evaluation("other"),
        evaluation(judge="other"),
        evaluation(questions=(1, 2)),
        evaluation(samples=2),
        evaluation(judge_samples=2),
        evaluation(prompts="rubric5"),
        evaluation(references="r"),
        evaluation(benchmark="vicuna"),
        with_judge(evaluation(), temperature=1.0),
        answered(evaluation(), max_tokens=7),
    ],
    ids=str,
)
def test_all_that_an_evaluation_is_made_of_is_in_its_id(other):
    assert other.evaluation_id != evaluation().evaluation_id


def test_labels_places_and_operations_settings_are_not_in_it():
    row = evaluation()
    for same in (
        replace(row, judge="another label", demo=True, data="copy", selection="limit=1"),
        replace(row, answers=replace(row.answers, model="another label")),
        with_judge(row, concurrency=3, name="label"),
        replace(row, answers=replace(row.answers, settings=canonical(
            json.loads(row.answers.settings) | {"salt": "fresh"}))),
    ):  # fmt: skip
        assert identified(same).evaluation_id == row.evaluation_id


def test_a_pair_is_one_evaluation_in_either_order_and_a_baseline_is_not():
    a, b = evaluation("a"), evaluation("b")
    one, two = (
        identified(replace(row, mode="pairwise-all", opponent=other.answers))
        for row, other in ((a, b), (b, a))
    )
    assert one.evaluation_id == two.evaluation_id
    one, two = (identified(replace(row, mode="pairwise-baseline")) for row in (one, two))
    assert one.evaluation_id != two.evaluation_id


def test_a_smoke_test_is_part_of_the_full_evaluation_whichever_ran_first():
    full, smoke = evaluation(questions=(1, 2, 3)), evaluation(questions=(2,))
    assert apart([full, smoke]) == apart([smoke, full]) == [full]
    others = [
        evaluation("other", questions=(2,)),
        with_judge(smoke, temperature=1.0),
        evaluation(questions=(4,)),
        evaluation(questions=(2,), judge_samples=2),
    ]
    assert apart([full, *others]) == [full, *others]


def test_what_is_joined_is_judged_as_often_as_was_asked_and_no_more():
    often, wide = evaluation(judge_samples=2), evaluation(samples=2)
    (row,) = joined([often, wide])
    assert row.judge_samples == 2
    assert [unit.judge_samples or row.judge_samples for unit in row.answers.units] == [2, 1]
    assert apart([often, wide, row]) == [row]


def test_answers_that_a_judge_has_rated_have_no_row_of_their_own():
    rated = evaluation(questions=(1, 2))
    bare = identified(replace(evaluation(questions=(1,)), judge="", mode="answers"))
    more = identified(replace(evaluation(questions=(1, 3)), judge="", mode="answers"))
    assert apart([bare, rated, more]) == [rated, more]


def test_an_import_from_another_folder_is_the_same_unless_its_rows_differ():
    def imported(folder, *rows):
        answers = AnswerSet("m", canonical({"import": folder, "model": {"name": "m"}}), ())
        row = replace(evaluation(), answers=answers, source="import")
        return identified(replace(row, judge_settings=canonical({"rows": rows})))

    a, copy, grown, other = (
        imported("/a", "1", "2"), imported("/b", "1", "2"), imported("/a", "1", "2", "3"),
        imported("/c", "9"),
    )  # fmt: skip
    assert apart([a, copy]) == [copy]
    assert apart([a, grown]) == [grown]
    assert apart([grown, other]) == [grown, other]
    assert distinguishing_settings([grown, other])[other.evaluation_id]["import"] == "/c"


def test_an_import_beside_runs_is_told_by_its_folder_and_the_runs_by_themselves():
    run = evaluation(questions=(1, 2))
    answers = AnswerSet("m", canonical({"import": "/a", "model": {"name": "m"}}), (), "import")
    imported = identified(replace(run, answers=answers, source="import",
                                  judge_settings=canonical({"rows": ["1"]})))  # fmt: skip
    said = distinguishing_settings([run, imported])
    assert said == {run.evaluation_id: {}, imported.evaluation_id: {"import": "/a"}}


def test_what_tells_rows_of_equal_labels_apart():
    rows = [
        evaluation(questions=(1, 2)),
        with_judge(evaluation(questions=(1, 2)), temperature=1.0),
        answered(evaluation(questions=(1, 2)), max_tokens=7),
        evaluation("other"),
    ]
    said = distinguishing_settings(rows)
    assert said[rows[3].evaluation_id] == {}
    assert said[rows[1].evaluation_id] == {"judge.temperature": 1.0, "sampling.max_tokens": 1024}
    assert named("m", said[rows[2].evaluation_id]) == "m (max_tokens=7)"
    assert named("j", said[rows[1].evaluation_id], judge=True) == "j (temperature=1.0)"
    two = [evaluation(questions=(1,), selection="categories=[math]"), evaluation(questions=(2, 3))]
    said = distinguishing_settings(two)
    assert [named("m", said[row.evaluation_id]) for row in two] == [
        "m (categories=[math])", "m (2 questions)",
    ]  # fmt: skip


SETS = st.lists(
    st.builds(
        lambda questions, samples, model, hot: with_judge(
            evaluation(model, questions=tuple(questions), samples=samples), temperature=hot
        ),
        st.sets(st.integers(1, 5), min_size=1),
        st.integers(1, 2),
        st.sampled_from("ab"),
        st.sampled_from([0.0, 1.0]),
    ),
    min_size=1,
    max_size=6,
)


@given(SETS)
def test_joined_evaluations_hold_every_wanted_verdict_exactly_once(rows):
    def verdicts(row):
        return [(row.model, row.judge_settings, asked) for asked in wanted(row)]

    found = [verdict for row in joined(rows) for verdict in verdicts(row)]
    assert len(found) == len(set(found))
    assert set(found) == {verdict for row in rows for verdict in verdicts(row)}


@given(SETS)
def test_of_what_is_shown_nothing_is_part_of_another_and_nothing_is_lost(rows):
    kept = apart(rows)
    assert set(kept) <= set(rows)
    for row in rows:
        same = [one for one in kept if (one.model, one.judge_settings)
                == (row.model, row.judge_settings)]  # fmt: skip
        assert any(wanted(row) <= wanted(one) for one in same)
    assert apart(kept) == kept


@given(SETS)
def test_no_two_shown_evaluations_are_called_the_same(rows):
    kept = apart(rows)
    said = distinguishing_settings(kept)
    called = {
        (named(row.model, said[row.evaluation_id]),
         named(row.judge, said[row.evaluation_id], judge=True))
        for row in kept
    }  # fmt: skip
    assert len(called) == len(kept)
