"""Files of one JSON object a line, as people write them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from mtbench_ray.errors import UserError


def json_lines(text: str, where: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line number and object of each line; splits on newline only, as JSON lines does.

    Raises:
        UserError: A line is no JSON object; the message begins with ``where`` and the line.
    """
    for line, part in enumerate(text.split("\n"), start=1):
        part = part.removeprefix("\ufeff")  # also within a file: of files that were joined
        if not part.strip():
            continue
        try:
            row = json.loads(part)
        except ValueError as error:
            raise UserError(f"{where} line {line} is not JSON: {error}") from None
        if not isinstance(row, dict):
            raise UserError(f"{where} line {line} is not a JSON object")
        yield line, row
