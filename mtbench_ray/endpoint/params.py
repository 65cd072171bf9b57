"""The parameters that a model takes: known by its family, or learned from its first refusal."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from mtbench_ray.endpoint.faults import Fault
from mtbench_ray.journal import well_formed
from mtbench_ray.schema import Message

_SAMPLING = ("seed", "top_p", "temperature")
_OTHER = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}

_REASONING_FAMILY = re.compile(r"(?:^|/)(?:o[1-9]\d*(?:-|$)|gpt-5(?![\d.]|-chat))")
"""Take ``max_completion_tokens`` only, and no temperature but their own."""
_NEWER_NAME = re.compile(r"(?:^|/)gpt-5")
"""Take ``max_completion_tokens`` only."""

_UNWANTED = re.compile(
    r"unsupported|not support|unrecogni[sz]ed|not recogni[sz]ed|unexpected|unknown|not permitted"
    r"|forbidden|not allowed|not (?:available|enabled)|only (?:the default|1\b)|deprecated"
    r"|does(?: not|n't) (?:accept|take|support)|instead|(?:must|only) be (?:set to )?1\b"
    r"|not both|cannot (?:both|be used|be set|be specified)|(?:is|are) fixed"
)
_POSITIVE = re.compile(
    r"strictly positive|(?:greater|larger|more) than 0|above 0|> ?0(?![.]?[1-9])"
)
_NEARLY_GREEDY = 0.01
"""Sent where a service takes no temperature of 0: its default instead would be far from that."""
_CAP = re.compile(
    r"(?:at most|less than or equal to|<=|maximum (?:value )?(?:of|is)|range.{0,40}\[\s*\d+\s*,"
    r"|\d\s*>)"
    r"\D{0,20}(\d+)",
    re.I,
)
_SYSTEM = re.compile(
    r"system.{0,40}(?:role|message|prompt|instruction)|role.{0,40}system"
    r"|system.{0,20}not (?:supported|allowed)|roles must alternate|developer instruction"
    r"|only user and assistant"
)
_SURELY_SYSTEM = re.compile(
    r"system['\"`]? role|role['\"`]?\W{1,4}system|roles must alternate|only user and assistant"
    r"|system (?:messages?|prompts?) (?:is|are) not supported|not support system"
)
"""For a status that any breakdown may have: "the system did not get your message" is no refusal."""


class Dialect:
    """How requests to one model are written. Every change is made once and kept in ``learned``.

    Args:
        model: Name sent to the API.
        token_param: Overrides the table of families.
        given: Fields that go out as they are, whatever else is wanted; None leaves one out.
    """

    def __init__(
        self, model: str, token_param: str | None, given: Mapping[str, Any] | None = None
    ) -> None:
        newer = _NEWER_NAME.search(model) or _REASONING_FAMILY.search(model)
        self.learned: dict[str, str] = {}
        self.version = 0
        self._model = model
        self._given = dict(given or {})
        self._token_param = token_param or ("max_completion_tokens" if newer else "max_tokens")
        self._cap: int | None = None
        self._least_temperature = 0.0
        self._dropped: frozenset[str] = frozenset()
        self._merge_system = False
        if _REASONING_FAMILY.search(model):
            self._dropped = frozenset({"temperature"})
            self.learned["temperature"] = "not sent: reasoning model by its name"

    def write(
        self,
        messages: Sequence[Message],
        max_tokens: int,
        temperature: float | None,
        extra: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Fields of a request, ``messages`` among them; lone surrogates are replaced."""
        fields: dict[str, Any] = {
            "model": self._model,
            "messages": [
                {"role": m.role, "content": well_formed(m.content)} for m in self._arrange(messages)
            ],
            self._token_param: self.cap(max_tokens),
        }
        if temperature is not None:
            fields["temperature"] = max(temperature, self._least_temperature)
        wanted = {k: v for k, v in (fields | dict(extra)).items() if k not in self._dropped}
        return {k: v for k, v in (wanted | self._given).items() if v is not None}

    def cap(self, max_tokens: int) -> int:
        """The cap that is really sent where ``max_tokens`` is wanted."""
        given = self._given.get(self._token_param)
        if isinstance(given, int):
            return given
        return max_tokens if self._cap is None else min(max_tokens, self._cap)

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
        if fault.status != "error" or fault.code not in (400, 422, 500):
            return False
        words = fault.detail.lower()
        # Some servers answer 500 where their chat template raises.
        names_system = _SURELY_SYSTEM if fault.code == 500 else _SYSTEM
        if sent["messages"][0]["role"] == "system" and names_system.search(words):
            return self._change("system", "merged into the first user message", _merge_system=True)
        if fault.code == 500:
            return False
        name = self._token_param
        if (cap := _CAP.search(words)) and "max" in words and 0 < int(cap[1]) < sent.get(name, 0):
            return self._change(name, f"at most {cap[1]}", _cap=int(cap[1]))
        if (refused := self._refused(words, sent)) is not None:
            if refused == "temperature" and sent[refused] == 0 and _POSITIVE.search(words):
                note = f"at least {_NEARLY_GREEDY}"
                return self._change(refused, note, _least_temperature=_NEARLY_GREEDY)
            return self._change(refused, "not sent: refused", _dropped=self._dropped | {refused})
        if name in words and _UNWANTED.search(words) and "token_param" not in self.learned:
            other = _OTHER.get(name, "max_tokens")
            return self._change("token_param", other, _token_param=other)
        return False

    def _refused(self, words: str, sent: Mapping[str, Any]) -> str | None:
        """The sampling field that a refusal names; of two that exclude each other the lesser one.

        What the user gave in so many words (``extra_body``) is never left out.
        """
        if not (_UNWANTED.search(words) or _POSITIVE.search(words)):
            return None
        named = (n for n in _SAMPLING if re.search(rf"\b{n}\b", words))
        return next((n for n in named if n in sent and n not in self._given), None)

    def _change(self, name: str, note: str, **state: Any) -> bool:
        if self.learned.get(name) == note:
            return False
        self.learned[name] = note
        vars(self).update(state)
        self.version += 1
        return True
