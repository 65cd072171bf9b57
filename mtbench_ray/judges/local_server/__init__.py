"""A judge on one's own GPUs: vLLM servers that the run starts, watches and ends.

In: the settings of a judge.

Out: addresses of servers, and news when one dies.

>>> from mtbench_ray.judges.local_server.server import local_servers  # needs Ray when called
"""
