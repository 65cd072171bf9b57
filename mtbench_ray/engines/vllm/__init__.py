"""One vLLM engine in this process: its arguments, its start, its core.

In: the settings of a model and an engine.

Out: an :class:`~mtbench_ray.engines.base.Engine`.

>>> from mtbench_ray.engines.vllm.arguments import set_threads  # needs no vLLM to be imported
"""
