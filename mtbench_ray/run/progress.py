"""What the driver shows while a run goes on: one display for all models of a sweep.

On a terminal one line at the bottom is rewritten in place; elsewhere it is printed now and then,
so that a log stays readable. Above it a table grows: a line for each model, as soon as its last
verdict is there. Everything goes to standard error: standard output is the result's.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.text import Text

from mtbench_ray.planning.evaluations import distinguishing_settings, named
from mtbench_ray.planning.plan import Board, WantedVerdict
from mtbench_ray.reports.tables import common_folder, label, short
from mtbench_ray.run.standings import Standings
from mtbench_ray.schema import ANSWERED, EngineEvent, Evaluation, Judgment, Turn
from mtbench_ray.system.threads import start_thread
from mtbench_ray.workspace.workspace import Workspace

PLAIN_EVERY_S = 15.0
"""Seconds between plain lines."""
RATE_OVER_S = 180.0
"""Rates and the time left are taken from so many last seconds: rows come in bursts."""
SILENT_S = 15.0
"""So long without a row, and nothing is said of the time left."""
_FEW = 5
"""Fewer rows than this say nothing about the time left."""


@dataclass(frozen=True)
class _Mark:
    """How far a run was at a moment; ``verdicts`` by judge."""

    at: float
    turns: int
    verdicts: dict[str, int]


class Progress:
    """Counts, rates, time left and scores so far of one run.

    Args:
        evaluations: All of the run.
        board: Their wanted verdicts.
        workspace: Read only; rows are in it before they are counted here.
        quiet: Only messages are shown.

    Attributes:
        said: All lines so far, shown or not.
    """

    def __init__(
        self,
        evaluations: Sequence[Evaluation],
        board: Board,
        workspace: Workspace,
        *,
        quiet: bool,
    ) -> None:
        self._quiet = quiet
        self.said: list[str] = []
        # What stderr is decides, not the environment: FORCE_COLOR must not animate a log.
        self._console = Console(stderr=True, soft_wrap=True, force_terminal=sys.stderr.isatty())
        self._live: Live | None = None
        models = {row.model for row in evaluations}
        self._folder = common_folder(models)
        self._apart = distinguishing_settings(evaluations)
        self._judges = len({row.judge for row in evaluations if row.judge})
        self._began = time.monotonic()
        self._shown = self._began
        self._last = ""
        self._routine = float("-inf")
        self._up = False
        self._failed = 0
        self._tokens = 0
        self._under_way: dict[str, int] = {}
        self._cost = 0.0
        self._prompt_tokens = self._cached_tokens = 0
        self._rows = len(evaluations)
        self._what = "models" if len(models) == self._rows else "results"
        self._rated = self._rows == 1 and any(not view.grader.against for view in board.views)
        self._standings = Standings(evaluations, board, workspace)
        self._past: deque[_Mark] = deque([self._mark()])
        self._moved = self._began

    def __enter__(self) -> Progress:
        if sys.stderr.isatty() and not self._console.is_dumb_terminal and not self._quiet:
            self._live = Live(
                console=self._console,
                refresh_per_second=4,
                transient=True,
                get_renderable=lambda: Text(self._line(), no_wrap=True, overflow="ellipsis"),
            )
            self._live.start()
        self._done(self._standings.already())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
        if self._counts() != self._last:
            self._say(end=True)

    def turn(self, row: Turn, named: Sequence[WantedVerdict] = ()) -> None:
        """Count a turn.

        Args:
            named: Wanted verdicts whose ids are known with it.
        """
        self._up = True
        self._standings.named(named)
        if row.status in ANSWERED:
            self._tokens += row.output_tokens
            self._count_ended(row.output_tokens)
        else:
            self._failed += 1
        self._done(self._standings.turn(row))
        self.tick()

    def judgment(self, row: Judgment) -> None:
        """Count a judgment."""
        self._cost += row.cost_usd or 0.0
        self._prompt_tokens += row.prompt_tokens
        self._cached_tokens += row.cached_tokens
        self._failed += row.value is None
        self._done(self._standings.judgment(row))
        self.tick()

    def not_needed(self, verdicts: Mapping[int, Collection[str]]) -> None:
        """These verdicts of evaluations (by index on the board) will not be judged."""
        self._done(self._standings.not_needed(verdicts))

    def engine(self, event: EngineEvent) -> None:
        """Say what an engine did; of many starts that went well only some."""
        self._up = True
        now = time.monotonic()
        if event.kind in ("start", "swap", "stop"):
            if self._quiet or now - self._routine < PLAIN_EVERY_S:
                return
            self._routine = now
        detail = f": {event.detail}" if event.detail else ""
        self.message(f"engine {event.kind} {event.model} ({event.seconds:.1f} s){detail}")

    def beat(self, event: EngineEvent) -> None:
        """Count the tokens of turns that have not ended."""
        self._up = True
        self._under_way[event.detail] = event.tokens
        self.tick()

    def _count_ended(self, tokens: int) -> None:
        """Tokens of an ended turn are no longer under way; the next beat says so too."""
        for engine, count in self._under_way.items():
            self._under_way[engine] = max(0, count - tokens)
            if count >= tokens:
                return

    def message(self, text: str) -> None:
        """A line that stays."""
        for line in text.splitlines() or [""]:
            self.said.append(line)
            self._console.print(Text(label(line)))

    def tick(self) -> None:
        """A plain line where the last one is old; the line on a terminal renews itself."""
        now = time.monotonic()
        if now - self._past[-1].at >= 1.0:
            before, mark = self._past[-1], self._mark()
            if (mark.turns, mark.verdicts) != (before.turns, before.verdicts):
                self._moved = now
            self._past.append(mark)
            while now - self._past[0].at > RATE_OVER_S:
                self._past.popleft()
        if self._live is None and now - self._shown >= PLAIN_EVERY_S:
            self._say()

    def _done(self, finished: Sequence[tuple[Evaluation, str]]) -> None:
        """The lines of models that are done."""
        if self._quiet or not finished:
            return
        width = len(str(self._rows))
        first = self._standings.finished - len(finished) + 1
        for number, (row, result) in enumerate(finished, start=first):
            settings = self._apart[row.evaluation_id]
            name = short(named(row.model, settings), self._folder)
            name += f" against {short(row.baseline, self._folder)}" if row.baseline else ""
            judge = named(row.judge, settings, judge=True)
            name += f" by {judge}" if row.judge and (self._judges > 1 or judge != row.judge) else ""
            self.message(f"done {number:{width}}/{self._rows}  {result}  {name}")

    def _mark(self) -> _Mark:
        done = {judge: count.done for judge, count in self._standings.verdicts.items()}
        return _Mark(time.monotonic(), self._standings.turns_done, done)

    def _say(self, *, end: bool = False) -> None:
        """A plain line."""
        self._shown = time.monotonic()
        self._last = self._counts()
        self.said.append(line := self._line(end=end))
        if not self._quiet:
            self._console.print(Text(line))

    def _line(self, *, end: bool = False) -> str:
        passed = time.monotonic() - self._began
        left = None if end else self._left()
        parts = [f"{passed:5.0f} s", self._counts(), *self._rates()]
        if not self._up and self._standings.turns_done < self._standings.turns_wanted:
            parts.append("engines are starting")
        if left is not None:
            parts.append(f"about {_span(left)} left")
        return "  ".join(parts)

    def _counts(self) -> str:
        """How far the run is."""
        parts = [f"turns {self._standings.turns_done}/{self._standings.turns_wanted}"]
        under_way = sum(self._under_way.values())
        if under_way and not self._standings.turns_done:
            parts.append(f"{under_way} tokens so far")
        if self._rows > 1:
            parts.insert(0, f"{self._what} {self._standings.finished}/{self._rows}")
        judges = self._standings.verdicts.values()
        if judges:
            done, wanted = (sum(getattr(c, name) for c in judges) for name in ("done", "wanted"))
            parts.append(f"judged {done}/{wanted}")
        if self._failed:
            parts.append(f"failed {self._failed}")
        if self._rated and (scored := sum(count.scored for count in judges)):
            parts.append(f"mean so far {sum(count.total for count in judges) / scored:.2f}")
        if self._cost:
            parts.append(f"${self._cost:.2f}")
        if self._cached_tokens:
            share = self._cached_tokens / max(self._prompt_tokens, 1)
            parts.append(f"{share:.0%} of prompt tokens cached")
        return "  ".join(parts)

    def _rates(self) -> list[str]:
        now, then = self._mark(), self._past[0]
        verdicts = sum(now.verdicts.values()) - sum(then.verdicts.values())
        parts = []
        if tokens := self._tokens + sum(self._under_way.values()):
            passed = time.monotonic() - self._began
            parts.append(f"{tokens / max(passed, 1e-9):.0f} tok/s")
        if verdicts and now.at - then.at >= 1.0:
            parts.append(f"{verdicts / (now.at - then.at):.1f} judged/s")
        return parts

    def _left(self) -> float | None:
        """Seconds to go if all streams go on as they did of late; None where that is unknown."""
        now, then = self._mark(), self._past[0]
        if now.at - then.at < 5.0 or now.at - self._moved > SILENT_S:
            return None
        streams = [(self._standings.turns_wanted - now.turns, now.turns - then.turns)]
        for judge, count in self._standings.verdicts.items():
            streams.append((count.wanted - count.done, count.done - then.verdicts.get(judge, 0)))
        times = []
        for left, done in streams:
            if left > 0 and done < min(_FEW, left):
                return None
            if left > 0:
                times.append(left / done * (now.at - then.at))
        return max(times, default=None)


@contextlib.contextmanager
def report_while_long(doing: str, *, quiet: bool) -> Iterator[None]:
    """Say what is being done every so often while the block takes long."""
    ended = threading.Event()
    began = time.monotonic()

    def tell() -> None:
        while not ended.wait(PLAIN_EVERY_S):
            print(f"{time.monotonic() - began:5.0f} s  {doing}", file=sys.stderr)

    if not quiet:
        # Only words are lost with it, and what it tells of goes on.
        start_thread("telling", tell, lambda _: None)
    try:
        yield
    finally:
        ended.set()


def _span(seconds: float) -> str:
    """A time in words of two units at most."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
