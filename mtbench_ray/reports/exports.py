"""``export KIND DIR``: scores in the formats of other programs. See ``fastchat`` for its files.

- ``scores``: ``scores.csv`` and ``scores.parquet``, a row for each aggregate.
- ``models``: a JSON file for each model with mean, std and rank of each of its evaluations.
- ``dataset``: folders ``scores`` and ``items`` that ``datasets.load_from_disk`` reads.
- ``lm-eval``: the results files of EleutherAI's lm-evaluation-harness.
- ``model-card``: the evaluation block of each model's card on the Hugging Face hub.
- ``every-eval-ever``: the files of the EvalEval coalition's Every Eval Ever, schema 0.3.0.
"""

from __future__ import annotations

import json
import statistics
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from mtbench_ray import __version__
from mtbench_ray.errors import UserError
from mtbench_ray.judges.base import Item
from mtbench_ray.planning.evaluations import DEFAULTS, answer_settings
from mtbench_ray.reports.formats import to_csv
from mtbench_ray.reports.parts import Judged, judged, mean_of, parts_of
from mtbench_ray.reports.results import Results, answer_ids
from mtbench_ray.reports.scores import all_scores
from mtbench_ray.reports.summary import rank_of
from mtbench_ray.schema import Evaluation, Score
from mtbench_ray.stats.means import clustered_mean
from mtbench_ray.workspace.filenames import safe_names
from mtbench_ray.workspace.journal import replacing
from mtbench_ray.workspace.parquet import write_table

EVAL_SCHEMA = "0.3.0"


def scores(results: Results, rows: Sequence[Evaluation], folder: Path) -> list[Path]:
    """Every aggregate as CSV and Parquet."""
    found = all_scores(results, rows)
    names = [field.name for field in fields(Score)]
    lines = to_csv(names, ([getattr(score, name) for name in names] for score in found))
    paths = [_text(folder / "scores.csv", lines), folder / "scores.parquet"]
    write_table(paths[1], Score, found)
    return paths


def models(results: Results, rows: Sequence[Evaluation], folder: Path) -> list[Path]:
    """A JSON file for each model."""
    found: dict[str, list[dict[str, Any]]] = {}
    for one, rank in _ranked(results, rows):
        found.setdefault(one.model, []).append(
            {
                "benchmark": one.benchmark,
                "mode": one.mode,
                "judge": one.judge,
                "metric": one.grader.item_column.metric,
                "rank": rank,
                **_figures(one.items, results),
                "parts": {
                    name: {
                        part: _figures(mine, results) for part, mine in _split(one, name).items()
                    }
                    for name in one.grader.dimensions
                },
            }
        )
    names = safe_names(found)
    return [
        _json(folder / f"{names[model]}.json", {"model": model, "evaluations": mine})
        for model, mine in found.items()
    ]


def dataset(results: Results, rows: Sequence[Evaluation], folder: Path) -> list[Path]:
    """Folders of Hugging Face ``datasets``: all aggregates, and all items with their answers."""
    import datasets

    tables: dict[str, list[dict[str, Any]]] = {
        "scores": [asdict(score) for score in all_scores(results, rows)],
        "items": [line for one in judged(results, rows) for line in _item_lines(one, results)],
    }
    paths = []
    for name, lines in tables.items():
        # By columns: a column that begins with empty cells keeps its type.
        columns = {key: [line[key] for line in lines] for key in lines[0]}
        path = folder / name
        datasets.Dataset.from_dict(columns).save_to_disk(str(path))
        paths.append(path)
    return paths


def _item_lines(one: Judged, results: Results) -> Iterator[dict[str, Any]]:
    ids = answer_ids(one.answers)
    turns = results.workspace.turns
    for item in one.items:
        slot = item.slot
        turn = turns.get((ids.get((slot.question_id, slot.sample), ""), slot.turn))
        yield {
            "benchmark": one.benchmark,
            "mode": one.mode,
            "model": one.model,
            "judge": one.judge,
            "question_id": str(slot.question_id),
            "category": slot.category,
            "turn": slot.turn,
            "sample": slot.sample,
            "judge_sample": slot.judge_sample,
            "criterion": slot.criterion,
            "value": item.value,
            "reason": item.reason,
            "answer": turn.content.encode("utf-8", "replace").decode() if turn else None,
        }


def lm_eval(results: Results, rows: Sequence[Evaluation], folder: Path) -> list[Path]:
    """A results file for each model and judge; a task is a benchmark, or a category of it.

    lm-eval 0.4.13's own ``make_table`` and file name functions read them.
    """
    files: dict[tuple[str, str], list[Judged]] = {}
    for one in judged(results, rows):
        files.setdefault((one.model, one.judge), []).append(one)
    names = safe_names({model for model, _ in files})
    judges = safe_names({judge for _, judge in files})
    stamp = time.strftime("%Y-%m-%dT%H-%M-%S")
    paths = []
    for (model, judge), mine in files.items():
        content: dict[str, Any] = {
            "results": {}, "group_subtasks": {}, "configs": {}, "versions": {}, "n-shot": {},
            "higher_is_better": {}, "n-samples": {},
            "config": {"model": "mtbench_ray", "model_args": f"pretrained={model}",
                       "judge": judge},
            "date": time.time(), "model_name": model, "model_name_sanitized": names[model],
            "mtbench_ray_version": __version__,
        }  # fmt: skip
        for one in mine:
            task = f"{one.benchmark}_{one.mode}".replace("-", "_")
            parts = _split(one, "category") if "category" in one.grader.dimensions else {}
            content["group_subtasks"][task] = [f"{task}_{part}" for part in parts]
            for name, items in ((task, one.items), *((f"{task}_{p}", i) for p, i in parts.items())):
                _task(content, name, one, items, results)
        # lm-eval reads the time after the last underscore of a file's name.
        place = names[model] + f"__{judges[judge]}" * (len(judges) > 1)
        paths.append(_json(folder / place / f"results_{stamp}.json", content))
    return paths


def _task(
    content: dict[str, Any], name: str, one: Judged, items: Sequence[Item], results: Results
) -> None:
    figures, metric = _figures(items, results), one.grader.item_column.metric
    line: dict[str, Any] = {"name": name, "alias": name, "sample_len": len(items)}
    if figures["mean"] is not None:
        line[f"{metric},none"] = figures["mean"]
        line[f"{metric}_stderr,none"] = "N/A" if figures["sem"] is None else figures["sem"]
    content["results"][name] = line
    content["configs"][name] = {"task": name, "metadata": {"judge": one.judge, "mode": one.mode}}
    content["versions"][name] = 1
    content["n-shot"][name] = 0
    content["higher_is_better"][name] = {metric: True}
    content["n-samples"][name] = {"original": len(items), "effective": figures["scored"]}


def every_eval_ever(results: Results, rows: Sequence[Evaluation], folder: Path) -> list[Path]:
    """A file for each model, benchmark, mode and judge that has a score."""
    now = str(time.time())
    paths = []
    found = list(judged(results, rows))
    names = safe_names({one.model.rpartition("/")[2] or one.model for one in found})
    for one in found:
        organisation, _, model = one.model.rpartition("/")
        owner = organisation.rpartition("/")[2] or "unknown"
        evaluations = [
            _evaluation(one, name, items, results)
            for name, items in _all_parts(one)
            if any(item.value is not None for item in items)
        ]
        if not evaluations:
            continue
        key = f"{one.benchmark}/{one.model}/{one.judge}/{one.mode}"
        content = {
            "schema_version": EVAL_SCHEMA,
            "evaluation_id": f"{key}/{now}",
            "retrieved_timestamp": now,
            "source_metadata": {
                "source_name": "mtbench_ray",
                "source_type": "evaluation_run",
                "source_organization_name": "unknown",
                "evaluator_relationship": "other",
            },
            "eval_library": {"name": "mtbench_ray", "version": __version__},
            "model_info": {
                "name": one.model,
                "id": one.model,
                "developer": owner,
                "additional_details": _deployment(one),
            },
            "evaluation_results": evaluations,
        }
        place = folder / "data" / one.benchmark / safe_names({owner})[owner]
        path = place / names[model or one.model] / f"{uuid.uuid5(uuid.NAMESPACE_URL, key)}.json"
        paths.append(_json(path, content))
    return paths


def _deployment(one: Judged) -> dict[str, str]:
    """Whose machine answered: weights that this program loaded are there to be had."""
    kind = answer_settings(one.answers).get("engine.kind", DEFAULTS["engine.kind"])
    ours = one.answers.source == "run" and kind == "vllm"
    return {
        "deployment_type": "self_deployed" if ours else "unknown",
        "model_availability": "open_weights" if ours else "unknown",
    }


def model_card(results: Results, rows: Sequence[Evaluation], folder: Path) -> list[Path]:
    """A card for each model: its ``model-index`` metadata, and the same as a table.

    ``huggingface_hub.ModelCard.load`` reads it, and ``metadata_update`` puts it into a model's own
    card. Nothing is uploaded here.

    Raises:
        UserError: The only judge is the demo model.
    """
    import yaml

    rows = [row for row in rows if not row.demo]
    if not any(row.judge for row in rows):
        raise UserError("scores of the demo judge are not for a model card", "judge=gpt-4o")
    models: dict[str, list[Judged]] = {}
    for one in judged(results, rows):
        if any(item.value is not None for item in one.items):
            models.setdefault(one.model, []).append(one)
    names = safe_names(models)
    paths = []
    for model, mine in models.items():
        found = [_card_result(one, results) for one in mine]
        index = [{"name": model, "results": found}]
        head = yaml.safe_dump({"model-index": index}, sort_keys=False, allow_unicode=True)
        lines = ["| benchmark | score | 95% interval | scored |", "|---|---|---|---|"]
        for result in found:
            first = result["metrics"][0]
            args = first["args"]
            ends = [args.get("ci_low"), args.get("ci_high")]
            interval = "n/a" if None in ends else f"{ends[0]:.2f} to {ends[1]:.2f}"
            lines.append(
                f"| {first['name']} | {first['value']:.2f} | {interval}"
                f" | {args['scored']}/{args['planned']} |"
            )
        text = f"---\n{head}---\n\n## Evaluation\n\n" + "\n".join(lines) + "\n"
        paths.append(_text(folder / f"{names[model]}.md", text))
    return paths


def _card_result(one: Judged, results: Results) -> dict[str, Any]:
    """One result of a ``model-index``: the score over all first, then those of each part."""
    metrics = []
    for name, items in _all_parts(one):
        figures = _figures(items, results)
        if figures["mean"] is None:
            continue
        args = {
            key: figures[key] for key in ("ci_low", "ci_high", "ci_method", "planned", "scored")
        }
        args = {key: value for key, value in args.items() if value not in (None, "")}
        metrics.append(
            {
                "type": one.grader.headline.metric,
                "name": f"{one.benchmark} {name}".strip() + f" ({one.mode}, {one.judge})",
                "value": float(figures["mean"]),
                "args": {"judge": one.judge, "mode": one.mode, **args},
            }
        )
    return {
        "task": {"type": "text-generation"},
        "dataset": {
            "type": one.benchmark,
            "name": one.benchmark,
            "config": f"{one.mode}, {one.judge}",
        },
        "metrics": metrics,
    }


def _evaluation(one: Judged, name: str, items: Sequence[Item], results: Results) -> dict[str, Any]:
    figures = _figures(items, results)
    low, high = one.scale
    uncertainty: dict[str, Any] = {"num_samples": figures["scored"]}
    if figures["std"] is not None:
        uncertainty["standard_deviation"] = figures["std"]
    if figures["sem"] is not None:
        uncertainty["standard_error"] = {"value": figures["sem"], "method": "clustered by question"}
    if figures["ci_low"] is not None:
        uncertainty["confidence_interval"] = {
            "lower": figures["ci_low"],
            "upper": figures["ci_high"],
            "confidence_level": 0.95,
            "method": figures["ci_method"],
        }
        uncertainty["num_bootstrap_samples"] = results.options.resamples
    return {
        "evaluation_name": f"{one.benchmark} {name}".strip(),
        "source_data": {"dataset_name": one.benchmark, "source_type": "other"},
        "metric_config": {
            "evaluation_description": f"{one.grader.item_column.metric}, {one.mode}",
            "lower_is_better": False,
            "score_type": "continuous",
            "min_score": low,
            "max_score": high,
            "additional_details": {"judge": one.judge},
        },
        "score_details": {
            "score": figures["mean"],
            "details": {name: str(figures[name]) for name in ("planned", "scored")},
            "uncertainty": uncertainty,
        },
    }


def _all_parts(one: Judged) -> Iterator[tuple[str, Sequence[Item]]]:
    yield "", one.items
    for name in one.grader.dimensions:
        for part, items in _split(one, name).items():
            yield f"{name} {part}", items


def _split(one: Judged, dimension: str) -> dict[str, list[Item]]:
    part = one.grader.dimensions[dimension]
    return {
        name: [item for item in one.items if part(item.slot) == name]
        for name in parts_of(one.items, part, one.benchmark)
    }


def _figures(items: Sequence[Item], results: Results) -> dict[str, Any]:
    """Mean, spread, interval and coverage."""
    values = [item.value for item in items if item.value is not None]
    groups = [item.slot.group for item in items if item.value is not None]
    return {
        **mean_of(items, results.options),
        "std": statistics.stdev(values) if len(values) > 1 else None,
        "sem": clustered_mean(values, groups, resamples=0).se,
    }


def _ranked(results: Results, rows: Sequence[Evaluation]) -> Iterator[tuple[Judged, int | None]]:
    groups: dict[tuple[str, str, str], list[Judged]] = {}
    for one in judged(results, rows):
        groups.setdefault((one.benchmark, one.mode, one.judge), []).append(one)
    for group in groups.values():
        means = [mean_of(one.items, results.options)["mean"] for one in group]
        for one, mean in zip(group, means, strict=True):
            yield one, rank_of(mean, means)


def _text(path: Path, text: str) -> Path:
    with replacing(path) as temporary:
        temporary.write_text(text, "utf-8", "replace")
    return path


def _json(path: Path, value: Mapping[str, Any]) -> Path:
    return _text(path, json.dumps(value, indent=1) + "\n")


KINDS: dict[str, Callable[[Results, Sequence[Evaluation], Path], list[Path]]] = {
    "scores": scores,
    "models": models,
    "dataset": dataset,
    "lm-eval": lm_eval,
    "model-card": model_card,
    "every-eval-ever": every_eval_ever,
}
