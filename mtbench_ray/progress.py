"""What the driver shows while a run goes on.

On a terminal one line is rewritten in place; elsewhere a plain line comes now and then, so that a
log stays readable. Everything goes to standard error: standard output is the result's.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.text import Text

from mtbench_ray.plan import Setting
from mtbench_ray.schema import ANSWERED, EngineEvent, Evaluation, Judgment, Turn
from mtbench_ray.store import Workspace

PLAIN_EVERY_S = 15.0
"""Seconds between plain lines."""


class Progress:
    """Counts, rate, time left and score so far of one run."""

    def __init__(
        self,
        evaluations: Sequence[Evaluation],
        settings: Sequence[Setting],
        workspace: Workspace,
        *,
        quiet: bool,
    ) -> None:
        self._turns_wanted = _wanted_turns(evaluations, workspace)
        self._turns_done = sum(
            key in workspace.turns and workspace.turns[key].status in ANSWERED
            for key in self._turns_wanted
        )
        self._wanted = sum(
            len(what.mode.slots(what.evaluation, what.questions)) for what in settings
        )
        self._judged = 0
        self._failed = 0
        self._sum = 0.0
        self._scored = 0
        self._tokens = 0
        self._cost = 0.0
        self._began = time.monotonic()
        self._shown = 0.0
        self._done_before = self._turns_done
        self._console = Console(stderr=True, quiet=quiet, soft_wrap=True)
        self._live: Live | None = None

    def __enter__(self) -> Progress:
        if self._console.is_terminal and not self._console.quiet:
            self._live = Live(console=self._console, refresh_per_second=4, transient=True)
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()
        self._console.print(self._line())

    def turn(self, row: Turn) -> None:
        """Count a turn."""
        if row.status in ANSWERED:
            self._turns_done += 1
            self._tokens += row.output_tokens
        else:
            self._failed += 1

    def judgment(self, row: Judgment) -> None:
        """Count a judgment."""
        self._judged += 1
        self._cost += row.cost_usd or 0.0
        if row.value is not None:
            self._scored += 1
            self._sum += row.value
        else:
            self._failed += 1

    def engine(self, event: EngineEvent) -> None:
        """Say what an engine did."""
        detail = f": {event.detail}" if event.detail else ""
        self.message(f"engine {event.kind} {event.model} ({event.seconds:.1f} s){detail}")

    def message(self, text: str) -> None:
        """A line that stays."""
        self._console.print(Text(text))

    def tick(self) -> None:
        """Refresh; a plain line only now and then."""
        if self._live is not None:
            self._live.update(Text(self._line()))
        elif time.monotonic() - self._shown > PLAIN_EVERY_S:
            self._shown = time.monotonic()
            self._console.print(Text(self._line()))

    def _line(self) -> str:
        passed = time.monotonic() - self._began
        parts = [
            f"{passed:5.0f} s",
            f"turns {self._turns_done}/{len(self._turns_wanted)}",
        ]
        if self._tokens:
            parts.append(f"{self._tokens / max(passed, 1e-9):.0f} tok/s")
        if self._wanted:
            parts.append(f"judged {self._judged}/{self._wanted}")
        if self._failed:
            parts.append(f"failed {self._failed}")
        if self._scored:
            parts.append(f"mean so far {self._sum / self._scored:.2f}")
        if self._cost:
            parts.append(f"${self._cost:.2f}")
        left = self._left(passed)
        if left is not None:
            parts.append(f"about {left:.0f} s left")
        return "  ".join(parts)

    def _left(self, passed: float) -> float | None:
        """Seconds to go if all goes on as it did."""
        done = self._turns_done - self._done_before + self._judged
        wanted = len(self._turns_wanted) - self._done_before + self._wanted
        if done < 5 or wanted <= done:
            return None
        return passed / done * (wanted - done)


def _wanted_turns(
    evaluations: Sequence[Evaluation], workspace: Workspace
) -> dict[tuple[str, int], None]:
    wanted: dict[tuple[str, int], None] = {}
    turns_of: dict[str, Mapping[int | str, int]] = {}
    for row in evaluations:
        if row.data not in turns_of:
            turns_of[row.data] = {
                question.question_id: len(question.turns)
                for question in workspace.load_data(row.data).questions
            }
        if row.error is None:
            for unit in row.answers.units:
                for turn in range(1, turns_of[row.data][unit.question_id] + 1):
                    wanted[(unit.answer_id, turn)] = None
    return wanted
