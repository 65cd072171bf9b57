"""Where FastChat keeps its files (0.2.36)."""

from __future__ import annotations

from pathlib import Path

from mtbench_ray.errors import UserError
from mtbench_ray.workspace.journal import read


def find_root(folder: Path) -> Path:
    """The folder of ``model_answer`` and ``model_judgment``, or a single file as it is.

    Raises:
        UserError: There is neither.
    """
    if folder.is_file():
        return folder
    for root in (folder, folder / "data" / "mt_bench"):
        if (root / "model_answer").is_dir() or (root / "model_judgment").is_dir():
            return root
    raise UserError(
        f"{folder} has no model_answer or model_judgment folder",
        "Give the folder that holds them, for example FastChat/fastchat/llm_judge/data/mt_bench.",
    )


def find_files(root: Path) -> tuple[list[tuple[Path, str]], list[Path]]:
    """Answer files with their models' names, and judgment files.

    A file that stands alone is of answers if its first row has ``choices``.
    """
    if root.is_file():
        first = next((record for _, record in read(root, lambda problem: None)), {})
        return ([(root, root.stem)], []) if "choices" in first else ([], [root])
    top = root / "model_answer"
    # A slash in a model's name made folders of it.
    answers = [
        (path, path.relative_to(top).with_suffix("").as_posix())
        for path in sorted(top.rglob("*.jsonl"))
    ]
    judgments = root / "model_judgment"
    # And one in a judge's, too.
    return answers, [
        *sorted(judgments.rglob("*_single.jsonl")),
        *sorted(judgments.rglob("*_pair.jsonl")),
    ]
