"""The parameters that a model takes: known by its family, or learned from its first refusal."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from mtbench_ray.config import EndpointConfig
from mtbench_ray.endpoint.api_errors import Fault
from mtbench_ray.endpoint.sizes import largest_cap
from mtbench_ray.schema import Message
from mtbench_ray.workspace.journal import well_formed

_OPTIONAL = ("seed", "top_k", "repetition_penalty", "top_p", "temperature")
"""May be left out where a service does not take them; the one that matters least first."""
_NO_LOGPROBS_AT = re.compile(r"https?://api\.anthropic\.com(?:[:/]|$)")
_OTHER = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}

_REASONING_FAMILY = re.compile(r"(?:^|/)(?:o[1-9]\d*(?:-|$)|gpt-5(?![\d.]|-chat))")
"""Take ``max_completion_tokens`` only, and no temperature but their own."""
_NEWER_NAME = re.compile(r"(?:^|/)gpt-5")
"""Take ``max_completion_tokens`` only."""

_NO_SUCH = re.compile(
    r"unsupported|not support|unrecogni[sz]ed|not recogni[sz]ed|unexpected|unknown|not permitted"
    r"|forbidden|not allowed|deprecated|removed|no longer|instead"
    r"|does(?: not|n't) (?:accept|take|support|allow)"
)
_BAD_VALUE = re.compile(
    r"invalid(?!_request)|not (?:a )?valid|not (?:available|enabled)|not both|cannot"
    r"|(?:is|are) fixed|\bonly\b|must be"
)
_RANGE = re.compile(
    r"positive|(?:greater|larger|more) than (?:0|zero)|above (?:0|zero)|> ?0(?![.]?[1-9])|between"
    r"|range|\(0"
)
_ONE_VALUE = re.compile(r"\bonly\b|must be (?:set to )?\d|deprecated")
_NEARLY_GREEDY = 0.01
"""Sent where a service takes no temperature of 0: its default instead would be far from that."""
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
_STREAM = re.compile(r"\bstream(?:ing|ed|s)?\b")
_LEAST_ROOM = 16
"""With less room for new tokens a request is not worth sending."""
_UNSURE = 1.25
"""An estimated prompt may be so many times longer in the service's own tokens."""
_TRIALS = 2

_WHERE = {
    frozenset({True}): " at temperature 0",
    frozenset({False}): " above temperature 0",
}


def why_no_logprobs(service: EndpointConfig) -> str:
    """Why a service is known to give no log-probabilities; empty where that is not known."""
    model: str = getattr(service, "model", "")
    if _NO_LOGPROBS_AT.match(service.base_url or "") or re.search(r"(?:^|/)claude-", model):
        return "Anthropic's API has none"
    if _REASONING_FAMILY.search(model):
        return "it is a reasoning model by its name"
    return ""


class Dialect:
    """How requests to one model are written. Every change is made once and kept in ``learned``.

    What is refused at temperature 0 may be taken above it, and the other way round: a field is left
    out only where it was refused.

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
        self.window: int | None = None
        """Tokens of prompt and reply, where the service named them."""
        self._per_estimate = _UNSURE  # the service's prompt tokens for each one estimated
        self._model = model
        self._given = dict(given or {})
        self._token_param = token_param or ("max_completion_tokens" if newer else "max_tokens")
        self._cap: int | None = None
        self._least_temperature = 0.0
        self._dropped: set[tuple[str, bool]] = set()
        """Field, and whether at temperature 0."""
        self._accepted: set[tuple[str, bool]] = set()
        self._trials = _TRIALS
        self._merge_system = False
        self._stream = False
        if _REASONING_FAMILY.search(model):
            self._dropped = {("temperature", True), ("temperature", False)}
            self.learned["temperature"] = "not sent: reasoning model by its name"

    def write(
        self,
        messages: Sequence[Message],
        max_tokens: int,
        temperature: float | None,
        extra: Mapping[str, Any],
        without: Collection[str] = (),
    ) -> dict[str, Any]:
        """Fields of a request, ``messages`` among them; lone surrogates are replaced.

        Args:
            max_tokens: 0 sends none.
            without: Fields to leave out of this request alone.
        """
        fields: dict[str, Any] = {
            "model": self._model,
            "messages": [
                {"role": m.role, "content": well_formed(m.content)} for m in self._arrange(messages)
            ],
            "stream": self._stream,
        }
        if self._stream:
            fields["stream_options"] = {"include_usage": True}
        if max_tokens:
            fields[self._token_param] = self.cap(max_tokens)
        if temperature is not None:
            fields["temperature"] = max(temperature, self._least_temperature)
        greedy = temperature is not None and temperature <= _NEARLY_GREEDY
        wanted = {
            name: value
            for name, value in (fields | dict(extra)).items()
            if (name, greedy) not in self._dropped and name not in without
        }
        return {name: value for name, value in (wanted | self._given).items() if value is not None}

    def cap(self, max_tokens: int) -> int:
        """The cap that is really sent where ``max_tokens`` is wanted; 0 where none is."""
        given = self._given.get(self._token_param)
        if isinstance(given, int):
            return given
        return max_tokens if self._cap is None else min(max_tokens, self._cap)

    def room(self, prompt_tokens: int) -> int | None:
        """New tokens that the window leaves beside a prompt; None where it is not known.

        Args:
            prompt_tokens: As estimated.
        """
        if self.window is None:
            return None
        room = self.window - round(prompt_tokens * self._per_estimate)
        return room if room >= _LEAST_ROOM else None

    def learn_window(self, window: int | None, prompt: int | None, estimated: int) -> int | None:
        """A refusal of prompt and cap together.

        Args:
            window: Tokens of the window, as the service names them.
            prompt: Tokens of the prompt, as the service counts them.
            estimated: Tokens of the prompt as estimated.

        Returns:
            The cap that fits beside this prompt, None where none does or the window is unknown.
        """
        self.window = window or self.window
        if self.window is None:
            return None
        if prompt is not None and window is not None:
            self._per_estimate = max(prompt / max(estimated, 1) * 1.1, 0.1)
            room = self.window - prompt
        else:
            room = self.window - round(estimated * self._per_estimate)
        return room if room >= _LEAST_ROOM else None

    def accepted(self, sent: Mapping[str, Any]) -> None:
        """Remember that a request with these fields got a reply."""
        for greedy in self._kinds(sent):
            self._accepted |= {(name, greedy) for name in _OPTIONAL if name in sent}

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
        if fault.status != "error" or fault.stop or fault.code not in (400, 422, 500):
            return False
        text = fault.detail.lower()
        # Some servers answer 500 where their chat template raises.
        names_system = _SURELY_SYSTEM if fault.code == 500 else _SYSTEM
        if sent["messages"][0]["role"] == "system" and names_system.search(text):
            return self._change("system", "merged into the first user message", _merge_system=True)
        if fault.code == 500:
            return False
        if sent.get("stream") is False and "stream" not in self._given and _STREAM.search(text):
            note = "true: the service answers in streams only"
            return self._change("stream", note, _stream=True)
        return self._learn_cap(fault, text, sent) or self._learn_field(fault, text, sent)

    def _learn_cap(self, fault: Fault, text: str, sent: Mapping[str, Any]) -> bool:
        name, cap = self._token_param, sent.get(self._token_param)
        if not isinstance(cap, int) or name in self._given:
            return False
        if fault.size == "cap" and (largest := largest_cap(text, cap)):
            return self._change(name, f"at most {largest}", _cap=largest)
        other = _OTHER.get(name, "max_tokens")
        about = name in text or fault.param == name
        if about and "token_param" not in self.learned and (_NO_SUCH.search(text) or other in text):
            return self._change("token_param", other, _token_param=other)
        return False

    def _learn_field(self, fault: Fault, text: str, sent: Mapping[str, Any]) -> bool:
        name = self._named(fault, text, sent)
        if name is None:
            return False
        nearly = name == "temperature" and sent[name] == 0 and not _ONE_VALUE.search(text)
        if nearly and _RANGE.search(text):
            note = f"at least {_NEARLY_GREEDY}"
            return self._change(name, note, _least_temperature=_NEARLY_GREEDY)
        return self._drop(name, sent)

    def _named(self, fault: Fault, text: str, sent: Mapping[str, Any]) -> str | None:
        """The optional field that a refusal is about; of several the one that matters least.

        What the user gave in so many words (``extra_body``) is never left out.
        """
        own = [name for name in _OPTIONAL if name in sent and name not in self._given]
        if fault.param in own:
            return fault.param
        surely = any(one.search(text) for one in (_NO_SUCH, _BAD_VALUE, _RANGE))
        kinds = self._kinds(sent)
        for name in own:
            spelled = name.replace("_", "[_ ]")
            found = re.search(rf"(?<![a-z0-9_]){spelled}(?![a-z0-9_])", text)
            # Of one that was taken before, a text may only quote a prompt that speaks of it.
            new = not any((name, greedy) in self._accepted for greedy in kinds)
            if found and (surely or new):
                return name
        return None

    def suspect(
        self, fault: Fault, sent: Mapping[str, Any], without: Collection[str]
    ) -> str | None:
        """The next field to leave out of a request that was refused without a reason.

        They are left out one after the other, in this request alone; the last one before a reply
        comes was the reason, see :meth:`blame`. Refusals cost nothing.

        Args:
            without: Fields that are left out already.
        """
        plain = fault.code in (400, 422) and fault.status == "error" and not fault.stop
        if not plain or fault.size or fault.param or self._trials <= 0:
            return None
        kinds = self._kinds(sent)
        for name in _OPTIONAL:
            new = not any((name, greedy) in self._accepted for greedy in kinds)
            if new and name in sent and name not in self._given and name not in without:
                return name
        return None

    def give_up(self) -> None:
        """A request was refused whatever was left out of it."""
        self._trials -= 1

    def blame(self, name: str, sent: Mapping[str, Any]) -> None:
        """A request passed once this field was left out."""
        self._drop(name, sent)

    def _drop(self, name: str, sent: Mapping[str, Any]) -> bool:
        self._dropped |= {(name, greedy) for greedy in self._kinds(sent)}
        where = frozenset(greedy for field, greedy in self._dropped if field == name)
        return self._change(name, f"not sent{_WHERE.get(where, '')}: refused")

    def _kinds(self, sent: Mapping[str, Any]) -> tuple[bool, ...]:
        """Whether a request was at temperature 0; both where it was sent without any."""
        temperature = sent.get("temperature")
        if not isinstance(temperature, (int, float)):
            return (True, False)
        return (temperature <= _NEARLY_GREEDY,)

    def _change(self, name: str, note: str, **state: Any) -> bool:
        if self.learned.get(name) == note:
            return False
        self.learned[name] = note
        vars(self).update(state)
        self.version += 1
        return True
