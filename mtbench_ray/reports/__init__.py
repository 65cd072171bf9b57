"""Tables, curves, comparisons and the summary, from a workspace alone.

In: evaluations and their verdicts.

Out: ``summary.json``, ``scores.parquet``, tables and pictures.

>>> from mtbench_ray.reports.tables import number
>>> number(None), number(6.5)
('n/a', '6.50')
"""
