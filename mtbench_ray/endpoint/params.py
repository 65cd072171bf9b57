"""The parameters that a model takes: known by its family, or learned from its first refusal."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from mtbench_ray.endpoint.faults import Fault
from mtbench_ray.journal import well_formed
from mtbench_ray.schema import Message

_OTHER = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}

_REASONING_FAMILY = re.compile(r"(?:^|/)(?:o[1-9]\d*(?:-|$)|gpt-5(?![\d.]|-chat))")
"""Take ``max_completion_tokens`` only, and no temperature but their own."""
_NEWER_NAME = re.compile(r"(?:^|/)gpt-5")
"""Take ``max_completion_tokens`` only."""

_UNWANTED = re.compile(
    r"unsupported|not support|unrecogni[sz]ed|unexpected|unknown|not permitted|forbidden"
    r"|not allowed|only (?:the default|1\b)|deprecated|does not (?:accept|take)|instead"
    r"|must be 1\b",
    re.I,
)
_CAP = re.compile(
    r"(?:at most|less than or equal to|<=|maximum (?:value )?(?:of|is)|range.{0,40}\[\s*\d+\s*,)"
    r"\D{0,20}(\d+)",
    re.I,
)
_SYSTEM = re.compile(
    r"system.{0,40}(?:role|message|prompt|instruction)|role.{0,40}system"
    r"|system.{0,20}not (?:supported|allowed)|roles must alternate",
    re.I,
)


class Dialect:
    """How requests to one model are written. Every change is made once and kept in ``learned``.

    Args:
        model: Name sent to the API.
        token_param: Overrides the table of families.
    """

    def __init__(self, model: str, token_param: str | None) -> None:
        newer = _NEWER_NAME.search(model) or _REASONING_FAMILY.search(model)
        self.learned: dict[str, str] = {}
        self.version = 0
        self._model = model
        self._token_param = token_param or ("max_completion_tokens" if newer else "max_tokens")
        self._cap: int | None = None
        self._temperature = not _REASONING_FAMILY.search(model)
        self._merge_system = False
        if not self._temperature:
            self.learned["temperature"] = "not sent: reasoning model by its name"

    def write(
        self,
        messages: Sequence[Message],
        max_tokens: int,
        temperature: float | None,
        extra: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Fields of a request, ``messages`` among them; lone surrogates are replaced."""
        cap = max_tokens if self._cap is None else min(max_tokens, self._cap)
        fields: dict[str, Any] = {
            "model": self._model,
            "messages": [
                {"role": m.role, "content": well_formed(m.content)} for m in self._arrange(messages)
            ],
            self._token_param: cap,
        }
        if temperature is not None and self._temperature:
            fields["temperature"] = temperature
        return fields | dict(extra)

    def _arrange(self, messages: Sequence[Message]) -> Sequence[Message]:
        if not (self._merge_system and len(messages) > 1 and messages[0].role == "system"):
            return messages
        first = Message(messages[1].role, f"{messages[0].content}\n\n{messages[1].content}")
        return [first, *messages[2:]]

    def learn(self, fault: Fault, sent: Mapping[str, Any]) -> bool:
        """Change what the service refused, if the refusal names something that can be changed.

        Args:
            sent: The fields of the refused request.

        Returns:
            Whether the next request will differ.
        """
        if fault.status != "error":
            return False
        words = fault.detail
        # Some servers answer 500 where their chat template raises.
        if sent["messages"][0]["role"] == "system" and _SYSTEM.search(words):
            return self._change("system", "merged into the first user message", _merge_system=True)
        if fault.code not in (400, 422):
            return False
        name = self._token_param
        if (cap := _CAP.search(words)) and "max" in words and 0 < int(cap[1]) < sent.get(name, 0):
            return self._change(name, f"at most {cap[1]}", _cap=int(cap[1]))
        if "temperature" in words and "temperature" in sent and _UNWANTED.search(words):
            return self._change("temperature", "not sent: refused", _temperature=False)
        if name in words and _UNWANTED.search(words) and "token_param" not in self.learned:
            other = _OTHER.get(name, "max_tokens")
            return self._change("token_param", other, _token_param=other)
        return False

    def _change(self, name: str, note: str, **state: Any) -> bool:
        if self.learned.get(name) == note:
            return False
        self.learned[name] = note
        vars(self).update(state)
        self.version += 1
        return True
