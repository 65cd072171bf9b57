"""Statistics of scores. NumPy only.

Rows of one question are not independent (its two turns, repeats of its answers), so the question
is the unit of resampling everywhere here. Functions do not raise on degenerate input: what cannot
be computed is None.

In: values with the cluster (question) of each. Out: means with intervals, differences, strengths.

>>> from mtbench_ray.stats.means import clustered_mean
>>> clustered_mean([7, 9, 8], ["q1", "q1", "q2"]).mean
8.0
"""
