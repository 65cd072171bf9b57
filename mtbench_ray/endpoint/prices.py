"""What a service takes for its tokens, where the user does not state it: the list of genai-prices.

The list is data of that package and asks nobody; a newer release has newer prices.
"""

from __future__ import annotations

from functools import lru_cache

from mtbench_ray.endpoint.keys import is_loopback

_TOKENS = 1000
"""Priced, so few that no tier for long prompts is meant."""


@lru_cache(maxsize=64)
def listed_prices(base_url: str, model: str) -> tuple[float, float, float] | None:
    """Dollars per million prompt, completion and cached prompt tokens of a model at an address.

    None where the list does not know the address or the model there: the same name elsewhere is
    another price.
    """
    if is_loopback(base_url):
        return None
    from genai_prices import Usage, calc_price

    usage = Usage(input_tokens=_TOKENS, output_tokens=_TOKENS)
    again = Usage(input_tokens=_TOKENS, cache_read_tokens=_TOKENS, output_tokens=_TOKENS)
    try:
        price = calc_price(usage, model_ref=model, provider_api_url=base_url)
        cached = calc_price(again, model_ref=model, provider_api_url=base_url)
    except LookupError:
        return None
    prices = (price.input_price, price.output_price, cached.input_price)
    prompt, completion, read = (float(one) * 1e6 / _TOKENS for one in prices)
    return prompt, completion, read
