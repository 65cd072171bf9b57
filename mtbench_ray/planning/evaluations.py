"""What an evaluation is: its id, which one is part of another, and what tells two apart.

An evaluation is a benchmark, a set of questions, a model's answer settings, a grader (mode, judge
prompts, judge settings, opponent) and the numbers of samples. Everything that is shown or written
belongs to the id of one; labels are for eyes only.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

from mtbench_ray.benchmarks import grader_of
from mtbench_ray.config import (
    EngineConfig,
    JudgeConfig,
    ModelConfig,
    RunConfig,
    SamplingConfig,
    science,
    science_defaults,
)
from mtbench_ray.schema import (
    ANSWERS_ONLY,
    AnswerSet,
    Evaluation,
    Unit,
    canonical,
    content_id,
    text_hash,
)

_GROUPS: Mapping[str, type[Any]] = {
    "model": ModelConfig,
    "engine": EngineConfig,
    "sampling": SamplingConfig,
    "judge": JudgeConfig,
}
DEFAULTS: dict[str, Any] = {
    f"{group}.{name}": value
    for group, kind in _GROUPS.items()
    for name, value in science_defaults(kind).items()
} | {"protocol": RunConfig.protocol}
"""What a setting is that is not among stored ones, by its dotted name."""

_FOLDER = "import"
"""Where an import came from: tells two of one label apart, and changes nothing."""
_NOT_SHOWN = frozenset({"model.path", "model.name", "benchmark", "mode"})


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings with dotted names."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping) and f"{prefix}{key}" not in DEFAULTS:
            found.update(flat(value, f"{prefix}{key}."))
        else:
            found[f"{prefix}{key}"] = value
    return found


def judge_of(row: Evaluation) -> JudgeConfig:
    """The settings of the judge of a run's evaluation; an import has none.

    Settings that another version knew and this one does not are left out.
    """
    known = {item.name for item in dataclasses.fields(JudgeConfig)}
    stored = json.loads(row.judge_settings)
    if row.source == "import":
        return JudgeConfig(kind="none")
    return JudgeConfig(**{name: value for name, value in stored.items() if name in known})


def against(row: Evaluation) -> str:
    """Whose answers an evaluation compares its model's with, see ``Grader.against``."""
    return "" if row.mode == ANSWERS_ONLY else grader_of(row.benchmark, row.mode).against


def answer_settings(answers: AnswerSet) -> dict[str, Any]:
    """The settings behind a model's answers by dotted name, defaults left out.

    Without the salt of ``fresh=true``, since starting over makes other rows of the same evaluation,
    and without the folder of an import.
    """
    found = flat(json.loads(answers.settings))
    found.pop("salt", None)
    found.pop(_FOLDER, None)
    return found


def differing(one: Mapping[str, Any], two: Mapping[str, Any]) -> set[str]:
    """Names of settings whose values differ; one that is left out has its default."""
    return {
        key
        for key in {*one, *two}
        if one.get(key, DEFAULTS.get(key)) != two.get(key, DEFAULTS.get(key))
    }


def settings_of(row: Evaluation) -> dict[str, Any]:
    """What an evaluation is but for its questions and numbers of samples, by dotted name."""
    sides = [answer_settings(row.answers)]
    if row.opponent is not None:
        sides.append(answer_settings(row.opponent))
    if against(row) == "all":  # (a, b) and (b, a) are the same matches
        sides.sort(key=canonical)
    found = dict(sides[0])
    for side in sides[1:]:
        found |= {f"baseline.{key}": value for key, value in side.items()}
    found |= {"benchmark": row.benchmark, "mode": row.mode}
    if row.judge:
        found |= grader_settings(row)
    return found


def grader_settings(row: Evaluation) -> dict[str, Any]:
    """The part of :func:`settings_of` that is the judge's."""
    if row.source == "import":
        return {"judge.model": row.judge, "source": "import"}
    judge = judge_of(row)
    if judge.kind == "none":  # rules, that no setting changes
        return {"checker": row.judge, "references": row.references}
    found = {f"judge.{name}": value for name, value in science(judge).items()}
    if row.protocol != RunConfig.protocol:
        found["protocol"] = row.protocol
    if judge.kind == "local":
        found |= {f"judge.{name}": value for name, value in judge.server_science.items()}
    else:
        found["judge.kind"] = judge.kind
    return found | {"judge.prompts": row.prompts, "references": row.references}


def wanted(row: Evaluation) -> frozenset[Hashable]:
    """The questions of an evaluation with their samples; of an imported one its judgments."""
    if row.source == "import" and row.judge:
        return frozenset(json.loads(row.judge_settings).get("rows", ()))
    return frozenset(map(_asked, row.answers.units))


def _asked(unit: Unit) -> Hashable:
    return str(unit.question_id), unit.question_hash, unit.sample


def identified(row: Evaluation) -> Evaluation:
    """The evaluation with its id: a hash over all that it is, and not over labels."""
    name = content_id(
        "evaluation",
        {
            "settings": settings_of(row),
            "wanted": sorted(map(canonical, _repeats(row).items())),
        },
    )
    return dataclasses.replace(row, evaluation_id=name)


def _kind(row: Evaluation) -> str:
    """Equal for evaluations that differ only in questions and samples."""
    return canonical(settings_of(row))


def _repeats(row: Evaluation) -> dict[Hashable, int]:
    """How often each wanted answer is judged; 0 where nobody judges."""
    if not row.judge or row.source == "import":
        return dict.fromkeys(wanted(row), row.judge_samples if row.judge else 0)
    return {_asked(unit): unit.judge_samples or row.judge_samples for unit in row.answers.units}


def _holds(big: Evaluation, small: Evaluation) -> bool:
    there = _repeats(big)
    return all(there.get(asked, -1) >= count for asked, count in _repeats(small).items())


def apart(rows: Iterable[Evaluation]) -> list[Evaluation]:
    """Evaluations without those that are part of another one, in their order.

    A smoke test of two questions is part of the full evaluation with the same settings, whichever
    ran first; answers that a judge has rated by now have no row of their own. Of equal ones the
    last counts.
    """
    kept = list({row.evaluation_id: row for row in rows}.values())
    groups: dict[str, list[Evaluation]] = {}
    for row in kept:
        groups.setdefault(_kind(row), []).append(row)
    inside: set[str] = set()
    for group in groups.values():
        for place, row in enumerate(group):
            inside |= {
                row.evaluation_id
                for at, other in enumerate(group)
                if at != place and _holds(other, row) and (at > place or not _holds(row, other))
            }
    judged: dict[str, set[Hashable]] = {}
    for row in kept:
        if row.judge:
            for answers in filter(None, (row.answers, row.opponent)):
                mine = judged.setdefault(canonical(answer_settings(answers)), set())
                mine.update(map(_asked, answers.units))
    for row in kept:
        if not row.judge and row.answers.units:
            there = judged.get(canonical(answer_settings(row.answers)), set())
            if wanted(row) <= there:
                inside.add(row.evaluation_id)
    return [row for row in kept if row.evaluation_id not in inside]


def joined(rows: Iterable[Evaluation]) -> list[Evaluation]:
    """The evaluations of one run, those that share verdicts as one, so that none counts twice.

    ``limit=4,1`` asks for one question in two evaluations with the same settings; they are one
    over the union of their questions. Evaluations that share nothing stay apart.
    """
    groups: dict[str, list[Evaluation]] = {}
    for row in rows:
        same = groups.setdefault(_kind(row), [])
        shared = [other for other in same if other == row or wanted(other) & wanted(row)]
        for other in shared:
            same.remove(other)
            row = _union(other, row)
        same.append(row)
    return [row for same in groups.values() for row in same]


def _union(one: Evaluation, two: Evaluation) -> Evaluation:
    if _holds(one, two):
        return one
    if _holds(two, one):
        return two
    most = max(one.judge_samples, two.judge_samples)
    counts = [_repeats(row) for row in (one, two)]
    answers = union(one.answers, two.answers)
    units = []
    for unit in answers.units:
        count = max(found.get(_asked(unit), 0) for found in counts)
        units.append(dataclasses.replace(unit, judge_samples=0 if count == most else count))
    row = dataclasses.replace(
        one,
        answers=dataclasses.replace(answers, units=tuple(units)),
        opponent=one.opponent and two.opponent and union(one.opponent, two.opponent),
        judge_samples=most,
        error=one.error or two.error,
        opponent_error=one.opponent_error or two.opponent_error,
        selection=" or ".join(dict.fromkeys((one.selection, two.selection))),
    )
    return identified(row)


def union(one: AnswerSet, two: AnswerSet) -> AnswerSet:
    """The answers of both sets, which have the same settings."""
    units = {unit.answer_id: unit for unit in (*one.units, *two.units)}
    return dataclasses.replace(one, units=tuple(units.values()))


def _labels(row: Evaluation) -> Hashable:
    return row.model, row.judge, row.mode, row.baseline, row.benchmark


def distinguishing_settings(
    rows: Sequence[Evaluation],
    labels: Callable[[Evaluation], Hashable] = _labels,
    *,
    ignore: frozenset[str] = frozenset(),
) -> dict[str, dict[str, Any]]:
    """The settings that tell each of some evaluations from others with its labels, by id.

    Empty for an evaluation whose labels no other one has.

    Args:
        labels: What is shown of an evaluation anyway.
        ignore: Settings that need not be told.
    """
    groups: dict[Hashable, list[Evaluation]] = {}
    for row in rows:
        groups.setdefault(labels(row), []).append(row)
    return {
        row.evaluation_id: settings
        for group in groups.values()
        for row, settings in zip(group, _differences(group, ignore), strict=True)
    }


def judge_names(rows: Sequence[Evaluation]) -> dict[str, str]:
    """The name of each evaluation's judge, with its settings where others have the same label."""
    graders = {row.evaluation_id: grader_settings(row) for row in rows}
    # Each settings once: a sweep has them hundreds of times.
    labelled: dict[str, dict[str, dict[str, Any]]] = {}
    for row in rows:
        mine = graders[row.evaluation_id]
        labelled.setdefault(row.judge, {})[canonical(mine)] = mine
    found: dict[str, str] = {}
    for row in rows:
        mine = graders[row.evaluation_id]
        keys = {key for other in labelled[row.judge].values() for key in differing(mine, other)}
        settings = {key: mine.get(key, DEFAULTS.get(key)) for key in sorted(keys)}
        found[row.evaluation_id] = named(row.judge, settings, judge=True)
    return found


def named(label: str, settings: Mapping[str, Any], *, judge: bool = False) -> str:
    """A label with the :func:`distinguishing_settings` that are its own: the judge's, or not."""
    said = [
        str(value) if key == "questions" else f"{_short(key)}={_shown(value)}"
        for key, value in settings.items()
        if key.startswith("judge.") == judge
    ]
    return f"{label} ({', '.join(said)})" if said else label


def _differences(
    rows: Sequence[Evaluation], ignore: frozenset[str] = frozenset()
) -> list[dict[str, Any]]:
    if len(rows) < 2:
        return [{} for _ in rows]
    imported = [row for row in rows if row.answers.source == "import"]
    if imported and len(imported) < len(rows):
        # Little is known of an import; that it is one tells it apart.
        others = [row for row in rows if row.answers.source != "import"]
        found_by = {
            row.evaluation_id: settings
            for part in (imported, others)
            for row, settings in zip(part, _differences(part, ignore), strict=True)
        }
        for row in imported:
            folder = json.loads(row.answers.settings).get(_FOLDER)
            found_by[row.evaluation_id] = {_FOLDER: folder} | found_by[row.evaluation_id]
        return [found_by[row.evaluation_id] for row in rows]
    described = [_described(row) for row in rows]
    keys = [
        key
        for key in dict.fromkeys(key for one in described for key in one)
        if key not in ignore
        and len({canonical(one.get(key, DEFAULTS.get(key))) for one in described}) > 1
    ]
    # A model's path, files and label change together: one of them says it.
    keys = [key for key in keys if key not in _NOT_SHOWN] or keys
    found = [{key: one.get(key, DEFAULTS.get(key)) for key in keys} for one in described]
    if len(set(map(canonical, found))) < len(rows) and "questions" not in ignore:
        for row, one in zip(rows, found, strict=True):
            one["questions"] = f"questions {_ids(row)}"
    return found


def _ids(row: Evaluation) -> str:
    """The questions of an evaluation in short, different for different ones."""
    ids = ", ".join(dict.fromkeys(str(unit.question_id) for unit in row.answers.units))
    name = text_hash(canonical(sorted(map(canonical, wanted(row)))))[:6]
    return f"{ids if len(ids) <= 24 else ids[:21] + '...'} #{name}"


def _described(row: Evaluation) -> dict[str, Any]:
    """All that can tell an evaluation from one of the same labels."""
    found = settings_of(row)
    for name in ("fingerprint", "baseline.fingerprint", "references"):
        if isinstance(found.get(name), str):
            found[name] = found[name][:8]
    questions = {unit.question_id for unit in row.answers.units}
    found["questions"] = row.selection or f"{len(questions)} questions"
    found[_FOLDER] = json.loads(row.answers.settings).get(_FOLDER)
    if row.source == "import" and row.judge:
        found["judgments"] = len(wanted(row))
    found["sampling.samples"] = len({unit.sample for unit in row.answers.units}) or 1
    found["judge.samples"] = row.judge_samples
    return found


def _short(key: str) -> str:
    """The name of a setting beside a label that says whose it is."""
    return key.removeprefix("judge.").removeprefix("sampling.") if key.count(".") else key


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) and value else json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."
