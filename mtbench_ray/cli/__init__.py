"""The command line: verbs, Hydra, and words for what was mistyped.

In: what was typed.

Out: settings for :func:`mtbench_ray.run.main.run_jobs`, and an exit code.

>>> from mtbench_ray.cli.main import main
>>> main(["--version"]) == 0  # doctest: +SKIP
True
"""
