"""What an answer depends on: the fingerprint of a model, the id of an answer, early checks."""

from __future__ import annotations

import os
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mtbench_ray.config import EngineConfig, JudgeConfig, ModelConfig, SamplingConfig, science
from mtbench_ray.errors import UserError
from mtbench_ray.models.checkpoint import (
    adapter_folder,
    check_weights,
    folder_hash,
    locate,
    read_json,
)
from mtbench_ray.models.layout import load_layout
from mtbench_ray.models.messages import thinking_instruction
from mtbench_ray.models.sampling import effective_temperature
from mtbench_ray.schema import Question, content_id, to_dict

_VLLM_FIELDS = ("kind", "dtype", "quantization", "max_model_len", "args")
_ENDPOINT_FIELDS = ("kind", "base_url", "extra_body", "min_response_length")
_NOT_SENT = frozenset({"revision", "adapter", "chat_template"})
"""Settings of a model that its service decides."""
_FINGERPRINTED = frozenset({"path", "revision", "adapter"})
"""Settings of a model for which its fingerprint stands."""


def fingerprint(model: ModelConfig, kind: str = "vllm") -> str:
    """What a model's weights, configs and tokenizer are, whatever they are called.

    A local folder counts by content (:func:`~mtbench_ray.models.checkpoint.folder_hash`), so
    that moving or copying it changes nothing and new weights at an old path change it; a hub id
    counts as ``id@commit``; the demo model by its version; an adapter adds its own content. Nothing
    is known of a model behind an endpoint: empty.

    Args:
        kind: Of the engine.

    Raises:
        UserError: The model or its adapter is not there, or it is of a kind that cannot be run.
    """
    if kind == "openai":
        if not model.path:
            raise UserError("no model is named", "say model=<name at the endpoint>")
        return ""
    if kind == "fake" and not model.embedded and not os.path.isdir(model.path):
        return f"fake-{model.path}"
    if model.embedded:
        from mtbench_ray.models.demo_model import DEMO_MODEL_VERSION

        base = f"demo-{DEMO_MODEL_VERSION}"
    else:
        source = locate(model)
        base = (
            f"{source.path}@{source.revision}"
            if not os.path.isdir(source.path)
            else folder_hash(source.folder)
        )
    adapter = adapter_folder(model)
    return f"{base}+{folder_hash(adapter)}" if adapter else base


def as_planned(model: ModelConfig, content: str) -> ModelConfig:
    """A model as it travels to engines: what is a folder here is that folder everywhere.

    An actor has another working directory, and would take a relative path for a hub id.

    Args:
        content: The model's fingerprint when the run was planned.
    """

    def absolute(path: str | None) -> str | None:
        if path and Path(path).expanduser().exists():
            return os.path.abspath(Path(path).expanduser())
        return path

    is_folder = not model.embedded and os.path.isdir(Path(model.path).expanduser())
    return replace(
        model,
        name=model.label,
        path=(absolute(model.path) or "") if is_folder else model.path,
        adapter=absolute(model.adapter),
        # A name of a shipped template stays a name.
        chat_template=model.chat_template and _template_path(model.chat_template),
        content=content,
    )


def _template_path(name: str) -> str:
    from mtbench_ray.models.chat_template import SHIPPED, template_file

    path = template_file(name)
    return name if path.parent == SHIPPED else os.path.abspath(path)


def check_content(model: ModelConfig, kind: str) -> None:
    """Compare the files of a model with what they were when the run was planned.

    By content and not by size and time: the answer's id stands for the content, the hash takes a
    tenth of a second even for large checkpoints, and times differ between copies and nodes that
    hold the same files.

    Raises:
        UserError: They are others, or not there.
    """
    if model.content and fingerprint(model, kind) != model.content:
        raise UserError(
            f"the files of {model.label} have changed since this run was planned",
            "answers of the new files have other ids: run the same command again",
        )


def answer_id(
    model: ModelConfig,
    engine: EngineConfig,
    sampling: SamplingConfig,
    question: Question,
    sample: int,
    fingerprint: str,
) -> str:
    """Content id of one answer: both turns of one question, one sample.

    It covers what changes the text: the model's content and prompt settings, the engine's science
    settings, the effective temperature and other sampling, the question's own text. Labels,
    places of local folders and operations settings do not count.
    """
    return content_id(
        "answer",
        {
            "model": _model_fields(model, engine.kind),
            "engine": _engine_fields(engine),
            "sampling": science(sampling)
            | {"temperature": effective_temperature(question, sampling)},
            "question": {
                "benchmark": question.benchmark,
                "question_id": question.question_id,
                "turns": list(question.turns),
                "context": [to_dict(message) for message in question.context],
            },
            "sample": sample,
            "fingerprint": fingerprint,
        },
    )


def _model_fields(model: ModelConfig, kind: str) -> dict[str, Any]:
    fields = science(model)
    if model.thinking == "prompt":
        fields["custom_thinking_prompt"] = thinking_instruction(model)
    if kind == "openai":
        return {name: fields[name] for name in fields if name not in _NOT_SENT}
    fields = {name: fields[name] for name in fields if name not in _FINGERPRINTED}
    if model.chat_template:
        from mtbench_ray.models.chat_template import template_text

        fields["chat_template"] = template_text(model.chat_template)
    return fields


def _engine_fields(engine: EngineConfig) -> dict[str, Any]:
    names = _ENDPOINT_FIELDS if engine.kind == "openai" else _VLLM_FIELDS
    return {name: value for name, value in science(engine).items() if name in names}


def check_local_judge(judge: JudgeConfig) -> None:
    """What can be known of a local judge's folder before its server is started.

    Hub ids are left to the machine that runs the server: this one may not reach the hub.

    Raises:
        UserError: There is no model in it, it cannot be run, or a weight file is torn.
    """
    if judge.kind != "local" or judge.demo:
        return
    if judge.model[:1] in ("/", ".", "~") or os.path.isdir(judge.model):
        folder = locate(ModelConfig(path=judge.model)).folder
        check_weights(folder)
        load_layout(folder)


def check_prompts(model: ModelConfig, engine: EngineConfig) -> list[str]:
    """What can be known of a model's prompts before weights are loaded; takes seconds.

    Returns:
        What a user should know, one sentence each.

    Raises:
        UserError: A weight file is torn, the tokenizer is missing or broken, there is no chat
            template, or a thinking mode is asked for that the template does not know.
    """
    if engine.kind != "vllm":
        return []
    from mtbench_ray.models.chat_template import context_window, look_at_template

    source = locate(model)
    # Of a hub id no weights are here yet.
    for folder in (Path(source.path), adapter_folder(model)):
        if folder is not None and os.path.isdir(folder):
            check_weights(folder)
    load_layout(source.folder)
    if find_spec("transformers") is None:  # a plan on a laptop, the head node of a cluster
        return ["prompts are not checked here: the package transformers is not installed"]
    template = look_at_template(model, trust_remote_code=engine.trust_remote_code, source=source)
    window = context_window(read_json(source.folder / "config.json"))
    notes = []
    if template.merges_system and (model.system_prompt or thinking_instruction(model)):
        notes.append(
            "the chat template refuses the system role: its text goes into the first user message"
        )
    if "strftime_now" in template.source:
        notes.append("the chat template prints today's date: prompts differ from day to day")
    if window and engine.max_model_len and engine.max_model_len > window:
        notes.append(f"engine.max_model_len={engine.max_model_len} is above the model's {window}")
    return notes
