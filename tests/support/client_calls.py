"""Calls of the client to the stub service."""

import asyncio
import time

from mtbench_ray.config import EndpointConfig
from mtbench_ray.endpoint.client import EndpointClient
from mtbench_ray.endpoint.rate_limit import Limiter
from mtbench_ray.schema import Message

KEY = "sk-test-0123456789abcdef"


BACKOFF_S = 0.01


def ask(text, *more):
    return [Message("system", "Be fair."), Message("user", text), *more]


def complete_all(stub, prompts, model="some/model", max_tokens=50, extra=None, **settings):
    """Completions of all prompts at once, the client, and seconds taken."""
    config = EndpointConfig(
        base_url=stub.url,
        **{"concurrency": 64, "timeout_s": 5.0, "retry_wait_s": BACKOFF_S} | settings,
    )

    async def run():
        limiter = Limiter(None, None, config.concurrency, config.adaptive)
        client = EndpointClient(config, model, key=KEY, limiter=limiter, label="judge x")
        begin = time.monotonic()
        try:
            done = await asyncio.gather(
                *(
                    client.complete(p, max_tokens=max_tokens, temperature=0.0, extra=extra)
                    for p in prompts
                ),
                return_exceptions=True,
            )
        finally:
            await client.close()
        return done, client, time.monotonic() - begin

    return asyncio.run(run())


def complete(stub, **settings):
    (done,), _, seconds = complete_all(stub, [ask("How good is it?")], **settings)
    if isinstance(done, BaseException):
        raise done
    return done, seconds


PAGE = "<html>403 Forbidden: blocked by rule 9</html>"
