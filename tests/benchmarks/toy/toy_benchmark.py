"""A benchmark of another package: rules check the answers, by two criteria of unlike weight.

CONTRIBUTING.md shows this file as the way to add a benchmark. Beside it lies what pip would write
when such a package is installed (``toy_benchmark-1.0.dist-info``).
"""

import hashlib
import json
from pathlib import Path
from types import MappingProxyType

from mtbench_ray.benchmarks.base import Benchmark, QuestionSet
from mtbench_ray.judges.base import Column, Grader, Reading
from mtbench_ray.judges.judge_prompt import check_request, units
from mtbench_ray.judges.scores import judge_label, mean_scores, weighted_items
from mtbench_ray.schema import Question, Slot
from mtbench_ray.system.assets import Asset

QUESTIONS = Path(__file__).with_name("toy_questions.jsonl")


class Rules(Grader):
    """Is the answer short enough, and does it hold a word?"""

    name = "rules"
    checker = "toy-rules 1"
    note = "score: share of the rules that are kept, the word counts three times"
    columns = (
        Column("score", "score", "kept", digits=3, headline=True),
        Column("criteria", "", "kept", "criterion", digits=3),
        Column("categories", "", "kept", "category", digits=3),
    )

    def wanted(self, view):
        return [
            Slot(
                model=view.evaluation.model,
                question_id=question.question_id,
                category=question.category,
                group=question.group,
                turn=1,
                sample=unit.sample,
                answer_ids=(unit.answer_id,),
                criterion=criterion,
                weight=weight,
            )
            for unit, question, _ in units(view)
            for criterion, weight in (("length", 1.0), ("word", 3.0))
        ]

    def grade(self, slot, view):
        return check_request(slot, view)

    def read(self, asked, view, reply):
        answer = view.content(asked.answer_ids[0], asked.turn)
        rules = json.loads(view.questions[asked.question_id].grading)
        kept = {
            "length": len(answer.split()) <= rules["length"],
            "word": rules["word"] in answer.lower(),
        }[asked.criterion]
        return Reading("kept" if kept else "broken", float(kept), "ok")

    def items(self, outcomes, metric="", parity="safe"):
        return weighted_items(outcomes)

    def reduce(self, views, outcomes, options):
        judge = judge_label(outcomes, options)
        every = {"category": lambda slot: slot.category}
        scores = mean_scores(self.name, "kept", self.items(outcomes), every, options, judge)
        by_criterion = {"criterion": lambda slot: slot.criterion}
        single = mean_scores(
            self.name, "kept", super().items(outcomes), by_criterion, options, judge
        )
        return scores + [score for score in single if score.dimension == "criterion"]


class Toy(Benchmark):
    """Questions with a limit of words and a word that must be there."""

    name = "toy"
    about = "a few questions that rules check; an example"
    categories = ("sea", "land")
    files = MappingProxyType(
        {
            "questions": Asset(
                "toy_questions.jsonl",
                hashlib.sha256(QUESTIONS.read_bytes()).hexdigest(),
                url=QUESTIONS.as_uri(),
            )
        }
    )
    graders = (Rules(),)

    def read(self, questions, references, names, official=lambda: None):
        rows = map(json.loads, questions.splitlines())
        return QuestionSet(
            tuple(
                Question(
                    self.name,
                    row["id"],
                    row["about"],
                    (row["ask"],),
                    group=str(row["id"]),
                    temperature=0.0,
                    grading=json.dumps({"length": row["length"], "word": row["word"]}),
                )
                for row in rows
            )
        )


TOY = Toy()
