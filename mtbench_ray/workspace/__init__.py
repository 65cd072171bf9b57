"""The folder that a run leaves: append-only rows, snapshots of the questions, run records.

In: rows, texts and records.

Out: files that survive a kill at any moment, and mappings of the rows that count.

>>> from mtbench_ray.workspace.filenames import safe_names
>>> safe_names(["qwen2.5"])["qwen2.5"]
'qwen2.5'
"""
