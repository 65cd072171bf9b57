"""How often the intervals of a race are right, and what it saves: simulated with the real code.

    python tests/bench/racing.py [--races 200] [--scores FILE.jsonl]

Scores of K models on 80 questions of two turns are made (or taken from FastChat's judgments: rows
with model, question_id, turn, score), the questions are shuffled, the models race. Coverage: the
share of pairs whose interval held the truth at *each* look; all: the share of races in which those
of all pairs did. Beside it: how often a usual 95% interval (t), looked at after each question from
the 5th on, held the truth at each look.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

import numpy as np
import numpy.typing as npt

from mtbench_ray.judges.race import Race
from mtbench_ray.run.racing import AT_ONCE

Floats = npt.NDArray[np.float64]
QUESTIONS = 80


def made(rng: np.random.Generator, means: list[float], turns: int = 2) -> Floats:
    """Ratings from 1 to 10 of each model: shape (models, questions), the mean of the turns.

    Questions are easy or hard for all models, and each turn has noise of its own.
    """
    hard = rng.normal(0, 1.2, (1, QUESTIONS, 1))
    own = rng.normal(0, 1.0, (len(means), QUESTIONS, 1))
    noise = rng.normal(0, 1.2, (len(means), QUESTIONS, turns))
    raw = np.array(means)[:, None, None] + hard + own + noise
    return np.rint(raw).clip(1, 10).mean(axis=2)


def race(values: Floats, select: str, margin: float) -> tuple[float, bool, bool, float, bool]:
    """One race; its questions are in random order already.

    Returns:
        The share of pairs whose intervals were right, whether all were, whether the decision was,
        the share of the calls that was saved (those of the questions that are judged at once
        counted as made), and whether usual intervals of the first two models were right.
    """
    models, count = values.shape
    truth = values.mean(axis=1)
    found = Race(models, count, 9.0, select, margin)
    wrong: set[tuple[int, int]] = set()
    made_calls = 0
    while not found.decided:
        at = found.seen
        found.observe(lambda a, b, at=at: float(values[a, at] - values[b, at]))
        for (a, b), pair in found.pairs.items():
            if not pair.low - 1e-9 <= truth[a] - truth[b] <= pair.high + 1e-9:
                wrong.add((a, b))
    for model in range(models):
        made_calls += min(count, found.looked_at(model) + AT_ONCE - 1)
    if select == "gate":
        low, _ = found.interval(0, 1)
        decision = (truth[0] - truth[1] > -margin) == (low > -margin)
    else:
        decision = truth.max() <= truth[found.leader] + margin + 1e-9
    gaps = values[0] - values[1]
    usual = all(
        abs(gaps[:n].mean() - gaps.mean()) <= 2.0 * gaps[:n].std(ddof=1) / math.sqrt(n) + 1e-9
        for n in range(5, count)
    )
    covered = 1 - len(wrong) / len(found.pairs)
    return covered, not wrong, decision, 1 - made_calls / (models * count), usual


def simulate(
    populations: Iterator[Floats], races: int, seed: int, select: str = "best", margin: float = 0.0
) -> dict[str, float]:
    """Shares over so many races."""
    rng = np.random.default_rng(seed)
    found = []
    for _, values in zip(range(races), populations, strict=False):
        found.append(race(values[:, rng.permutation(values.shape[1])], select, margin))
    names = ("coverage", "all", "right", "saved", "usual")
    return {name: fmean(one[at] for one in found) for at, name in enumerate(names)}


def synthetic(means: list[float], seed: int) -> Iterator[Floats]:
    """Populations without end."""
    rng = np.random.default_rng(seed)
    while True:
        yield made(rng, means)


def stored(path: Path, models: int, seed: int) -> Iterator[Floats]:
    """Sets of models of a file of scores without end."""
    scores: dict[str, dict[object, list[float]]] = {}
    for line in path.read_text("utf-8").splitlines():
        row = json.loads(line)
        if row["score"] >= 1:
            scores.setdefault(row["model"], {}).setdefault(row["question_id"], []).append(
                row["score"]
            )
    whole = [mine for mine in scores.values() if len(mine) == QUESTIONS]
    table = np.array([[fmean(mine[name]) for name in sorted(mine, key=str)] for mine in whole])
    rng = np.random.default_rng(seed)
    while True:
        yield table[rng.choice(len(table), models, replace=False)]


SCENES: list[tuple[str, list[float], str, float]] = [
    ("2 models, equal", [6.5, 6.5], "best", 0.0),
    ("2 models, 0.3 apart", [6.5, 6.2], "best", 0.0),
    ("2 models, 0.6 apart", [6.5, 5.9], "best", 0.0),
    ("2 models, 1 apart", [6.5, 5.5], "best", 0.0),
    ("2 models, 2 apart", [6.5, 4.5], "best", 0.0),
    ("gate 0.5, equal", [6.5, 6.5], "gate", 0.5),
    ("gate 0.1, worse by 1", [5.5, 6.5], "gate", 0.1),
    ("6 models, 0.5 apart", [6.5, 6.0, 5.5, 5.0, 4.5, 4.0], "best", 0.0),
    ("6 models, the best within 0.5", [6.5, 6.4, 6.3, 5.0, 4.5, 4.0], "best", 0.5),
]


def main() -> int:
    """Print a line for each scene."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--races", type=int, default=200)
    parser.add_argument("--scores", type=Path)
    options = parser.parse_args()
    print(f"{options.races} races each; 80 questions, {AT_ONCE} judged at once")
    heads = ("coverage", "all", "right", "saved", "t, peeking")
    print(" " * 32 + "".join(f"{head:>12}" for head in heads))

    def show(name: str, found: dict[str, float]) -> None:
        print(f"{name:32}" + "".join(f"{value:12.3f}" for value in found.values()), flush=True)

    low = 1.0
    for number, (name, means, select, margin) in enumerate(SCENES):
        found = simulate(synthetic(means, number), options.races, number, select, margin)
        low = min(low, found["coverage"], found["right"])
        show(name, found)
    if options.scores:
        for count in (2, 6):
            populations = stored(options.scores, count, count)
            found = simulate(populations, options.races, count)
            low = min(low, found["coverage"], found["right"])
            show(f"{count} models of {options.scores.name[:20]}", found)
    print(f"least coverage or share decided right {low:.3f}, aim 0.95")
    return 0 if low >= 0.95 else 1


if __name__ == "__main__":
    sys.exit(main())
