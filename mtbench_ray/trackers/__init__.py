"""Scores in an experiment tracker, beside the loss of the training run that made the checkpoints.

In: the evaluations of a round of work, and ``tracker.*``.

Out: a point for each evaluation at its training step, a table of its verdicts, the curve as a
picture; and ``trackers.jsonl`` in the workspace, which says what was sent.

A round calls :func:`mtbench_ray.trackers.send.send`. What is to be sent is made by ``contents``,
what was sent already is known to ``ledger``. The tracker's own package runs in a process of its own
(``process``, ``child``), so that whatever it does there, the run goes on.

>>> from mtbench_ray.trackers.base import segment
>>> segment("Qwen/Qwen2.5-32B: judge")
'Qwen_Qwen2.5-32B_judge'
"""
