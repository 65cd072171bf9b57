"""The stream of answers: shards of conversations through engine actors, by Ray Data.

In: pending conversations of all models.

Out: turn rows as they come; what an engine that died took with it is asked again.

>>> from mtbench_ray.generate.shards import make_shards
>>> make_shards([], replicas=2, run_id="r")
[]
"""
