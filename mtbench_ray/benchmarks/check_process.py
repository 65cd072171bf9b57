"""A process that runs the checkers of if-verifiable: JSON lines in, JSON lines out.

Started as a script, and imports nothing of this package. A timer of the system ends the whole
process where a check takes too long, whatever code it is in; its parent sees that and starts
another one. It ends with its parent, whose end closes its input.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import signal
import sys
import types
from collections.abc import Mapping
from typing import Any

PACKAGE = "if_verifiable"


def registry(family: str) -> Mapping[str, Any]:
    """The checker classes of a benchmark by instruction id."""
    if PACKAGE not in sys.modules:
        import nltk

        # One module asks for data as it is imported, another program's for a whole data set.
        nltk.download = lambda *_, **__: False
        unused = types.ModuleType("datasets")
        unused.load_dataset = None  # type: ignore[attr-defined]
        sys.modules["datasets"] = unused
        from langdetect import DetectorFactory

        DetectorFactory.seed = 0
    found: Mapping[str, Any] = importlib.import_module(f"{PACKAGE}.{family}").INSTRUCTION_DICT
    return found


def variants(answer: str) -> list[str]:
    """The eight forms of an answer of which one must pass for a loose verdict."""
    lines = answer.split("\n")
    cut = [answer] + ["\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1])]
    return [*cut, *(text.replace("*", "") for text in cut)]


def check(
    classes: Mapping[str, Any], name: str, kwargs: Mapping[str, Any], prompt: str, answer: str
) -> dict[str, bool]:
    """Strict and loose verdict of one instruction, by one checker.

    A checker may draw what its data leaves open, so that each one draws once.
    """
    checker = classes[name](name)
    checker.build_description(**kwargs)
    arguments = checker.get_instruction_args()
    if arguments and "prompt" in arguments:
        checker.build_description(prompt=prompt)

    def follows(text: str) -> bool:
        return bool(text.strip() and checker.check_following(text))

    return {"strict": follows(answer), "loose": any(map(follows, variants(answer)))}


def answer_to(asked: Mapping[str, Any]) -> dict[str, Any]:
    """What is sent back for a request."""
    try:
        classes = registry(asked["family"])
        if "data" in asked:
            return {"found": _has(asked["data"])}
        if "id" not in asked:
            return {"known": sorted(classes)}
        if asked["id"] not in classes:
            return {"error": f"unknown instruction {asked['id']}"}
        random.seed(asked["seed"])
        given = (asked["id"], asked["kwargs"], asked["prompt"], asked["answer"])
        return check(classes, *given)
    except LookupError as error:
        if "nltk" in str(error).lower():  # its message is a page long
            name = str(error).partition("Resource")[2].split()
            return {"error": f"NLTK data {name[0] if name else ''} is not installed"}
        return {"error": f"{type(error).__name__}: {error}"[:300]}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:300]}


def _has(data: str) -> bool:
    """Whether NLTK finds some of its data."""
    import nltk

    try:
        nltk.data.find(data)
    except LookupError:
        return False
    return True


def main() -> None:
    """Answer requests until the input ends."""
    out = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)  # what a library prints is no reply
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent to act on
    for line in sys.stdin:
        asked = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, asked["limit_s"])
        reply = answer_to(asked)
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(json.dumps(reply), file=out, flush=True)


if __name__ == "__main__":
    main()
