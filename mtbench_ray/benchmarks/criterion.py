"""What one verdict is of, where an answer is judged by several criteria."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple


class Criterion(NamedTuple):
    """A criterion by its place in the question's list, with its tags: ``<place> <tags>``."""

    place: int
    tags: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join((str(self.place), *self.tags))

    @staticmethod
    @lru_cache(maxsize=4096)
    def of(text: str) -> Criterion:
        """The reverse of ``str``."""
        place, *tags = text.split(" ")
        return Criterion(int(place), tuple(tags))
