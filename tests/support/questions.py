"""Own questions: id, category, turns; and a file of some."""

import json
from pathlib import Path

QUESTIONS = [
    (1, "writing", ["Describe a lighthouse in {two} lines.", "Now without the letter e."]),
    (2, "math", ["What is 12 * 12?", "And the square root of that?"]),
    (3, "writing", ["Write a toast for a cat's birthday.", "Make it rhyme."]),
    (4, "math", ["Is 91 prime?", "Name the next prime."]),
]


def hills(folder: Path, count: int = 6) -> Path:
    """A question file of two categories."""
    path = folder / "q.jsonl"
    path.write_text(
        "".join(
            json.dumps({"question_id": n, "category": ("math", "writing")[n % 2],
                        "turns": [f"How high is hill {n}?", "And how wide?"]}) + "\n"
            for n in range(count)
        )
    )  # fmt: skip
    return path
