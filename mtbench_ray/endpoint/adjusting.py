"""Refused parameters: the same request is written in another way, at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

from mtbench_ray.endpoint.api_errors import Fault
from mtbench_ray.endpoint.completion import Call
from mtbench_ray.endpoint.reply import Reply
from mtbench_ray.endpoint.request_adapter import Dialect
from mtbench_ray.endpoint.sizes import read_window


class Adjusting:
    """One try of a call; a refused parameter is changed at once, and is no fault of the call.

    Args:
        dialect: What was learned of the service's parameters.
        warn: Called with a parameter's name and a line for the user; shows it once for each name.
    """

    def __init__(self, dialect: Dialect, warn: Callable[[str, str], None]) -> None:
        self._dialect = dialect
        self._warn = warn
        self._trial = asyncio.Lock()

    async def send(self, call: Call, send: Callable[[Call], Awaitable[Reply]]) -> Reply:
        """The reply to a call, however it had to be written.

        Args:
            send: Writes and sends a request.

        Raises:
            Fault: There is none, and no other way to write the request is left.
        """
        reason: Fault | None = None  # of a call that is tried without this and that
        async with AsyncExitStack() as trial:
            while True:
                try:
                    reply = await send(call)
                except Fault as fault:
                    if self._learn(fault, call) or self._is_stale(fault, call):
                        continue
                    if self._suspect(fault, call) and reason is None:
                        # One call at a time finds out what the service does not say.
                        reason = fault
                        await trial.enter_async_context(self._trial)
                        if self._is_stale(fault, call):
                            reason = None
                            await trial.aclose()
                            continue
                    if name := self._suspect(fault, call):
                        call.without.append(name)
                        continue
                    if call.without:
                        self._dialect.give_up()
                    raise reason or fault from None
                if call.without:
                    self._dialect.blame(call.without[-1], call.fields)
                    self.warn_of_changes()
                    call.without.clear()
                return reply

    def accepted(self, call: Call, reply: Reply) -> None:
        """A reply came: its request was written well."""
        self._dialect.accepted(call.fields)
        if reply.odd_finish:
            name, word = "finish_reason", reply.finish_reason
            self._dialect.learned[name] = f"{word} is unknown, its replies are taken for whole"
            self.warn_of_changes()

    def warn_of_changes(self) -> None:
        """One line for each parameter that the service made us change."""
        for name, note in self._dialect.learned.items():
            self._warn(f"{name}: {note}", f"the service made us change {name}: {note}")

    def _is_stale(self, fault: Fault, call: Call) -> bool:
        """Whether a refused call left before another one learned how to write it."""
        old = self._dialect.version != call.version
        return old and fault.code in (400, 422) and fault.status == "error"

    def _suspect(self, fault: Fault, call: Call) -> str | None:
        return self._dialect.suspect(fault, call.fields, call.without)

    def _learn(self, fault: Fault, call: Call) -> bool:
        """Whether a refusal says how the same request will pass, by the settings or by its size."""
        if self._dialect.learn(fault, call.fields):
            self.warn_of_changes()
            return True
        cap = call.cap
        if fault.size != "window" or not cap:
            return False
        said = read_window(fault.detail)
        room = self._dialect.learn_window(said.tokens, said.prompt, call.prompt_tokens)
        if room is None or room >= cap:
            return False
        call.room = room
        return True
