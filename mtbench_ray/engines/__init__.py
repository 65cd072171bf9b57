"""What answers: vLLM, a running server, or the fake of the tests, behind one protocol (``base``).

In: a model's settings, then messages and the sampling of a turn.

Out: a :class:`~mtbench_ray.engines.base.Generation` for each turn.

>>> from mtbench_ray.engines.cpu import thread_share
>>> thread_share(8, 2)
4
"""
