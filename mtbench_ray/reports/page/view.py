"""``report html`` and ``view``: the page as a file, opened, or served on this machine alone."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import sys
import threading
import time
import webbrowser
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from mtbench_ray.errors import EXIT_OK, UserError
from mtbench_ray.judges.base import ScoreOptions
from mtbench_ray.reports.filters import Filter
from mtbench_ray.reports.joined import opened
from mtbench_ray.reports.page import page, render
from mtbench_ray.reports.page.collect import collect
from mtbench_ray.reports.page.contents import Plot
from mtbench_ray.workspace.journal import replacing

NAME = "report.html"
"""The file, in the workspace, where none is named."""

HOST = "127.0.0.1"
_LOCAL = ("127.0.0.1", "localhost")
_RUNS = "runs/*/record.json"
PLOTS_S = 60
"""Plots of a page that is served are at most so old while rows come."""
_REMEMBERED = 100_000
"""Rendered texts that a server keeps, so that the page of a running run is soon made again."""


def write(
    roots: Sequence[str], out: str, options: ScoreOptions, only: Filter | None = None
) -> Path:
    """Write the page of one or more workspaces; returns its path.

    Args:
        out: The file; empty for :data:`NAME` in the first workspace.
        only: What is shown.

    Raises:
        UserError: No workspace, nothing in it, a library is missing, or the disk refused it.
    """
    with opened(roots) as workspace:
        path = Path(os.path.expanduser(out)) if out else workspace.root / NAME
        if path.is_dir():
            raise UserError(f"{path} is a folder", f"write a file: out={path / NAME}")
        contents = collect(workspace, options, only, plotted=lambda draw: draw())
        with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
            for part in page.parts(contents):
                file.write(part)
    return path


def report(
    roots: Sequence[str], out: str, options: ScoreOptions, only: Filter | None = None
) -> int:
    """The verb ``report html``."""
    path = write(roots, out, options, only)
    print(path)
    print(f"{path.stat().st_size / 1e6:.1f} MB; open it in a browser", file=sys.stderr)
    return EXIT_OK


def view(roots: Sequence[str], port: str, options: ScoreOptions) -> int:
    """The verb ``view``: write the page and open it; with a port, serve it until Ctrl-C."""
    if port:
        return serve(roots, _port(port), options)
    path = write(roots, "", options)
    print(path)
    if not webbrowser.open(path.resolve().as_uri()):
        print(
            "no browser here: copy the file, or run `view port=8000"
            f" {' '.join(f'workspace={root}' for root in roots)}` and forward that port",
            file=sys.stderr,
        )
    return EXIT_OK


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise UserError(f"port={text} is no port", "port=8000, or port=0 for any free one")
    return int(text)


def serve(
    roots: Sequence[str],
    port: int,
    options: ScoreOptions,
    started: Callable[[ThreadingHTTPServer], None] = lambda server: None,
) -> int:
    """Serve the page on the loopback address; each reload shows what is there by then.

    Args:
        started: Called with the server before it serves.

    Raises:
        UserError: The port is in use, or there is nothing to show.
    """
    live = Live(roots, options)
    live.text()  # what is wrong is said now, not in the browser
    try:
        server = ThreadingHTTPServer((HOST, port), functools.partial(Handler, live))
    except OSError as error:
        raise UserError(
            f"cannot listen on port {port}: {error.strerror or error}", "port=0 takes a free one"
        ) from None
    with server:
        print(f"http://{HOST}:{server.server_address[1]}/  (Ctrl-C ends it)", flush=True)
        started(server)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever(poll_interval=0.2)
    return EXIT_OK


class Live:
    """The page of workspaces, made again when their rows have changed.

    Plots take seconds: they are drawn again after :data:`PLOTS_S`, or once a run has ended.
    """

    def __init__(self, roots: Sequence[str], options: ScoreOptions) -> None:
        self.roots, self.options = roots, options
        self._plots: Sequence[Plot] = ()
        self._drawn: tuple[float, object] = (-math.inf, None)
        self._lock = threading.Lock()
        self._seen: object = None
        self._page = b""
        self._rich = functools.lru_cache(_REMEMBERED)(render.rich)

    def text(self) -> bytes:
        """The file's bytes."""
        with self._lock:
            seen = self._stamp()
            if seen != self._seen:
                with opened(self.roots) as workspace:
                    contents = collect(workspace, self.options, plotted=self._plotted)
                    made = "".join(page.parts(contents, self._rich))
                self._page = made.encode()
                self._seen = seen
            return self._page

    def _plotted(self, draw: Callable[[], Sequence[Plot]]) -> Sequence[Plot]:
        at, runs = self._drawn
        if time.monotonic() - at > PLOTS_S or runs != self._stamp([_RUNS]):
            self._plots = draw()
            self._drawn = time.monotonic(), self._stamp([_RUNS])
        return self._plots

    def _stamp(self, names: Sequence[str] = (_RUNS, "answers.jsonl", "judgments.jsonl")) -> object:
        return [
            (str(path), stat.st_mtime_ns, stat.st_size)
            for root in self.roots
            for name in names
            for path in sorted(Path(os.path.expanduser(root)).glob(name))
            if (stat := path.stat())
        ]


class Handler(BaseHTTPRequestHandler):
    """Answers ``GET /`` with the page and nothing else, to this machine's own names alone."""

    server_version = "mtbench_ray"
    sys_version = ""

    def __init__(self, live: Live, *rest: object) -> None:
        self._live = live
        super().__init__(*rest)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        """One request. Another host's name in it is a web page's trick to read local services."""
        name = self.headers.get("Host", "").rpartition(":")[0] or self.headers.get("Host", "")
        if name not in _LOCAL:
            self.send_error(421)
        elif self.path.partition("?")[0] != "/":
            self.send_error(404)
        else:
            try:
                body = self._live.text()
            except UserError as error:
                self.send_error(500, explain=str(error))
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.send_header("X-Frame-Options", "DENY")
            self.send_header("Cross-Origin-Resource-Policy", "same-origin")
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the terminal is the user's."""
