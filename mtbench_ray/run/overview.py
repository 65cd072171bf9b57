"""The first lines of a run: what it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from mtbench_ray.benchmarks import get_benchmark
from mtbench_ray.config import RunConfig
from mtbench_ray.endpoint.keys import display_host
from mtbench_ray.planning.jobs import Job
from mtbench_ray.reports.tables import label

_NAMES = 5
"""Of more models the first are named."""


def overview(jobs: Sequence[Job], *, turns: int, verdicts: int, gpus: int | None) -> list[str]:
    """A few lines for standard error, before anything is generated.

    Args:
        turns: Answers that are pending.
        verdicts: Judge calls that are pending.
        gpus: Of the cluster; None where it has not been started.
    """
    config = jobs[0].config
    lines = {
        "benchmark": _benchmark(jobs),
        "model": _several(job.answers.model for job in jobs),
        "engine": _engine(config, gpus),
        "judge": _several(map(_judge, jobs)),
        "thinking": _several(job.config.model.thinking for job in jobs),
        "workspace": str(Path(config.workspace).expanduser().absolute()),
        "pending": f"{turns} turns to answer, {verdicts} {_verdicts(jobs)}"
        + f" at most (select={config.select})" * bool(config.select),
    }
    width = max(map(len, lines))
    return [f"{name:<{width}}  {label(text)}" for name, text in lines.items()]


def _verdicts(jobs: Sequence[Job]) -> str:
    """What gives the verdicts of a run."""
    checked = {bool(job.grader.checker) for job in jobs if job.judged}
    return (
        {True: "checks", False: "judge calls"}[checked.pop()]
        if len(checked) == 1
        else ("judge calls and checks" if checked else "judge calls")
    )


def _several(texts: Iterable[str]) -> str:
    different = list(dict.fromkeys(texts))
    named = ", ".join(different[:_NAMES])
    more = len(different) - _NAMES
    return f"{named} and {more} more" if more > 0 else named


def _benchmark(jobs: Sequence[Job]) -> str:
    by_name: dict[str, list[Job]] = {}
    for job in jobs:
        by_name.setdefault(job.data.name, []).append(job)
    return "; ".join(_one_benchmark(mine, len(by_name) == 1) for mine in by_name.values())


def _one_benchmark(jobs: Sequence[Job], detail: bool) -> str:
    questions = {question.question_id: question for job in jobs for question in job.questions}
    by_category = Counter(question.category for question in questions.values())
    listed = ", ".join(f"{name} {count}" for name, count in by_category.items())
    source = jobs[0].config.question_path
    name = f"{jobs[0].data.name} ({source})" if source else jobs[0].data.name
    return f"{name}, {len(questions)} questions" + f": {listed}" * detail


def _engine(config: RunConfig, gpus: int | None) -> str:
    engine = config.engine
    if config.stage == "judge":
        return "none (stage=judge)"
    if engine.kind == "openai":
        return f"openai at {display_host(engine.base_url)}"
    each = engine.tensor_parallel * engine.pipeline_parallel
    parts = [engine.kind]
    if gpus:
        parts.append(f"{gpus} GPUs, {each} for each engine")
    elif gpus == 0 and engine.kind == "vllm":
        parts.append("no GPU")
    if engine.replicas:
        parts.append(f"{engine.replicas} engines")
    return ", ".join(parts)


def _judge(job: Job) -> str:
    config, judge = job.config, job.config.judge
    if not job.judged:
        return "none"
    if job.grader.checker:
        return f"{job.grader.checker}, {job.grader.name}: no judge is called"
    if judge.kind == "local":
        where = "a server of this run's own"
    else:
        where = display_host(judge.base_url) if judge.base_url else "api.openai.com"
    samples = f", {judge.samples} samples" if judge.samples > 1 else ""
    mode = job.grader.name + (f" against {config.baseline}" if config.baseline else "")
    prompts = f", prompts {judge.prompts}" if job.grader.prompt_type else ""
    protocol = f", protocol {config.protocol}" if get_benchmark(job.data.name).official else ""
    return f"{judge.label} at {where}, {mode}{prompts}{protocol}{samples}"
