"""``import votes`` and ``report card``: a judge against people's votes on the same answers."""

import csv
import hashlib
import json
import random
from itertools import combinations

import pytest
from paths import SHARED
from stub_server import StubServer

from mtbench_ray.benchmarks.mtbench import MTBench
from mtbench_ray.cli.main import main
from mtbench_ray.judges.agreement import agreement, load_votes
from mtbench_ray.judges.base import ScoreOptions
from mtbench_ray.reports import card
from mtbench_ray.system.assets import Asset

MODELS = ("alpha", "beta", "gamma")
COUNT = 6


def worth(model, question, number):
    return {"alpha": 8, "beta": 5, "gamma": 5}[model] + (question + number) % 2


def answer(model, question, number):
    """Beta's are the longest."""
    more = " and so on" * {"alpha": 2, "beta": 5, "gamma": 1}[model]
    return f"{model} to {question}.{number}{more}, worth {worth(model, question, number)}."


def vote(question, number, a, b, winner, judge):
    talk = {
        model: [
            {"role": role, "content": text}
            for turn in (1, 2)
            for role, text in (("user", f"q{question}.{turn}"),
                               ("assistant", answer(model, question, turn)))
        ]
        for model in (a, b)
    }  # fmt: skip
    return {"question_id": question, "model_a": a, "model_b": b, "winner": winner, "judge": judge,
            "turn": number, "conversation_a": talk[a], "conversation_b": talk[b]}  # fmt: skip


def rows_of_votes():
    """People prefer the higher worth, but at question 1 the other, and call equal ones a tie; one
    of them the longer. GPT-4 always names alpha where it stands."""
    found = []
    for question in range(1, COUNT + 1):
        for number in (1, 2):
            for a, b in combinations(MODELS, 2):
                x, y = (worth(model, question, number) for model in (a, b))
                better = "tie" if x == y else "model_a" if (x > y) != (question == 1) else "model_b"
                found.append(vote(question, number, a, b, better, "expert_3"))
                found.append(vote(question, number, b, a, "tie (inconsistent)", "author_1"))
                found.append(vote(question, number, a, b, "model_a", "gpt4_pair"))
    return found


class Line:
    def __init__(self, folder, stub, capsys):
        self.folder, self.stub, self.capsys = folder, stub, capsys

    def __call__(self, *args):
        before = self.stub.stats()["calls"]
        code = main([*args, f"workspace={self.folder / 'w'}"])
        self.out, self.err = self.capsys.readouterr()
        self.calls = self.stub.stats()["calls"] - before
        return code

    def judge(self, *more):
        return self("-m", "stage=judge", f"model={','.join(MODELS)}", "judge=openai",
                    "judge.model=stub", f"judge.base_url={self.stub.url}", "judge.price_prompt=1",
                    "judge.price_completion=2", f"question_path={self.folder / 'q.jsonl'}",
                    *more)  # fmt: skip


@pytest.fixture
def line(tmp_path, capsys):
    (tmp_path / "q.jsonl").write_text(
        "".join(
            json.dumps({"question_id": n, "category": "math", "turns": [f"q{n}.1", f"q{n}.2"]})
            + "\n"
            for n in range(1, COUNT + 1)
        )
    )
    (tmp_path / "votes.json").write_text(json.dumps(rows_of_votes()))
    with StubServer(worth=True) as stub:
        yield Line(tmp_path, stub, capsys)


pytestmark = pytest.mark.runs


def shares(found):
    return {(one["between"], one["turn"], one["ties"]): one for one in found["agreement"]}


def test_the_card_of_a_judge_that_rates_is_counted_by_hand(line):
    votes = str(line.folder / "votes.json")
    assert line("import", "votes", votes, f"question_path={line.folder / 'q.jsonl'}") == 0
    assert "3 models, 18 answers to mt_bench, 18 new" in line.out
    assert "'model=alpha,beta,gamma'" in line.out
    assert line.judge() == 0
    assert line.calls == 36
    assert line.judge() == 0
    assert line.calls == 0, "the card's verdicts are rows like any others: paid once"
    assert line("report", "card", f"data={votes}", "judge=stub", "format=json") == 0
    (found,) = json.loads(line.out)
    by = shares(found)
    # the judge's rating is the worth: beside question 1 it agrees on all three pairs
    one = by["judge and people", 1, True]
    assert (one["compared"], one["mean"]) == (18, pytest.approx(16 / 18))
    assert one["ci_low"] < 16 / 18 < one["ci_high"] <= 1
    one = by["judge and people", None, False]
    assert (one["compared"], one["mean"]) == (24, pytest.approx(5 / 6))
    assert by["judge and gpt-4", None, True]["mean"] == pytest.approx(2 / 3)
    assert by["judge and gpt-4", None, False]["mean"] == 1
    assert ("people among themselves", 1, True) not in by, "one vote on each pair; authors apart"
    # alpha wins; it is longer than gamma and shorter than beta
    assert found["length"]["judge"]["mean"] == pytest.approx(1 / 2)
    assert found["length"]["people"]["mean"] == pytest.approx(1 / 2)
    assert found["position"] is None
    assert (found["verdicts"], found["failed"]) == (36, 0)
    rows = [json.loads(one) for one in (line.folder / "w/judgments.jsonl").read_text().splitlines()]
    price = sum(row["prompt_tokens"] + 2 * row["output_tokens"] for row in rows) / 1e6
    assert found["dollars_per_1000"]["mean"] == pytest.approx(1000 * price / 36)
    assert line("report", "card", f"data={votes}") == 0
    assert "judge and people" in line.out
    assert "dollars for 1,000 judgments" in line.out


def test_the_card_of_a_judge_of_pairs_has_its_position_bias(line):
    votes = str(line.folder / "votes.json")
    line("import", "votes", votes, f"question_path={line.folder / 'q.jsonl'}")
    line.stub.script.worth = False
    line.stub.script.text = "The first one. [[A]]"
    assert line.judge("mode=pairwise-all", "judge.samples=1") == 0
    assert line("report", "card", f"data={votes}", "format=json") == 0
    (found,) = json.loads(line.out)
    assert found["position"]["first_shown_wins"] == {
        "compared": 72, "mean": 1.0, "ci_low": 1.0, "ci_high": 1.0,
    }  # fmt: skip
    assert found["position"]["inconsistent"]["mean"] == 1.0
    # each match is a tie, as people say of equal answers
    by = shares(found)
    assert by["judge and people", None, True]["mean"] == pytest.approx(1 / 3)
    assert ("judge and people", None, False) not in by
    assert found["length"]["judge"]["compared"] == 0


def test_votes_are_read_from_parquet_and_lines_and_fetched_by_their_sum(line, monkeypatch):
    from pyarrow import Table, parquet

    monkeypatch.setenv("MTBENCH_RAY_CACHE", str(line.folder / "cache"))
    made = line.folder / "people.parquet"
    parquet.write_table(Table.from_pylist(rows_of_votes()), made)
    digest = hashlib.sha256(made.read_bytes()).hexdigest()
    asset = Asset("people.parquet", digest, url=made.as_uri())
    monkeypatch.setattr(MTBench, "votes", {"people": asset})
    assert line("import", "votes", f"question_path={line.folder / 'q.jsonl'}") == 0
    assert "18 new" in line.out
    lines = line.folder / "votes.jsonl"
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows_of_votes()))
    assert line("import", "votes", str(lines), f"question_path={line.folder / 'q.jsonl'}") == 0
    assert "18 answers to mt_bench, 0 new" in line.out
    assert line.judge() == 0
    assert line("report", "card", "format=json") == 0
    assert shares(json.loads(line.out)[0])["judge and people", 1, True]["compared"] == 18
    gone = Asset("other.parquet", "0" * 64, url=(line.folder / "none").as_uri())
    monkeypatch.setattr(MTBench, "votes", {"people": gone})
    assert line("report", "card") == 2
    assert "data=votes.json" in line.err


def test_mistakes_name_what_to_do(line):
    bare = line.folder / "bare.json"
    bare.write_text(json.dumps([{k: v for k, v in row.items() if not k.startswith("conv")}
                                for row in rows_of_votes()]))  # fmt: skip
    assert line("import", "votes", str(bare)) == 2
    assert "holds no conversation" in line.err
    votes = line.folder / "votes.json"
    line("import", "votes", str(votes), f"question_path={line.folder / 'q.jsonl'}")
    assert line("report", "card", f"data={votes}") == 2
    assert "import votes" in line.err
    assert line("report", "judges", f"data={votes}") == 2
    assert f"data={votes} is of `report card`" in line.err


def test_shares_are_those_of_agreement_on_random_votes():
    rng = random.Random(0)
    rows = [
        {"question_id": rng.randrange(8), "turn": rng.choice((1, 2)), "judge": judge,
         "model_a": "x", "model_b": "y", "winner": rng.choice(("model_a", "model_b", "tie"))}
        for judge in ("expert_1", "gpt-4") for _ in range(60)
    ]  # fmt: skip
    votes = load_votes(rows, "here")
    sides = [[vote for vote in votes if vote.judge == judge] for judge in ("gpt-4", "human")]
    found = card._agreement("", *sides, ScoreOptions(resamples=50))
    lines = {(one["turn"], one["ties"]): one for one in found if one["turn"]}
    for one in agreement(*sides):
        assert lines[one.turn, one.ties]["compared"] == one.total
        assert lines[one.turn, one.ties]["mean"] == pytest.approx(one.ratio)


@pytest.mark.skipif(not SHARED.is_dir(), reason="the oracle files of ../shared are not here")
def test_gpt_4s_agreement_with_people_is_the_published_one():
    oracle = SHARED / "oracle"
    gpt4, people = (
        load_votes(json.loads((oracle / f"{name}_judgments.json").read_text("utf-8")), name)
        for name in ("gpt4", "human")
    )
    experts = [vote for vote in people if vote.judge == card.PEOPLE]
    found = card._agreement("gpt4-pair/human", gpt4, experts, ScoreOptions(resamples=200))
    found += card._agreement("human/human", experts, None, ScoreOptions(resamples=200))
    lines = {(one["between"], one["turn"], one["ties"]): one for one in found}
    with (oracle / "expected_agreement.csv").open() as file:
        for row in csv.DictReader(file):
            one = lines[row["judges"], int(row["turn"]), row["setup"] == "with_tie"]
            assert one["compared"] == int(row["total"])
            assert one["mean"] == pytest.approx(float(row["ratio"]), abs=1e-6)
            assert one["ci_low"] < one["mean"] < one["ci_high"]
