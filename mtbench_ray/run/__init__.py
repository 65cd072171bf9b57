"""One invocation: settings checked, workspace held, pending work done, results written.

In: the settings of all jobs.

Out: an exit code, and everything in the workspace.

>>> from mtbench_ray.run.main import check_shared  # which settings belong to the whole run
"""
