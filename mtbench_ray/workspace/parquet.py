"""Rows as Parquet tables for DuckDB and pandas, with a schema made from the row's dataclass.

Two columns differ from the row: ``question_id`` is text, with ``question_id_int`` telling whether
it was a number, and ``replaced`` says that lone surrogates, which Parquet's UTF-8 cannot hold,
became U+FFFD in this row (the journal has the exact text).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Any

from mtbench_ray.errors import UserError
from mtbench_ray.schema import SCHEMA, Row, decode
from mtbench_ray.workspace.journal import Place, read_places, replacing, warn, well_formed

_BATCH = 1000
_INT64 = 1 << 63

_TYPES: dict[str, tuple[str, tuple[type, ...]]] = {
    "str": ("string", (str,)),
    "int": ("int64", (int,)),
    "float": ("float64", (int, float)),
    "bool": ("bool_", (bool,)),
    "QuestionId": ("string", (int, str)),
    "tuple[str, ...]": ("strings", (tuple,)),
}
"""Annotation of a field to its Arrow type and to the Python types that its values have."""


def mistyped(row: Any) -> str | None:
    """The first field of a Turn or Judgment whose value is not of its declared type, or None."""
    # Most rows have values of types that an earlier row had, which was right: what is left to look
    # at is what a type does not say.
    fields = _fields(type(row))
    values = _values(row)
    kinds = (type(row), *map(type, values))
    if kinds in _RIGHT:
        numbers, tuples = _RIGHT[kinds]
        if all(-_INT64 <= values[place] < _INT64 for place in numbers) and all(
            isinstance(item, str) for place in tuples for item in values[place]
        ):
            return None
    name = _mistyped(row)
    if name is None:
        _RIGHT[kinds] = (
            [n for n, (_, kind, _) in enumerate(fields)
             if kind != "QuestionId" and type(values[n]) is int],
            [n for n, value in enumerate(values) if type(value) is tuple],
        )  # fmt: skip
    return name


_RIGHT: dict[tuple[type[Any], ...], tuple[list[int], list[int]]] = {}
"""Types of a row's values that are right; places of the whole numbers and tuples among them."""


_GETTERS: dict[type[Any], Callable[[Any], tuple[Any, ...]]] = {}


def _values(row: Any) -> tuple[Any, ...]:
    """All values of a row, in the order of its fields."""
    cls = type(row)
    if cls not in _GETTERS:
        _GETTERS[cls] = attrgetter(*(field.name for field in dataclasses.fields(cls)))
    return _GETTERS[cls](row)


def _mistyped(row: Any) -> str | None:
    for name, annotation, optional in _fields(type(row)):
        value = getattr(row, name)
        if value is None and optional:
            continue
        kinds = _TYPES[annotation][1]
        fits = isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))
        if fits and isinstance(value, int) and annotation != "QuestionId":
            fits = -_INT64 <= value < _INT64
        if fits and isinstance(value, tuple):
            fits = all(isinstance(item, str) for item in value)
        if not fits:
            return name
    return None


def write_table(path: Path, cls: type[Any], rows: Iterable[Any]) -> None:
    """Write rows of one class (Turn, Judgment or Score) as a zstd Parquet file, whole or not.

    Raises:
        UserError: The disk refused it; the old file is as it was.
    """
    import pyarrow
    from pyarrow import parquet

    from mtbench_ray.workspace.columns import column

    schema = _arrow_schema(cls)
    rows = iter(rows)
    with (
        replacing(path) as temporary,
        parquet.ParquetWriter(str(temporary), schema, compression="zstd") as writer,
    ):
        while batch := [_flat(row) for row in islice(rows, _BATCH)]:
            columns = [column([row[field.name] for row in batch], field.type) for field in schema]
            writer.write_table(pyarrow.Table.from_arrays(columns, schema=schema))


def warm_up() -> None:
    """Import what :func:`write_table` needs, while others work."""
    from pyarrow import parquet  # noqa: F401

    from mtbench_ray.workspace import columns  # noqa: F401


def read_rows(path: Path, cls: type[Row], problem: Callable[[str], None] = warn) -> Iterator[Row]:
    """Rows of one class from a journal (``.jsonl``) or from a table (``.parquet``).

    A journal gives every row ever written, a table the rows that count. What is no such row is
    reported through ``problem`` and left out.

    Raises:
        UserError: The file cannot be read, or was written by a newer version.
    """
    if path.suffix != ".parquet":
        return (row for _, row in read_journal(path, cls, problem))
    rows = (_row(f"{path}:{number}", cls, data, problem) for number, data in _from_table(path))
    return (row for row in rows if row is not None)


def read_journal(
    path: Path,
    cls: type[Row],
    problem: Callable[[str], None] = warn,
    lean: Callable[[dict[str, Any]], None] = lambda data: None,
) -> Iterator[tuple[Place, Row]]:
    """Rows of a journal with where they lie in it; otherwise as :func:`read_rows`.

    Args:
        lean: Takes out of a row's fields what is not to be held in memory.
    """
    for place, data in read_places(path, problem):
        lean(data)
        row = _row(f"{path}:{place.number}", cls, data, problem)
        if row is not None:
            yield place, row


def _row(
    where: str, cls: type[Row], data: dict[str, Any], problem: Callable[[str], None]
) -> Row | None:
    version = data.get("schema", SCHEMA)
    if isinstance(version, int) and version > SCHEMA:
        raise UserError(
            f"{where} was written by a newer version (schema {version}, this one "
            f"reads up to {SCHEMA})",
            "Upgrade with pip install -U mtbench-ray, or give another workspace=<folder>.",
        )
    try:
        row = decode(cls, data)
        wrong = mistyped(row)
    except (ValueError, TypeError) as error:
        problem(f"{where}: {error}, left out")
        return None
    if wrong is not None:
        problem(f"{where}: {wrong} has a value of a wrong type, left out")
        return None
    return row


def _from_table(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    from pyarrow import parquet

    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=_BATCH):
                for data in batch.to_pylist():
                    number += 1
                    if data.get("question_id_int"):
                        data["question_id"] = int(data["question_id"])
                    yield number, data
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path}: {error}") from None


def _fields(cls: type[Any]) -> tuple[tuple[str, str, bool], ...]:
    """Name, annotation without ``| None``, and whether None is allowed, of each field."""
    if cls not in _FIELDS:
        _FIELDS[cls] = tuple(
            (field.name, str(field.type).removesuffix(" | None"), " | None" in str(field.type))
            for field in dataclasses.fields(cls)
        )
    return _FIELDS[cls]


_FIELDS: dict[type[Any], tuple[tuple[str, str, bool], ...]] = {}


def _arrow_schema(cls: type[Any]) -> Any:
    import pyarrow

    columns = []
    for name, annotation, optional in _fields(cls):
        kind = _TYPES[annotation][0]
        arrow = pyarrow.list_(pyarrow.string()) if kind == "strings" else getattr(pyarrow, kind)()
        columns.append(pyarrow.field(name, arrow, nullable=optional))
    if any(annotation == "QuestionId" for _, annotation, _ in _fields(cls)):
        columns.append(pyarrow.field("question_id_int", pyarrow.bool_(), nullable=False))
    columns.append(pyarrow.field("replaced", pyarrow.bool_(), nullable=False))
    return pyarrow.schema(columns)


def _flat(row: Any) -> dict[str, Any]:
    """The columns of one row."""
    flat: dict[str, Any] = {}
    replaced = False
    for name, annotation, _ in _fields(type(row)):
        value = getattr(row, name)
        if annotation == "QuestionId":
            flat["question_id_int"] = isinstance(value, int)
            value = str(value)
        if isinstance(value, str):
            flat[name] = well_formed(value)
            replaced |= flat[name] != value
        elif isinstance(value, tuple):
            flat[name] = [well_formed(item) for item in value]
            replaced |= flat[name] != list(value)
        else:
            flat[name] = value
    flat["replaced"] = replaced
    return flat
