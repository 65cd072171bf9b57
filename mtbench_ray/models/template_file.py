"""A checkpoint's chat template as transformers would render it, without transformers.

Importing transformers takes ten seconds of CPU: too long for a look at a prompt. What is rendered
here is text for checks; the ids that an engine gets are always transformers' own. Where a
checkpoint has anything that only transformers knows how to read, there is no such template.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from mtbench_ray.models.checkpoint import read_json
from mtbench_ray.schema import Message

_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token",
          "mask_token")  # fmt: skip
"""Tokens that a template may use by name."""


@dataclass(frozen=True, slots=True)
class TemplateFile:
    """Template and named tokens of a folder.

    Attributes:
        source: Jinja text; None where the checkpoint has no template.
        tokens: Texts of the named tokens that it states, None for those that it states to be none.
        others: Further names that transformers would fill in.
    """

    source: str | None
    tokens: Mapping[str, str | None]
    others: frozenset[str]

    def covers(self, source: str) -> bool:
        """Whether all that a template may print is known here."""
        from jinja2 import TemplateSyntaxError, meta

        try:
            wanted = meta.find_undeclared_variables(_environment().parse(source))
        except TemplateSyntaxError:
            return True  # rendering it says what is wrong
        return not wanted & self.others and wanted & set(_NAMED) <= self.tokens.keys()

    def render(self, source: str, messages: Sequence[Message], options: Mapping[str, bool]) -> str:
        """A prompt up to where the assistant begins to write.

        Raises:
            jinja2.TemplateError: The template refuses these messages.
        """
        text: str = (
            _environment()
            .from_string(source)
            .render(
                messages=[{"role": m.role, "content": m.content} for m in messages],
                tools=None,
                documents=None,
                add_generation_prompt=True,
                **{name: token for name, token in self.tokens.items() if token is not None},
                **options,
            )
        )
        return text


def read_template_file(folder: Path) -> TemplateFile | None:
    """Template and tokens of a model folder; None where only transformers can read them.

    That is also so where its tokenizer does not load: transformers says why.
    """
    try:
        import jinja2  # noqa: F401
        from tokenizers import Tokenizer

        settings = read_json(folder / "tokenizer_config.json")
        if "auto_map" in settings or (folder / "tekken.json").exists():
            return None
        Tokenizer.from_file(str(folder / "tokenizer.json"))
        source = _source(folder, settings)
        tokens = {name: _text(settings[name]) for name in _NAMED if name in settings}
        older = read_json(folder / "special_tokens_map.json")
        if any(_text(older[name]) != tokens.get(name) for name in _NAMED if name in older):
            return None
    except Exception:  # from a missing package to a template in another encoding
        return None
    extra = settings.get("extra_special_tokens")
    others = {"additional_special_tokens", *(extra if isinstance(extra, dict) else ())}
    return TemplateFile(source, tokens, frozenset(others))


def _source(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """The default of a folder's templates.

    Raises:
        KeyError, ValueError: It has several, and none is the default.
    """
    file, more = folder / "chat_template.jinja", folder / "additional_chat_templates"
    if file.exists():
        return file.read_text("utf-8")
    found = settings.get("chat_template")
    if isinstance(found, list):
        found = {each["name"]: each["template"] for each in found}["default"]
    if more.is_dir() or not isinstance(found, str | None):
        raise ValueError("several chat templates and no default")
    return found


def _text(token: Any) -> str | None:
    return str(token["content"]) if isinstance(token, dict) else token


def _environment() -> Any:
    """A sandbox with what templates of checkpoints are written for."""
    import jinja2
    from jinja2 import nodes
    from jinja2.ext import Extension
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """``{% generation %}`` marks what the assistant wrote, for training; it changes no text."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body, lineno=line)

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    def tojson(
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        return json.dumps(
            value,
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment
