"""Columns of Python values as Arrow arrays.

``pyarrow.array`` and all that is built on it imports pandas, where that is installed, to see
whether it was given some of its objects: a second of CPU, which the end of each run would take.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Any

import numpy
import pyarrow
from pyarrow import types


def column(values: Sequence[Any], kind: Any) -> Any:
    """An Arrow array.

    Args:
        values: Texts without lone surrogates, numbers, truth values or sequences of texts; None is
            a null.
        kind: ``string()``, ``int64()``, ``float64()``, ``bool_()`` or ``list_(string())``.

    Raises:
        OverflowError: A number has more than 64 bits, or all texts together 2 GiB.
    """
    nulls = None
    if None in values:
        nulls = _bits([value is not None for value in values])
    if types.is_boolean(kind):
        buffers = [nulls, _bits(values)]
    elif types.is_string(kind):
        texts = [(value or "").encode() for value in values]
        buffers = [nulls, _offsets(texts), pyarrow.py_buffer(b"".join(texts))]
    elif types.is_list(kind):
        lists = [value or () for value in values]
        children = [column(list(chain.from_iterable(lists)), kind.value_type)]
        return pyarrow.Array.from_buffers(
            kind, len(values), [nulls, _offsets(lists)], children=children
        )
    else:
        filled = [0 if value is None else value for value in values]
        buffers = [nulls, pyarrow.py_buffer(numpy.array(filled, kind.to_pandas_dtype()))]
    return pyarrow.Array.from_buffers(kind, len(values), buffers)


def _bits(values: Sequence[Any]) -> Any:
    """Truth values as Arrow holds them, eight in a byte."""
    return pyarrow.py_buffer(numpy.packbits(numpy.array(values, bool), bitorder="little"))


def _offsets(parts: Sequence[Any]) -> Any:
    """Where each part begins in all of them joined, and where the last one ends."""
    ends = accumulate(map(len, parts))
    return pyarrow.py_buffer(numpy.array([0, *ends], numpy.int32))
