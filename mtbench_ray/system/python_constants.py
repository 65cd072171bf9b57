"""Texts that others keep as constants in Python files: read, never run."""

from __future__ import annotations

import ast
from collections.abc import Callable

from mtbench_ray.errors import UserError


def constant(source: bytes, path: str) -> str:
    """The text that stands somewhere in a Python file.

    Args:
        source: Of the file.
        path: Names and keys from the top, with dots: ``PROMPT``, ``Task.PROMPT`` of a class,
            ``SETTINGS.coding.prompt`` of a dictionary that is written out, or ``build.0``, the
            first text in the body of a function. A text that the file strips where it defines it
            is stripped.

    Raises:
        UserError: The file cannot be read, or there is no text.
    """
    try:
        place: ast.AST = ast.parse(source)
        for name in path.split("."):
            place = _inside(place, name)
        value = _stripped(place)
    except (SyntaxError, ValueError, LookupError):
        value = None
    if not isinstance(value, str):
        raise UserError(f"{path} is no text in the Python file that should hold it")
    return value


def _inside(place: ast.AST, name: str) -> ast.AST:
    """What a name or key means in a file, a class or a dictionary.

    Raises:
        LookupError: Nothing.
    """
    if isinstance(place, ast.Dict):
        for key, value in zip(place.keys, place.values, strict=True):
            if isinstance(key, ast.Constant) and key.value == name:
                return value
    elif isinstance(place, ast.Module | ast.ClassDef):
        for statement in place.body:
            if isinstance(statement, ast.ClassDef | ast.FunctionDef) and statement.name == name:
                return statement
            targets: list[ast.expr] = []
            if isinstance(statement, ast.Assign):
                targets = statement.targets
            elif isinstance(statement, ast.AnnAssign):
                targets = [statement.target]
            if any(isinstance(one, ast.Name) and one.id == name for one in targets):
                assert isinstance(statement, ast.Assign | ast.AnnAssign)
                return statement.value or statement
    elif isinstance(place, ast.FunctionDef):
        texts = [
            one
            for statement in place.body
            for one in ast.walk(statement)
            if isinstance(one, ast.Constant) and isinstance(one.value, str)
        ]
        texts.sort(key=lambda one: (one.lineno, one.col_offset))
        if name.isdecimal():
            return texts[int(name)]
    raise LookupError(name)


def _stripped(place: ast.AST) -> object:
    """The value of a constant, or of one with ``.strip()`` behind it."""
    if (
        isinstance(place, ast.Call)
        and isinstance(place.func, ast.Attribute)
        and place.func.attr == "strip"
        and not place.args
        and isinstance(text := ast.literal_eval(place.func.value), str)
    ):
        return text.strip()
    return ast.literal_eval(place)


def text_of(path: str) -> Callable[[bytes], bytes]:
    """Makes the file of an :class:`~mtbench_ray.system.assets.Asset` from a constant."""
    return lambda source: constant(source, path).encode()
