"""What the program needs of a machine: threads that nobody loses, short socket folders, secrets
out of texts, debug output.

In: functions to run, texts to write.

Out: the same, watched and clean; knows nothing of the rest of the package.

>>> from mtbench_ray.system.redact import is_secret_name
>>> is_secret_name("hf_token"), is_secret_name("max_tokens")
(True, False)
"""
