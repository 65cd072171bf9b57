"""``plan``: what a run would do, use and cost, as it is shown before anything is spent."""

from __future__ import annotations

from collections.abc import Sequence

from mtbench_ray.benchmarks import get_benchmark
from mtbench_ray.engines.vllm.arguments import gpu_sequences
from mtbench_ray.models.chat_template import context_window, load_template
from mtbench_ray.models.checkpoint import locate, read_json
from mtbench_ray.models.generation_time import CARD, generation_minutes
from mtbench_ray.models.layout import load_layout
from mtbench_ray.models.memory_need import describe, need
from mtbench_ray.models.messages import build_messages
from mtbench_ray.models.window import window_needed
from mtbench_ray.planning.estimate import ANSWER_TOKENS, Estimate, estimates, imagine
from mtbench_ray.planning.jobs import Job
from mtbench_ray.planning.plan import pending_turns, render, view_of
from mtbench_ray.reports.tables import grid, label, number
from mtbench_ray.schema import Evaluation, Message
from mtbench_ray.workspace.workspace import Workspace


def print_plan(
    jobs: Sequence[Job], rows: Sequence[Evaluation], workspace: Workspace, *, show: int
) -> None:
    """Print the plan of a run, and ``show`` rendered prompts."""
    found = estimates(jobs, rows, workspace)
    total = Estimate("all", "")
    for item in found:
        for name in ("turns", "calls", "done", "planned", "prompt_tokens", "output_tokens"):
            setattr(total, name, getattr(total, name) + getattr(item, name))
        for name in ("dollars", "batch_dollars", "minutes"):
            if getattr(item, name) is not None:
                setattr(total, name, (getattr(total, name) or 0.0) + getattr(item, name))
    headers = ["model", "judge", "turns to answer", "judge calls", "done", "prompt tokens",
               "completion tokens", "dollars", "minutes of judging"]  # fmt: skip
    lines = [
        [
            label(item.model), label(item.judge), str(item.turns), str(item.calls),
            f"{item.done}/{item.planned}", f"{item.prompt_tokens:,}", f"{item.output_tokens:,}",
            number(item.dollars), number(item.minutes, 1),
        ]
        for item in ([*found, total] if len(found) > 1 else found)
    ]  # fmt: skip
    print(grid(headers, lines))
    expected = " or ".join(map(str, sorted({_expected_tokens(job) for job in jobs})))
    print(
        f"\ntokens are estimates; an answer that is not there yet counts {expected} tokens."
        "\nminutes follow from the judge's limits alone. Nothing has been started or spent."
    )
    if select := jobs[0].config.select:
        print(f"judge calls are those without select={select}, which stops once it is decided.")
    if total.dollars and total.batch_dollars is not None:
        print(
            f"dollars are those of single calls, {number(total.dollars)} in all; with"
            f" judge.batch=true (replies within a day): {number(total.batch_dollars)}"
        )
    remarks = [
        f"{label(job.answers.model)} cannot be run: {job.error}"
        if job.error
        else "\n".join(f"{label(job.answers.model)}: {note}" for note in job.notes)
        for job in jobs
    ]
    remarks += [
        f"{label(job.answers.model)}: {said}" for job in jobs if (said := _on_gpus(job, workspace))
    ]
    # Once where several judges rate the same model.
    print(*dict.fromkeys(filter(None, remarks)), sep="\n", end="\n" * any(remarks))
    if show:
        _show(jobs, rows, workspace, show)


def _on_gpus(job: Job, workspace: Workspace) -> str:
    """What an engine needs of its cards; empty where it has none, or where it is unknown."""
    model, engine, sampling = job.config.model, job.config.engine, job.config.sampling
    if job.error or engine.kind != "vllm" or not job.questions or job.config.stage == "judge":
        return ""
    folder = locate(model).folder
    config = read_json(folder / "config.json")
    have = context_window(config)
    wanted = engine.max_model_len or window_needed(job.questions, sampling, model)
    window = min(wanted, have or wanted)
    questions = {question.question_id: question for question in job.questions}
    pending = pending_turns(job.answers, questions, workspace.turns)
    at_once = engine.max_num_seqs or gpu_sequences(len(pending))
    found = need(
        config, load_layout(folder), window=window, at_once=at_once,
        quantization=engine.quantization,
        cards=engine.tensor_parallel * engine.pipeline_parallel,
    )  # fmt: skip
    if found is None:
        return ""
    asked = {unit.answer_id: unit.question_id for unit in job.answers.units}
    expected = _expected_tokens(job)
    cap = sampling.cap or expected
    minutes = generation_minutes(
        found, window=window, at_once=at_once, conversations=len(pending),
        turns=sum(len(questions[asked[key]].turns) - len(good) for key, good in pending.items()),
        tokens=min(expected, cap), cap=cap,
    )  # fmt: skip
    said = describe(found, window=window, at_once=at_once, share=engine.gpu_memory_utilization)
    if not pending:
        return said
    cards = f"{found.cards} {CARD}s" if found.cards > 1 else f"one {CARD}"
    return f"{said}; answers in about {max(minutes, 0.1):.1f} minutes on {cards}"


def _expected_tokens(job: Job) -> int:
    return get_benchmark(job.data.name).answer_tokens or ANSWER_TOKENS


def _show(
    jobs: Sequence[Job], rows: Sequence[Evaluation], workspace: Workspace, count: int
) -> None:
    job, row = jobs[0], rows[0]
    model, engine = job.config.model, job.config.engine
    for question in job.questions[:count]:
        print(f"\n--- answer prompt, question {question.question_id}, turn 1 ---")
        messages = build_messages(model, question, ())
        if engine.kind == "vllm":
            template = load_template(model, trust_remote_code=engine.trust_remote_code)
            print(template.text(template.render(messages).ids))
        else:
            _print_messages(messages)
    if row.judge:
        turns = dict(workspace.turns)
        view = view_of(row, job.data, turns)
        for slot in view.grader.wanted(view)[:count]:
            imagine(slot, turns, dict.fromkeys(slot.answer_ids, 16), row)
            request = render(view, slot)
            if request.want == "check":
                print(f"\n--- question {slot.question_id}: {row.judge}, no judge is called ---")
                continue
            print(f"\n--- judge prompt {request.judge_prompt}, question {slot.question_id} ---")
            _print_messages(request.messages)


def _print_messages(messages: Sequence[Message]) -> None:
    for message in messages:
        print(f"[{message.role}]\n{message.content}")
