"""Requests through a judge stage on the stub service."""

from verdicts import prompt_file, view

from mtbench_ray.benchmarks import grader_of
from mtbench_ray.config import JudgeConfig
from mtbench_ray.judges.base import Reading
from mtbench_ray.judges.parse import parse_rating
from mtbench_ray.judges.prompts import load_prompts
from mtbench_ray.judges.stage import JudgeStage
from mtbench_ray.schema import Message, Request

KEY = "sk-test-0123456789abcdef"


def read(request, reply):
    found = parse_rating(reply.text, reply.finish_reason)
    if found.value is None:
        return Reading(None, None, "unparsed", found.reason)
    return Reading(found.label, float(found.value), "ok")


def verdict_pattern(mode, scale=(1, 10)):
    prompts = load_prompts("own", prompt_file(scale=scale))
    return grader_of("mt_bench", mode).pattern(view(mode, prompts=prompts))


def request(number, text=None, **fields):
    user = text if text is not None else f"Rate answer {number} please."
    given = {
        "judgment_id": f"j{number}",
        "match_id": f"m{number}",
        "mode": "single",
        "benchmark": "b",
        "question_id": number,
        "category": "logic",
        "turn": 1,
        "model": "candidate",
        "judge": "judge-label",
        "judge_prompt": "plain",
        "messages": (Message("system", "Be fair."), Message("user", user)),
        "prompt_hash": "p",
    }
    return Request(**given | fields)


def stage(stub, rows, budget=None, **settings):
    """A stage on the stub, not begun."""
    passed = {name: settings.pop(name) for name in ("shorten", "pattern") if name in settings}
    defaults = {
        "model": "some/judge",
        "concurrency": 32,
        "timeout_s": 20.0,
        "max_tokens": 100,
        "retry_wait_s": 0.01,
    }
    config = JudgeConfig(base_url=stub.url, **defaults | settings)
    return JudgeStage(config, key=KEY, read=read, emit=rows.append, budget=budget, **passed)


def judge_all(stub, requests, budget=None, timeout=20.0, **settings):
    """Rows by judgment id, and the stage after it ended."""
    rows = []
    judge = stage(stub, rows, budget, **settings)
    judge.begin()
    for item in requests:
        assert judge.submit(item)
    judge.drain(timeout)
    judge.stop(0.0)
    assert len({row.judgment_id for row in rows}) == len(rows)
    return {row.judgment_id: row for row in rows}, judge


def judge_one(stub, **settings):
    rows, _ = judge_all(stub, [request(1)], **settings)
    return rows["j1"]


PRICES = {"price_prompt": 10.0, "price_completion": 30.0, "max_retries": 2, "timeout_s": 0.2}
