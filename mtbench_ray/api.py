"""From Python: the same evaluations, settings and workspaces as on the command line.

    import mtbench_ray

    result = mtbench_ray.evaluate(model="Qwen/Qwen2.5-7B-Instruct", judge="gpt-4o")
    print(result)                    # the table
    result.pandas()                  # one row for each evaluation, dimension and name

Every call blocks until it is done, in a notebook too; where an event loop must go on meanwhile:
``await asyncio.to_thread(mtbench_ray.evaluate, model=..., judge=...)``. Progress goes to standard
error, and a mistake is a :class:`~mtbench_ray.errors.UserError` with what to do about it.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtbench_ray.config import RunConfig
from mtbench_ray.errors import EXIT_OK, EXIT_PARTIAL, UserError

if TYPE_CHECKING:
    import pandas
    import pyarrow

_ONE_AT_A_TIME = threading.RLock()
"""Hydra's state and standard output are those of the process."""
_PLAIN = re.compile(r"(?!(?i:null|true|false|inf|nan)$)[A-Za-z_/][\w./@+%-]*")


@dataclass(frozen=True)
class Result:
    """Scores of a workspace: of one call of :func:`evaluate`, or of all that it holds.

    Attributes:
        workspace: The folder.
        exit_code: As that of the command: 0 all scored, 3 finished with failures, 130 interrupted.
        summary: What ``report format=json`` prints.
    """

    workspace: Path
    exit_code: int
    summary: Mapping[str, Any]

    @property
    def complete(self) -> bool:
        """Whether all that was wanted is scored."""
        return self.exit_code == EXIT_OK

    @property
    def evaluations(self) -> list[dict[str, Any]]:
        """The rows of the table, of all modes: model, judge, average, interval, coverage ..."""
        modes = [self.summary, *self.summary.get("other_modes", ())]
        return [row for mode in modes for row in mode["results"]]

    def scores(self) -> pyarrow.Table:
        """One row for each evaluation, metric, dimension and name: ``scores.parquet``."""
        import pyarrow.compute

        table = self._table("scores")
        ids = pyarrow.array([row["id"] for row in self.evaluations], table["evaluation_id"].type)
        return table.filter(pyarrow.compute.is_in(table["evaluation_id"], value_set=ids))

    def answers(self) -> pyarrow.Table:
        """One row for each answered turn of the models here."""
        return self._of_models("answers")

    def judgments(self) -> pyarrow.Table:
        """One row for each judgment of the models by the judges here, with what was written."""
        return self._of_models("judgments", "judge")

    def pandas(self) -> pandas.DataFrame:
        """:meth:`scores` as a data frame."""
        return self.scores().to_pandas()

    def rows(self) -> Iterator[dict[str, Any]]:
        """The judgments one by one, with few in memory at a time."""
        for batch in self.judgments().to_batches(max_chunksize=256):
            yield from batch.to_pylist()

    def _of_models(self, name: str, *more: str) -> pyarrow.Table:
        import pyarrow.compute

        table = self._table(name)
        for column in ("model", *more):
            here = sorted({row[column] for row in self.evaluations})
            labels = pyarrow.array(here, table[column].type)
            table = table.filter(pyarrow.compute.is_in(table[column], value_set=labels))
        return table

    def _table(self, name: str) -> pyarrow.Table:
        import pyarrow.compute
        import pyarrow.parquet

        path = self.workspace / f"{name}.parquet"
        if not path.is_file():
            raise UserError(f"{path} is not there", "it is written at the end of a run")
        table = pyarrow.parquet.read_table(path)
        # Rows that a newer one of the same id stands for.
        return table.filter(pyarrow.compute.invert(table["replaced"])).drop_columns("replaced")

    def __str__(self) -> str:
        """The table, as ``report`` prints it, of the models and judges here."""
        names = [_pattern(row["model"]) for row in self.evaluations]
        shown = f"model={names[0]}" if len(set(names)) == 1 else ""
        words = ["report", f"workspace={self.workspace}", *([shown] if shown else [])]
        with contextlib.suppress(UserError):
            return _printed(lambda: _verb(words))[1].rstrip()
        return json.dumps(self.summary, indent=1)

    def _repr_markdown_(self) -> str:
        """The table in a notebook."""
        return f"```\n{self}\n```"


@dataclass(frozen=True)
class Verdict:
    """One judgment.

    Attributes:
        value: The rating; None where there is none, and ``status`` says why.
        label: The rating as the judge wrote it.
        text: All that the judge wrote.
        row: The whole row of ``judgments.parquet``.
    """

    value: float | None
    label: str | None
    text: str
    status: str
    row: Mapping[str, Any]


def evaluate(
    model: str | Sequence[str] | None = None,
    judge: str | Sequence[str] | None = None,
    **settings: Any,
) -> Result:
    """Let models answer and judges rate; what the workspace already holds is not done again.

    Args:
        model: A preset, a Hugging Face id or a folder; several are one sweep.
        judge: A preset or the name of a model; several judge the same answers.
        settings: As on the command line: ``limit=8``, ``workspace="out"``,
            ``sampling={"max_tokens": 256}``, or ``**{"sampling.max_tokens": 256}``.

    Raises:
        UserError: A mistake in the settings, or the run could not do its work; rows that were done
            are kept, and the same call again goes on.
    """
    from mtbench_ray.cli.hydra_app import compose_and_run

    args = [*arguments(model, judge, settings), "report.format=json"]
    workspace = Path(settings.get("workspace", RunConfig.workspace)).expanduser().resolve()
    code, text = _printed(lambda: compose_and_run(args, plan_only=False))
    if not text.strip():
        raise UserError(
            f"the run ended with code {code} before there was a table", "what it said is above"
        )
    return Result(workspace, code, json.loads(text))


def plan(
    model: str | Sequence[str] | None = None,
    judge: str | Sequence[str] | None = None,
    **settings: Any,
) -> str:
    """What :func:`evaluate` would do and cost, as a text; nothing is run and nothing is written.

    Raises:
        UserError: A mistake in the settings.
    """
    from mtbench_ray.cli.hydra_app import compose_and_run

    args = arguments(model, judge, settings)
    return _printed(lambda: compose_and_run(args, plan_only=True))[1].rstrip()


def report(workspace: str | os.PathLike[str] = RunConfig.workspace, **filters: Any) -> Result:
    """The scores of a workspace.

    Args:
        workspace: The folder.
        filters: As those of the verb: ``model="*step_*"``, ``judge``, ``category``, ``mode``,
            ``parity``, ``resamples``, ``seed``.

    Raises:
        UserError: There is nothing to report.
    """
    words = [f"{key}={value}" for key, value in filters.items()]
    code, text = _printed(
        lambda: _verb(["report", f"workspace={os.fspath(workspace)}", "format=json", *words])
    )
    if code not in (EXIT_OK, EXIT_PARTIAL):
        raise UserError("there is no report", f"report workspace={workspace}")
    return Result(Path(workspace).expanduser().resolve(), code, json.loads(text))


def judge(
    question: str | Sequence[str],
    answer: str | Sequence[str],
    judge: str = "gpt-4o",
    *,
    category: str = "writing",
    reference: str | Sequence[str] | None = None,
    **settings: Any,
) -> list[Verdict]:
    """Have answers of your own judged: one question of one or more turns.

    Args:
        question: Its turns.
        answer: The answer to each turn.
        judge: As for :func:`evaluate`.
        category: One whose judge prompt shows a reference wants ``reference``.
        reference: The right answer to each turn.
        settings: As for :func:`evaluate`; with a ``workspace`` a second call costs nothing.

    Returns:
        A verdict for each turn.

    Raises:
        UserError: A mistake in the settings, or the judge refused the key.
    """
    turns, replies = _several(question), _several(answer)
    if len(turns) != len(replies):
        raise UserError(
            f"{len(turns)} turns and {len(replies)} answers", "there is one answer for each turn"
        )
    with tempfile.TemporaryDirectory() as folder:
        own = Path(folder)
        workspace = settings.pop("workspace", None) or own / "results"
        asked: dict[str, Any] = {"question_id": 1, "category": category, "turns": turns}
        if reference is not None:
            asked["reference"] = _several(reference)
        questions = own / "question.jsonl"
        questions.write_text(json.dumps(asked) + "\n", "utf-8")
        answers = own / "model_answer" / "answer.jsonl"
        answers.parent.mkdir(parents=True)
        choice = {"index": 0, "turns": replies}
        row = {"question_id": 1, "answer_id": "1", "model_id": "answer", "choices": [choice],
               "tstamp": 0}  # fmt: skip
        answers.write_text(json.dumps(row) + "\n", "utf-8")
        _printed(
            lambda: _verb(
                [
                    "import",
                    "fastchat",
                    str(own),
                    f"workspace={workspace}",
                    f"question_path={questions}",
                ]
            )
        )
        result = evaluate("answer", judge, stage="judge", question_path=str(questions),
                          workspace=str(workspace), **({"quiet": True} | settings))  # fmt: skip
        rows = sorted(result.judgments().to_pylist(), key=lambda found: found["turn"])
    return [Verdict(r["value"], r["label"], r["text"], r["status"], r) for r in rows]


def arguments(
    model: str | Sequence[str] | None,
    judge: str | Sequence[str] | None,
    settings: Mapping[str, Any],
) -> list[str]:
    """The command line of settings.

    >>> arguments("a/b", ["gpt-4o", "local"], {"limit": 8, "sampling": {"max_tokens": 64}})
    ['-m', 'model=a/b', 'judge=gpt-4o,local', 'limit=8', 'sampling.max_tokens=64']
    """
    args: list[str] = []
    for key, value in (("model", model), ("judge", judge)):
        if value is not None:
            several = [value] if isinstance(value, str | os.PathLike) else list(value)
            if len(several) != 1 and "-m" not in args:
                args.insert(0, "-m")
            args.append(f"{key}={','.join(map(_text, several))}")
    return [*args, *(f"{key}={_text(value)}" for key, value in _flat("", settings))]


def _flat(prefix: str, settings: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(f"{prefix}{key}.", value)
        else:
            yield f"{prefix}{key}", value


def _text(value: Any) -> str:
    """A value as Hydra reads it back."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{_text(k)}:{_text(v)}" for k, v in value.items()) + "}"
    if isinstance(value, str | os.PathLike):
        text = os.fspath(value)
        if not text or _PLAIN.fullmatch(text):
            return text
        from mtbench_ray.cli.benchmark_settings import in_quotes

        return in_quotes(text)
    return "[" + ",".join(map(_text, value)) + "]"


def _several(value: str | Sequence[str]) -> list[str]:
    return [value] if isinstance(value, str) else list(value)


def _pattern(text: str) -> str:
    """A name as a pattern that matches only itself."""
    return re.sub(r"([*?\[])", r"[\1]", text)


def _verb(words: Sequence[str]) -> int:
    from mtbench_ray.cli.main import dispatch

    return dispatch(list(words))


def _printed(call: Callable[[], int]) -> tuple[int, str]:
    """The exit code of a call and what it wrote to standard output."""
    found = io.StringIO()
    with _ONE_AT_A_TIME, contextlib.redirect_stdout(found):
        code = call()
    return code, found.getvalue()
