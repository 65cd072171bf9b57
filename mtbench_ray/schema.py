"""Row types, statuses and content ids. Standard library only.

Rows are what users' workspaces live on. Each row type is a frozen dataclass; :func:`encode` writes
one as a line of ASCII JSON (so lone surrogates, NUL and U+2028 survive any reader) and
:func:`decode` reads it back. Free-form settings are JSON strings, never nested dicts, so that a
column keeps one type in Arrow.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

SCHEMA = 1
"""Version of the row layout; written in every row as ``schema``."""

Status = Literal["ok", "truncated", "empty", "refused", "unparsed", "context_overflow", "error"]
"""``ok``, and for answers also ``truncated`` and ``empty``, are results; the others failures."""

ANSWERED: frozenset[str] = frozenset({"ok", "truncated", "empty"})
"""Turn statuses that are the model's own doing: such a turn is judged as it stands. A failure of
the machinery (``error``, ``context_overflow``) is never judged and is pending again."""

ANSWERS_ONLY = "answers"
"""Mode of an evaluation that nobody judges."""

QuestionId = int | str


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message: ``role`` is system, user or assistant."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Question:
    """One benchmark item with its turns.

    Attributes:
        benchmark: Registered name of the benchmark.
        question_id: The item's own id, as in its file.
        category: One of the benchmark's categories.
        turns: User messages in order.
        references: Reference answer per turn, or empty where the judge gets none.
        group: Unit of coverage and resampling, such as the question itself.
        tags: Free labels.
        context: A conversation history that comes before the first turn.
        temperature: Sampling temperature of its answers, where the item itself has one.
        grading: JSON with whatever its grader needs to know (a rubric, rules to check).
        revision: sha256 of the file that the item came from.
    """

    benchmark: str
    question_id: QuestionId
    category: str
    turns: tuple[str, ...]
    references: tuple[str, ...] = ()
    group: str = ""
    tags: tuple[str, ...] = ()
    context: tuple[Message, ...] = ()
    temperature: float | None = None
    grading: str = "{}"
    revision: str = ""


@dataclass(frozen=True, slots=True)
class BenchmarkData:
    """Everything that a run reads, kept in the workspace so that a report needs nothing else.

    Attributes:
        name: Registered name of the benchmark.
        questions: All questions of the source, in its order, with their references.
        prompts_name: What the judge prompts are called; empty where there are none.
        judge_prompts: Text of the judge prompt file in use (JSON lines).
        files: What each part was read from: ``questions``, ``references``, ``judge_prompts`` to
            ``<file name> sha256:<64 hex digits>``; shown in the summary.
        kept: What graders need beside the questions (judge prompts of their own, tables), by name.
    """

    name: str
    questions: tuple[Question, ...]
    prompts_name: str
    judge_prompts: str
    files: Mapping[str, str]
    kept: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Turn:
    """One answered (or failed) turn; streamed as soon as it is there.

    Attributes:
        answer_id: Content id of the conversation's settings (see ``plan.answer_id``).
        turn: 1-based.
        content: The final answer: the only text that turn 2, the judge and FastChat files see.
        reasoning: Thinking that was split off; None where there was none.
        raw: The engine's text before any splitting.
        history: ``content`` of the earlier turns that this one was built on.
        sampling: JSON of the parameters really used.
        template_hash: sha256 prefix of the chat template, empty for endpoints.
        latency_s: Seconds from request to last token.
        engine_origin: ``cold`` (fresh engine), ``swap`` (weights swapped in place), ``endpoint``,
            ``fake`` or ``import``.
        status: See :data:`Status`; ``error`` says why in ``error``.
        compliant: Whether the thinking format was kept; None where thinking is not expected.
        served_model: The model that an endpoint said it answered with, with the folder behind the
            name where it lists one.
        system_fingerprint: The endpoint's own name for the version that answered.
        created: Unix seconds.
    """

    answer_id: str
    turn: int
    benchmark: str
    question_id: QuestionId
    model: str
    sample: int
    content: str
    status: str
    raw: str = ""
    reasoning: str | None = None
    history: tuple[str, ...] = ()
    finish_reason: str | None = None
    prompt_tokens: int = 0
    output_tokens: int = 0
    seed: int | None = None
    sampling: str = "{}"
    template_hash: str = ""
    latency_s: float = 0.0
    engine_origin: str = "cold"
    compliant: bool | None = None
    served_model: str = ""
    system_fingerprint: str = ""
    error: str | None = None
    created: float = 0.0
    run_id: str = ""
    schema: int = SCHEMA


@dataclass(frozen=True, slots=True)
class Request:
    """One judge call, fully rendered. Not stored alone: its fields go into the judgment.

    Attributes:
        judgment_id: Content id over everything that changes the verdict.
        match_id: The same for both games of a match; equals judgment_id in single mode.
        order: 0 in single mode; 1 where ``model`` is shown as A, 2 where it is shown as B.
        opponent: The other model of a match, or None.
        answer_ids: The answers shown, ``model``'s first.
        messages: What is sent.
        criterion: What of the answer is judged; empty where it is judged as a whole.
        want: What the verdict is read from: the reply's ``text``, ``json`` or ``logprobs``; or
            ``check``: from the answer itself, and nothing is called.
        params: JSON of parameters of this call that replace the judge's (``max_tokens``,
            ``temperature``) or come beside them.
    """

    judgment_id: str
    match_id: str
    mode: str
    benchmark: str
    question_id: QuestionId
    category: str
    turn: int
    model: str
    judge: str
    judge_prompt: str
    messages: tuple[Message, ...]
    prompt_hash: str
    reference_hash: str = ""
    order: int = 0
    opponent: str | None = None
    answer_ids: tuple[str, ...] = ()
    sample: int = 0
    judge_sample: int = 0
    criterion: str = ""
    want: str = "text"
    params: str = "{}"


@dataclass(frozen=True, slots=True)
class Judgment:
    """What a judge wrote about one turn or one game, with what was read from it.

    Attributes:
        criterion: As in :class:`Request`.
        label: The verdict as text: the digits of a number, or ``A``, ``B``, ``tie``.
        value: The verdict as a number, in the unit of its grader; of a match 1, 0.5 or 0 for
            ``model`` after un-swapping; None where there is none.
        logprobs: JSON of the reply's log-probabilities, empty where none were asked for.
        status: ``ok`` exactly where value is a number.
        error: The reason of a failure (``no_rating``, ``out_of_range``, ``timeout`` ...).
        attempts: Calls made for this row, 0 where nothing was sent.
        cost_usd: Price of all attempts, None where prices are unknown.
        cached_tokens: Of the prompt tokens of all attempts, those that the service had cached.
        params: JSON of the parameters really sent; ``adjusted`` in it says what the service made us
            change.
        served_model: As in :class:`Turn`.
        system_fingerprint: As in :class:`Turn`.
        started: Unix seconds at which the call that gave this reply began.
        created: Unix seconds at which the reply was there.
        source: ``run``, or ``import`` for rows read from FastChat files.
        read_as: Proof of how ``text`` was read, see :mod:`mtbench_ray.judges.outcomes`; empty where
            it is to be read again.
    """

    judgment_id: str
    match_id: str
    mode: str
    benchmark: str
    question_id: QuestionId
    category: str
    turn: int
    model: str
    judge: str
    judge_prompt: str
    status: str
    user_prompt: str = ""
    text: str = ""
    reasoning: str | None = None
    finish_reason: str | None = None
    label: str | None = None
    value: float | None = None
    error: str | None = None
    order: int = 0
    opponent: str | None = None
    answer_ids: tuple[str, ...] = ()
    sample: int = 0
    judge_sample: int = 0
    criterion: str = ""
    logprobs: str = ""
    prompt_hash: str = ""
    reference_hash: str = ""
    attempts: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = None
    latency_s: float = 0.0
    params: str = "{}"
    served_model: str = ""
    system_fingerprint: str = ""
    started: float = 0.0
    created: float = 0.0
    source: str = "run"
    run_id: str = ""
    cached_tokens: int = 0
    read_as: str = ""
    schema: int = SCHEMA

    @property
    def has_reply(self) -> bool:
        """Whether there is something to read: a refusal's text, say, counts for nothing."""
        failed = self.status in ("error", "refused", "context_overflow")
        return bool(self.text or self.logprobs) and not failed


@dataclass(frozen=True, slots=True)
class Unit:
    """One wanted answer of an answer set.

    Attributes:
        question_hash: Of the question's own text (:func:`question_hash`); empty in imports, whose
            files do not hold it.
        judge_samples: Repeats of each judgment of this answer where they are not the evaluation's;
            else 0.
    """

    question_id: QuestionId
    sample: int
    answer_id: str
    question_hash: str = ""
    judge_samples: int = 0


@dataclass(frozen=True, slots=True)
class AnswerSet:
    """The answers one model is meant to give: what "planned" counts for it.

    Attributes:
        model: Label shown everywhere, the exact text typed.
        settings: JSON of the science settings behind the answer ids, defaults left out: ``model``,
            ``engine``, ``sampling``, ``fingerprint``, ``salt``; of an import its folder.
        units: The wanted answers.
        source: ``run`` or ``import``.
    """

    model: str
    settings: str
    units: tuple[Unit, ...]
    source: str = "run"


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What one row of the table stands for: a model's answers to a set of questions under a grader.

    Stored in the run record, so that a report can be made later from the workspace alone. What it
    is made of, and what is part of what, is in :mod:`mtbench_ray.planning.evaluations`.

    Attributes:
        answers: The model's wanted answers.
        opponent: The other side's wanted answers where two models are compared.
        judge: Label of the judge, or what checks the answers; empty where nothing grades them.
        judge_settings: JSON of the judge's science settings.
        mode: Name of the grader among those of the benchmark, or :data:`ANSWERS_ONLY`.
        data: Name of the data snapshot in the workspace: questions, references, judge prompts.
        judge_samples: Repeats of each judgment.
        source: ``run``, or ``import`` where verdicts were read from FastChat files.
        error: Why nothing could be done for this model, where that is so.
        opponent_error: The same for its opponent.
        demo: The judge is only a demonstration; scores are not comparable.
        benchmark: Registered name of the benchmark.
        prompts: The judge prompts: their name, and the hash of the file where it is a user's own.
        references: Hash of the reference answers that a judge may be shown; empty for none.
        selection: How the questions were chosen, in words for the eye; empty for all.
        protocol: ``default``, or ``official`` for the benchmark's own program, see
            :class:`mtbench_ray.benchmarks.base.Benchmark`.
        evaluation_id: See :func:`mtbench_ray.planning.evaluations.identified`.
    """

    answers: AnswerSet
    judge: str
    judge_settings: str
    mode: str
    data: str
    opponent: AnswerSet | None = None
    judge_samples: int = 1
    source: str = "run"
    error: str | None = None
    opponent_error: str | None = None
    demo: bool = False
    benchmark: str = "mt_bench"
    prompts: str = ""
    references: str = ""
    selection: str = ""
    protocol: str = "default"
    evaluation_id: str = ""

    @property
    def model(self) -> str:
        """Label of the model."""
        return self.answers.model

    @property
    def baseline(self) -> str | None:
        """Label of the opponent, None in single mode."""
        return self.opponent.model if self.opponent else None


@dataclass(frozen=True, slots=True)
class Slot:
    """One wanted verdict, known before the answers exist.

    Attributes:
        answer_ids: Answers it needs, ``model``'s first; turns 1 to ``turn`` of each.
        order: As in :class:`Request`.
        criterion: As in :class:`Request`.
        weight: Of this verdict among those of its answer; negative where it speaks against it.
    """

    model: str
    question_id: QuestionId
    category: str
    group: str
    turn: int
    sample: int
    answer_ids: tuple[str, ...]
    order: int = 0
    opponent: str | None = None
    judge_sample: int = 0
    criterion: str = ""
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """A slot with what became of it.

    Attributes:
        judgment: The row that counts, or None.
        reason: Empty where the judgment has a value; else why there is none, for example
            ``no_rating``, ``answer_error``, ``answer_context_overflow``, ``missing``.
    """

    slot: Slot
    judgment: Judgment | None
    reason: str


@dataclass(frozen=True, slots=True)
class Score:
    """One aggregate with its coverage; ``scores.parquet`` has a row for each.

    Attributes:
        evaluation_id: Of the evaluation, or of a model's row over several evaluations.
        benchmark: Registered name of the benchmark.
        step: Training step in the model's name, None where there is none.
        metric: What ``mean`` is; graders declare theirs in their columns.
        dimension: ``all``, or what the verdicts are split by: ``turn``, ``category`` ...
        name: The part; empty for ``all``.
        planned: Wanted verdicts.
        scored: Verdicts that count in ``mean``.
        failed: JSON object, reason to count; planned = scored + the sum of these.
        mean: None where nothing was scored.
        ci_low: Lower end of the 95% interval, None where it does not exist.
        ci_high: Upper end.
        method: How the interval was made, or ``none: `` and why there is none.
        set_digest: Of the evaluations that it was fitted on, where it is of several models at
            once: with another set it is another figure. Empty else.
    """

    model: str
    judge: str
    mode: str
    metric: str
    dimension: str
    name: str
    planned: int
    scored: int
    failed: str
    mean: float | None
    ci_low: float | None = None
    ci_high: float | None = None
    method: str = ""
    evaluation_id: str = ""
    benchmark: str = ""
    step: float | None = None
    set_digest: str = ""

    @property
    def place(self) -> tuple[str, str, str]:
        """What of an evaluation it is a score of."""
        return self.metric, self.dimension, self.name


@dataclass(frozen=True, slots=True)
class EngineEvent:
    """Something an engine did that the run record and the summary's figures want to know.

    Attributes:
        kind: ``start``, ``swap``, ``restart``, ``failed``, ``stop``; ``phase``: a part of a start,
            which only the timeline keeps; ``beat``: a sign of life of an engine at work, which
            nothing keeps.
        seconds: How long it took.
        gpu_memory_gb: Memory in use on the engine's cards after it, None without a GPU.
        detail: Why (a refused swap, the engine's words of a fault); of a ``beat`` the process, of a
            ``phase`` its name.
        tokens: With ``beat``: so far, of the turns that run now.
    """

    kind: str
    model: str
    replica: str
    seconds: float
    detail: str = ""
    gpu_memory_gb: float | None = None
    created: float = 0.0
    tokens: int = 0


Row = TypeVar("Row")


def canonical(value: Any) -> str:
    """JSON text of ``value`` that is equal for equal values: sorted keys, no spaces, ASCII."""
    return json.dumps(value, sort_keys=True, ensure_ascii=True, separators=(",", ":"))


def text_hash(text: str) -> str:
    """First 32 hex digits (128 bits) of the sha256 of a text; lone surrogates are allowed."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def content_id(kind: str, fields: Mapping[str, Any]) -> str:
    """Id of a unit of work from everything that changes its result.

    Args:
        kind: ``answer`` or ``judgment``: ids of different kinds never meet.
        fields: JSON-able values. Order does not matter, names and values do.
    """
    return text_hash(canonical([kind, dict(fields)]))


def question_hash(question: Question) -> str:
    """Of what a model is asked: two questions with one id and other texts are two questions."""
    asked = [question.turns, [to_dict(message) for message in question.context]]
    return text_hash(canonical(asked))[:16]


def encode(row: Any) -> str:
    """One row as a line of JSON without the line end; ASCII only."""
    return json.dumps(_shallow(row), ensure_ascii=True, separators=(",", ":"), default=_shallow)


def _shallow(row: Any) -> dict[str, Any]:
    """The fields of a row, not copied (``asdict`` takes most of the time of writing a row)."""
    return {name: getattr(row, name) for name in row.__dataclass_fields__}


def to_dict(row: Any) -> dict[str, Any]:
    """A row as plain JSON values, in field order."""
    return dataclasses.asdict(row)


def decode(cls: type[Row], data: Mapping[str, Any]) -> Row:
    """Build a row from parsed JSON.

    Unknown fields of a same-or-older schema are ignored and missing ones take their defaults.

    Raises:
        ValueError: The row is of a newer schema, or lacks a field that has no default.
    """
    version = data.get("schema", SCHEMA)
    if not isinstance(version, int) or version > SCHEMA:
        raise ValueError(
            f"row of schema {version!r}, this version reads up to {SCHEMA}: upgrade mtbench_ray"
        )
    if (revivers := _REVIVERS.get(cls)) is None:  # once for a class: millions of rows are read
        revivers = _REVIVERS[cls] = {
            field.name: _NESTED.get(str(field.type).removesuffix(" | None").strip())
            for field in dataclasses.fields(cls)  # type: ignore[arg-type]
        }
    values: dict[str, Any] = {}
    for name, value in data.items():
        if name in revivers:
            revive = revivers[name]
            values[name] = value if revive is None or value is None else revive(value)
    try:
        return cls(**values)
    except TypeError as error:
        raise ValueError(f"not a {cls.__name__} row: {error}") from None


def _tuple_of(cls: type[Any]) -> Any:
    return lambda items: tuple(decode(cls, item) for item in items)


_NESTED: dict[str, Any] = {
    "tuple[str, ...]": tuple,
    "tuple[Message, ...]": _tuple_of(Message),
    "tuple[Unit, ...]": _tuple_of(Unit),
    "AnswerSet": lambda item: decode(AnswerSet, item),
}

_REVIVERS: dict[type[Any], dict[str, Any]] = {}
"""What makes a field of a row from JSON, None where that is the value itself."""
