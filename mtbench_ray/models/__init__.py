"""What a model is before anything runs it: found, fingerprinted, and its conversations rendered.

In: a name, a folder or a hub id, and a conversation.

Out: a fingerprint, chat messages, sampling of a turn, an answer split from its thinking.

>>> from mtbench_ray.models.discovery import step_of
>>> step_of("run_a/checkpoint-1500")
1500
"""
