"""A workspace of made-up answers and scores, and the pictures of README.md made from it.

    python tests/bench/made_scores.py WORKSPACE            the workspace alone
    python tests/bench/made_scores.py WORKSPACE PICTURES   and the pictures, into that folder

No text of a benchmark is in it. The pictures of the page need Chromium and playwright.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

from mtbench_ray.cli.main import main

CATEGORIES = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem",
              "humanities")  # fmt: skip
RUNS = {"run_a": (4.2, 2.9), "run_b": (4.6, 1.7)}
"""Score of the first checkpoint, and what training adds."""
STEPS = (100, 200, 400, 600, 800, 1000)
OTHERS = {"baseline-7b": 6.1, "模型-乙": 5.2}


def write(folder: Path, judges: dict[str, float]) -> None:
    """FastChat's files of made-up answers and scores.

    Args:
        folder: Where to.
        judges: By name, how far its scores lie from those of the first.
    """
    chance = random.Random(7)
    easy = {name: chance.gauss(0, 0.9) for name in CATEGORIES}
    hard = [chance.gauss(0, 0.8) for _ in range(80)]
    models = dict(OTHERS)
    for run, (start, gain) in RUNS.items():
        for step in STEPS:
            models[f"{run}_step_{step}"] = start + gain * (1 - 2.7 ** (-step / 300))
    for name in ("model_answer", "model_judgment"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    questions = [
        {"question_id": n, "category": CATEGORIES[n // 10],
         "turns": [f"Made-up question {n}: how wide?", f"Made-up question {n}: how high?"]}
        for n in range(80)
    ]  # fmt: skip
    _lines(folder / "question.jsonl", questions)
    scores: dict[str, list[dict[str, object]]] = {name: [] for name in judges}
    for model, level in models.items():
        answers = []
        for row in questions:
            n = int(row["question_id"])
            texts = []
            for turn in (1, 2):
                true = level + easy[CATEGORIES[n // 10]] + hard[n] - 0.7 * (turn - 1)
                true += chance.gauss(0, 1.1)
                words = max(4, round(30 + 14 * true + chance.gauss(0, 30)))
                texts.append(
                    " ".join(["Made-up", "words", "of", "an", "answer."] * (words // 5 + 1))
                )
                for judge, shift in judges.items():
                    score = min(10, max(1, round(true + shift + chance.gauss(0, 0.6))))
                    scores[judge].append(
                        {"question_id": n, "model": model, "judge": [judge, "single-v1"],
                         "user_prompt": "", "judgment": f"Made up. Rating: [[{score}]]",
                         "score": score, "turn": turn, "tstamp": 1.0}
                    )  # fmt: skip
            answers.append(
                {"question_id": n, "answer_id": f"{model}-{n}", "model_id": model,
                 "choices": [{"index": 0, "turns": texts}], "tstamp": 1.0}
            )  # fmt: skip
        _lines(folder / "model_answer" / f"{model}.jsonl", answers)
    for judge, rows in scores.items():
        _lines(folder / "model_judgment" / f"{judge}_single.jsonl", rows)


def _lines(path: Path, rows: list[dict[str, object]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


def pictures(workspace: Path, out: Path) -> None:
    """The page and one curve, light and dark."""
    from playwright.sync_api import sync_playwright

    from mtbench_ray.judges.base import ScoreOptions
    from mtbench_ray.reports.page.view import write as write_page
    from mtbench_ray.reports.plots import draw
    from mtbench_ray.reports.points import collect
    from mtbench_ray.workspace.workspace import Workspace

    out.mkdir(parents=True, exist_ok=True)
    with Workspace.open(workspace, write=False) as opened:
        points, _ = collect([opened], ScoreOptions())
    shown = [point for point in points if point.judge == points[0].judge]
    page = write_page([str(workspace)], "", ScoreOptions())
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=_chromium(), args=["--no-sandbox"])
        for theme in ("light", "dark"):
            curve = draw(shown, error="ci95", by="all", dark=theme == "dark", dpi=90)
            (out / f"curve-{theme}.png").write_bytes(curve[".png"])
            tab = browser.new_page(viewport={"width": 1180, "height": 640}, color_scheme=theme)
            tab.goto(page.resolve().as_uri())
            tab.wait_for_timeout(1500)
            tab.screenshot(path=out / f"page-{theme}.png")
        browser.close()


def _chromium() -> str:
    import shutil

    return next(found for name in ("chromium", "chromium-browser", "google-chrome")
                if (found := shutil.which(name)))  # fmt: skip


if __name__ == "__main__":
    where = Path(sys.argv[1])
    write(where / "files", {"judge-x": 0.0, "judge-y": 0.6})
    code = main(["import", "fastchat", str(where / "files"), f"workspace={where / 'made-up'}"])
    if len(sys.argv) > 2:
        pictures(where / "made-up", Path(sys.argv[2]))
    sys.exit(code)
