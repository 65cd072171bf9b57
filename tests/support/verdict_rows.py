"""Items from plain numbers, for the tests of the reports."""

from mtbench_ray.judges.base import Item
from mtbench_ray.planning.evaluations import identified
from mtbench_ray.schema import AnswerSet, Evaluation, Slot, Unit, canonical


def evaluation(model="m", judge="j", samples=1, judge_samples=1, questions=(1,), **more):
    units = tuple(Unit(q, s, f"{model}-{q}-{s}") for q in questions for s in range(samples))
    answers = AnswerSet(model, canonical({"model": {"path": model}}), units)
    settings = canonical({"kind": "openai", "model": judge})
    return identified(
        Evaluation(answers, judge, settings, "single", "d", judge_samples=judge_samples, **more)
    )


def verdict(value, question=1, turn=1, sample=0, judge_sample=0, model="m", category="math"):
    """An item; a text instead of a number is the reason why it has no value."""
    slot = Slot(
        model, question, category, str(question), turn, sample, (f"{model}-{question}-{sample}",),
        judge_sample=judge_sample,
    )  # fmt: skip
    if not isinstance(value, int | float):
        return Item(slot, None, value)
    return Item(slot, float(value))
