"""Short ways to make questions, turns and outcomes for the judging tests."""

import dataclasses
import json

from mtbench_ray.benchmarks import get_benchmark, grader_of
from mtbench_ray.config import JudgeConfig
from mtbench_ray.judges.base import EvaluationView, Item, Reply, value_of
from mtbench_ray.schema import (
    AnswerSet,
    Evaluation,
    Judgment,
    Outcome,
    Question,
    Slot,
    Turn,
    Unit,
)
from mtbench_ray.system.assets import fetch

SINGLE = {
    "single-v1": "Q {question} A {answer}",
    "single-math-v1": "Q {question} R {ref_answer_1} A {answer}",
    "single-v1-multi-turn": "{question_1} {answer_1} {question_2} {answer_2}",
    "single-math-v1-multi-turn": (
        "{question_1} {ref_answer_1} {answer_1} {question_2} {ref_answer_2} {answer_2}"
    ),
}


def prompt_file(templates=None, **changes):
    """A file of single prompts; ``changes`` go into every row."""
    return "".join(
        json.dumps(
            {"name": name, "type": "single", "system_prompt": "S", "prompt_template": template}
            | changes
        )
        + "\n"
        for name, template in (templates or SINGLE).items()
    )


def question(question_id=81, turns=("First?", "Second?"), category="writing", references=()):
    return Question(
        "mt_bench",
        question_id,
        category,
        tuple(turns),
        references=tuple(references),
        group=str(question_id),
    )


def turn(answer_id, number, content, history=(), status="ok"):
    return Turn(answer_id, number, "mt_bench", 81, "m", 0, content, status, history=tuple(history))


def answered(**contents):
    """Good turns by (answer_id, turn) from answer_id=[text of turn 1, text of turn 2]."""
    return {
        (answer_id, number): turn(answer_id, number, text, texts[: number - 1])
        for answer_id, texts in contents.items()
        for number, text in enumerate(texts, start=1)
    }


def answer_set(model, ids, questions=(81,), samples=1):
    """One unit per question and sample; ``ids`` is a prefix of the answer ids."""
    units = tuple(Unit(q, s, f"{ids}{q}-{s}") for q in questions for s in range(samples))
    return AnswerSet(model, "{}", units)


def evaluation(model="m", questions=(81,), opponent=None, mode="single", samples=1, repeats=1):
    return Evaluation(
        answer_set(model, model, questions, samples),
        "j",
        "{}",
        mode,
        "data",
        opponent=answer_set(opponent, opponent, questions) if opponent else None,
        judge_samples=repeats,
    )


def slot(model="m", q=81, number=1, order=0, opponent=None, category="writing", repeat=0):
    ids = (f"{model}-{q}",) + ((f"{opponent}-{q}",) if opponent else ())
    return Slot(
        model, q, category, str(q), number, 0, ids, order, opponent=opponent, judge_sample=repeat
    )


def judged(where, value, label=None, text="", source="run"):
    """An outcome; ``value`` is a rating or a value, or a text that says why there is none."""
    failed = isinstance(value, str)
    judgment = Judgment(
        judgment_id=f"{where}",
        match_id="",
        mode="pairwise-all" if where.order else "single",
        benchmark="mt_bench",
        question_id=where.question_id,
        category=where.category,
        turn=where.turn,
        model=where.model,
        judge="j",
        judge_prompt="p",
        status="unparsed" if failed else "ok",
        text=text,
        label=label,
        value=None if failed else value,
        error=value if failed else None,
        order=where.order,
        opponent=where.opponent,
        source=source,
    )
    return Outcome(where, judgment, value if failed else "")


def rated(model, q, number, value, repeat=0, category="writing"):
    return judged(slot(model, q, number, repeat=repeat, category=category), value)


GAME_LABELS = {
    1: {"model_1": "A", "model_2": "B", "tie": "tie"},
    2: {"model_1": "B", "model_2": "A", "tie": "tie"},
}


def games(model_1, model_2, q, number, g1, g2, category="writing"):
    """Both games of a FastChat row with winners ``g1`` and ``g2``; "error" is a failed game."""
    outcomes = []
    for order, winner in ((1, g1), (2, g2)):
        where = slot(model_1, q, number, order, model_2, category)
        if winner == "error":
            outcomes.append(judged(where, "no_winner"))
        else:
            value = {"model_1": 1.0, "model_2": 0.0, "tie": 0.5}[winner]
            outcomes.append(judged(where, value, GAME_LABELS[order][winner]))
    return outcomes


def by_part(scores):
    """Scores by (model, dimension, name)."""
    return {(s.model, s.dimension, s.name): s for s in scores}


def view(mode="single", row=None, *, questions=None, turns=None, judge=None, prompts=None,
         parity="safe"):  # fmt: skip
    """An evaluation of MT-Bench with what its grader looks at."""
    judge = judge or JudgeConfig(model="j")
    row = row or dataclasses.replace(evaluation(mode=mode), judge=judge.label)
    return EvaluationView(
        row,
        grader_of("mt_bench", mode),
        {81: question()} if questions is None else questions,
        turns or {},
        judge,
        prompts,
        parity,
    )


def read(mode, text, finish_reason, prompts, order=0):
    """What a grader reads from a reply."""
    asked = judged(slot(order=order), "unread").judgment
    what = view(mode, prompts=prompts)
    return what.grader.read(asked, what, Reply(text, finish_reason))


def official_files():
    """MT-Bench's own files by part, fetched where they are not cached."""
    return fetch("mt_bench", get_benchmark("mt_bench").files)


def items(outcomes):
    """Items of outcomes that are judged one by one."""
    return [Item(one.slot, value_of(one), one.reason) for one in outcomes]
