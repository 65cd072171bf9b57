"""How answers are graded: what is wanted, the judge prompt, the call, the verdict, the score.

In: questions, answers, a judge and its prompts.

Out: requests, then verdicts and scores. Graders are pure; only ``stage`` and ``judge_call`` call.

>>> from mtbench_ray.judges.parse import parse_rating
>>> parse_rating("Clear and right. Rating: [[8]]").value
8.0
"""
