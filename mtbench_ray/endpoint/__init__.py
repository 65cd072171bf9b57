"""A service that speaks the OpenAI chat API, and nothing about judging.

In: messages and settings.

Out: a :class:`~mtbench_ray.endpoint.client.Completion` for each call, or why there is none;
    limits kept.

>>> from mtbench_ray.endpoint.tokens import estimate_tokens
>>> estimate_tokens("four words are here") > 0
True
"""
