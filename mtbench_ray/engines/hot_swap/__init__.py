"""Another checkpoint's weights in a running engine, in place and proven; ``engine.hot_swap=off``
does without.

In: an engine and the folder of the next checkpoint.

Out: the same engine with the new weights and the proof, or why a fresh one is needed.

>>> from mtbench_ray.engines.hot_swap.swap import eligible  # why a checkpoint cannot be swapped in
"""
