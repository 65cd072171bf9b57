"""Plan minus done: what a run wants, what the workspace holds, what is pending and what it costs.

In: settings of all jobs and an open workspace.

Out: jobs, evaluations with their ids, pending turns and judge calls, estimates.

>>> from mtbench_ray.planning.evaluations import named
>>> named("m", {"sampling.max_tokens": 7})
'm (max_tokens=7)'
"""
