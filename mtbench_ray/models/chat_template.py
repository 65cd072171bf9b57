"""A checkpoint's chat template and tokenizer: messages to ids, ids to text. Loads no weights."""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtbench_ray.config import ModelConfig
from mtbench_ray.errors import UserError
from mtbench_ray.models.checkpoint import Source, adapter_folder, locate, read_json, tokenizer_hash
from mtbench_ray.models.messages import (
    merge_system,
    thinking_spec,
    thinking_tags,
)
from mtbench_ray.models.template_file import read_template_file
from mtbench_ray.models.thinking import CHANNEL_TOKENS, ThinkingSpec
from mtbench_ray.schema import Message, text_hash

SHIPPED = Path(__file__).parent / "templates"
_STOP_LINE = re.compile(r"\{#-?\s*stop:\s*(\[.*?\])\s*-?#\}")
_PROBE = "zqprobe"
_kept: dict[str, Any] = {}
"""The tokenizer loaded last, by the hash of its files."""


def template_file(name: str) -> Path:
    """Path of ``model.chat_template``: a file, or the name of a shipped template.

    Raises:
        UserError: There is no such file or name.
    """
    shipped = SHIPPED / f"{name}.jinja"
    path = shipped if shipped.is_file() else Path(name).expanduser()
    if not path.is_file():
        names = ", ".join(sorted(f.stem for f in SHIPPED.glob("*.jinja")))
        raise UserError(
            f"model.chat_template={name}: no such file", f"give a Jinja file or one of: {names}"
        )
    return path


def template_text(name: str) -> str:
    """Text of ``model.chat_template``, without the mark that some editors put before it.

    Raises:
        UserError: There is no such file or name, or it is not UTF-8.
    """
    path = template_file(name)
    try:
        return path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"model.chat_template={name} cannot be read: {error}", "save it as UTF-8"
        ) from None


@dataclass(frozen=True, slots=True)
class Rendered:
    """A prompt as the engine gets it.

    Attributes:
        ids: Token ids, begin token included.
        merged: The template refuses the system role, so its text went into the first user message.
    """

    ids: tuple[int, ...]
    merged: bool


@dataclass(frozen=True)
class ChatTemplate:
    """Tokenizer and template of one model, ready to render.

    Attributes:
        tokenizer: The transformers tokenizer.
        source: Jinja text of the template.
        options: Passed to the template: ``enable_thinking`` where thinking is set.
        begin: Begin token to put before what a shipped template renders; it cannot know whether
            this tokenizer wants one. None for others: they say all that is to be said.
        merges_system: The template refuses or drops the system role.
        stop_ids: End tokens: of generation_config (of config where there is none), of the
            tokenizer and the user's own. No other token of the template ends a turn.
        stop: Stop strings that a plain template declares in its first line.
        window: Context window of the model in tokens, None where its config does not say.
        architecture: From its config.
    """

    tokenizer: Any
    source: str
    options: dict[str, bool]
    begin: int | None
    merges_system: bool
    stop_ids: tuple[int, ...]
    stop: tuple[str, ...]
    thinking: ThinkingSpec
    window: int | None
    architecture: str

    @property
    def hash(self) -> str:
        """First 16 hex digits of the template's sha256."""
        return text_hash(self.source)[:16]

    def render(self, messages: Sequence[Message]) -> Rendered:
        """Token ids of a conversation, up to where the assistant begins to write.

        Raises:
            jinja2.TemplateError: The template refuses these messages.
        """
        merged = self.merges_system and bool(messages) and messages[0].role == "system"
        if merged:
            messages = merge_system(messages)
        ids = list(_rendered(self.tokenizer, self.source, messages, self.options, tokenize=True))
        if self.begin is not None and ids[:1] != [self.begin]:
            ids.insert(0, self.begin)
        return Rendered(tuple(ids), merged)

    def text(self, ids: Sequence[int]) -> str:
        """A prompt as text, special tokens included, to show to a person."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False))

    def decode(self, ids: Sequence[int]) -> str:
        """Output ids as text: up to the first end token, without special tokens.

        Thinking tags and the tokens of channels stay even where the tokenizer counts them as
        special: they are still to be read.
        """
        special = set(self.tokenizer.all_special_ids) - self._tag_ids()
        kept: list[int] = []
        for token in ids:
            if token in self.stop_ids:
                break
            if token not in special:
                kept.append(token)
        return str(
            self.tokenizer.decode(
                kept, skip_special_tokens=False, clean_up_tokenization_spaces=False
            )
        )

    def _tag_ids(self) -> set[int]:
        tags = [tag for tag in (self.thinking.open, self.thinking.close) if tag]
        # A tag may be made of several tokens, some of them special.
        found = {i for t in tags for i in self.tokenizer.encode(t, add_special_tokens=False)}
        if self.thinking.channels:
            found |= {self.tokenizer.convert_tokens_to_ids(token) for token in CHANNEL_TOKENS}
        return found - {None, self.tokenizer.unk_token_id}


def load_template(
    model: ModelConfig, *, trust_remote_code: bool = False, source: Source | None = None
) -> ChatTemplate:
    """Load a model's tokenizer and template and check them; seconds, and no weights.

    Raises:
        UserError: The model or its tokenizer is missing, it has no chat template, the template
            does not work, or thinking is set and the template does not know it.
    """
    source = source or locate(model)
    tokenizer = _tokenizer(model, *_tokenizer_at(model, source), trust_remote_code)
    look = _look(model, _own_template(tokenizer), functools.partial(_apply, tokenizer))
    text, stop = look.source, _declared_stop(look.source)
    opening, _ = thinking_tags(model, text)
    prefilled = bool(opening) and look.prompt.rstrip().endswith(opening)
    config = read_json(source.folder / "config.json")
    return ChatTemplate(
        tokenizer=tokenizer,
        source=text,
        options=look.options,
        begin=_begin_token(tokenizer) if look.shipped else None,
        merges_system=look.merges_system,
        stop_ids=_stop_ids(model, tokenizer, config, source.folder),
        stop=stop,
        thinking=thinking_spec(model, text, prefilled=prefilled, stop=stop),
        window=context_window(config),
        architecture=", ".join(config.get("architectures") or ()) or "unknown",
    )


@dataclass(frozen=True, slots=True)
class Look:
    """What is known of a model's prompts without a token.

    Attributes:
        source: Jinja text of the template.
        shipped: It is one of those shipped here.
        options: As of a :class:`ChatTemplate`.
        prompt: Of a short conversation.
        merges_system: The template refuses or drops the system role.
    """

    source: str
    shipped: bool
    options: dict[str, bool]
    prompt: str
    merges_system: bool


def look_at_template(
    model: ModelConfig, *, trust_remote_code: bool = False, source: Source | None = None
) -> Look:
    """Check a model's tokenizer and template; by transformers only where they need it.

    Raises:
        UserError: As :func:`load_template`.
    """
    source = source or locate(model)
    path, revision = _tokenizer_at(model, source)
    file = read_template_file(Path(path)) if os.path.isdir(path) else None
    if file is not None:
        text = template_text(model.chat_template) if model.chat_template else file.source
        if file.covers(text or ""):
            return _look(model, file.source, file.render)
    tokenizer = _tokenizer(model, path, revision, trust_remote_code)
    return _look(model, _own_template(tokenizer), functools.partial(_apply, tokenizer))


def _look(
    model: ModelConfig,
    own: str | None,
    render: Callable[[str, Sequence[Message], dict[str, bool]], str],
) -> Look:
    """Check a template by rendering short conversations.

    Args:
        own: The checkpoint's template.
    """
    text, shipped = _template_text(model, own)
    options = _options(model, text)
    user = Message("user", "Hello")
    try:
        prompt = render(text, [user], options)
    except Exception as error:
        raise UserError(f"model {model.label}: its chat template does not work: {error}") from None
    try:
        merges = _PROBE not in render(text, [Message("system", _PROBE), user], options)
    except Exception:
        # Templates refuse by raise_exception, but also by indexing what is not there.
        merges = True
    return Look(text, shipped, options, prompt, merges)


def _tokenizer_at(model: ModelConfig, source: Source) -> tuple[str, str | None]:
    """Folder or hub id of a model's tokenizer, and the commit of a hub id."""
    adapter = adapter_folder(model)
    if adapter is not None and (adapter / "tokenizer_config.json").is_file():
        # Training saved the tokenizer beside the adapter, with the template it trained on.
        return str(adapter), None
    return source.path, source.revision


def _tokenizer(model: ModelConfig, path: str, revision: str | None, trust_remote_code: bool) -> Any:
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise UserError(
            "chat templates need the package transformers, which is not installed here",
            "pip install 'mtbench-ray[gpu]' (or [cpu])",
        ) from None

    key = "" if trust_remote_code else _tokenizer_key(Path(path))
    if key and (kept := _kept.get(key)):
        return kept
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            path, revision=revision, trust_remote_code=trust_remote_code
        )
    except Exception as error:
        # transformers raises anything from OSError to bare Exception for a broken tokenizer.
        reason = " ".join(str(error).split())[:300] or repr(error)
        hint = "check that the checkpoint was saved with its tokenizer"
        if "trust_remote_code" in str(error):
            hint = "if you trust its author: engine.trust_remote_code=true"
        elif torchvision_is_broken():
            hint = (
                "transformers does not import beside this torchvision, which is not made for this"
                " torch: pip uninstall -y torchvision torchaudio torchcodec"
            )
        raise UserError(
            f"model {model.label}: its tokenizer does not load: {reason}", hint
        ) from None
    if key and key == _tokenizer_key(Path(path)):  # nobody wrote there meanwhile
        _kept.clear()
        _kept[key] = tokenizer
    return tokenizer


def torchvision_is_broken() -> bool:
    """Whether there is a torchvision that does not load: pip may take one for another torch."""
    try:
        import torchvision  # noqa: F401
    except ImportError:
        return False
    except Exception:
        return True
    return False


def _tokenizer_key(folder: Path) -> str:
    """Equal for folders whose tokenizers are the same; empty where that cannot be told.

    The checkpoints of a training run share one. Loading it takes a second in which no other thread
    of this process gets far, those that feed a running engine among them.
    """
    try:
        return tokenizer_hash(folder)
    except (OSError, UserError):
        return ""


def _own_template(tokenizer: Any) -> str | None:
    try:
        return str(tokenizer.get_chat_template())
    except ValueError:
        return None


def _template_text(model: ModelConfig, own: str | None) -> tuple[str, bool]:
    """The template, and whether it is one of those shipped here."""
    if model.chat_template:
        shipped = template_file(model.chat_template).parent == SHIPPED
        return template_text(model.chat_template), shipped
    if own is None:
        names = ", ".join(sorted(f.stem for f in SHIPPED.glob("*.jinja")))
        raise UserError(
            f"model {model.label}: the checkpoint has no chat template",
            f"say which one to use: model.chat_template=<Jinja file, or one of {names}>",
        )
    return own.removeprefix("\ufeff"), False


def _options(model: ModelConfig, text: str) -> dict[str, bool]:
    if model.thinking not in ("on", "off"):
        return {}
    if "enable_thinking" not in text:
        raise UserError(
            f"model {model.label}: thinking={model.thinking} is set, but its chat template does "
            "not know enable_thinking",
            "leave model.thinking unset; for a model that always thinks add "
            "model.split_thinking=always; for one that thinks when told: model.thinking=prompt",
        )
    return {"enable_thinking": model.thinking == "on"}


def _declared_stop(text: str) -> tuple[str, ...]:
    line = _STOP_LINE.search(text)
    try:
        return tuple(str(s) for s in json.loads(line[1])) if line else ()
    except ValueError:
        return ()


def _apply(tokenizer: Any, text: str, messages: Sequence[Message], options: dict[str, bool]) -> str:
    return str(_rendered(tokenizer, text, messages, options, tokenize=False))


def _rendered(
    tokenizer: Any,
    text: str,
    messages: Sequence[Message],
    options: dict[str, bool],
    *,
    tokenize: bool,
) -> Any:
    return tokenizer.apply_chat_template(
        [{"role": m.role, "content": m.content} for m in messages],
        chat_template=text,
        add_generation_prompt=True,
        tokenize=tokenize,
        return_dict=False,
        **options,
    )


def _begin_token(tokenizer: Any) -> int | None:
    """The begin token, where this tokenizer adds it by itself."""
    ids = tokenizer.encode("a", add_special_tokens=True)
    begin = tokenizer.bos_token_id
    return int(begin) if begin is not None and ids[:1] == [begin] else None


def _stop_ids(
    model: ModelConfig, tokenizer: Any, config: dict[str, Any], folder: Path
) -> tuple[int, ...]:
    generation = read_json(folder / "generation_config.json")
    declared = generation.get("eos_token_id", config.get("eos_token_id"))
    ids = declared if isinstance(declared, list) else [declared]
    ids = [*ids, tokenizer.eos_token_id, *model.stop_token_ids]
    return tuple(dict.fromkeys(int(i) for i in ids if i is not None))


def context_window(config: dict[str, Any]) -> int | None:
    """Context window of a model in tokens by its config.json; None where it does not say."""
    for part in (config, config.get("text_config") or {}):
        for key in ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"):
            if isinstance(part.get(key), int):
                return int(part[key])
    return None
