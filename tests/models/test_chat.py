"""Messages, thinking and templates: field cases F02 F06 F07 F24 F42 F46 F58 F64 F66 F77."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checkpoints import same_without_transformers, write_checkpoint
from hypothesis import given
from hypothesis import strategies as st

from mtbench_ray.config import ModelConfig
from mtbench_ray.errors import UserError
from mtbench_ray.models.chat_template import SHIPPED, ChatTemplate, load_template, look_at_template
from mtbench_ray.models.messages import (
    build_messages,
    merge_system,
    split_thinking,
    thinking_compliance,
    thinking_spec,
)
from mtbench_ray.models.thinking import ThinkingSpec
from mtbench_ray.schema import Message, Question, Turn

ON = ThinkingSpec(split=True, required=True)
PREFILLED = ThinkingSpec(split=True, required=True, prefilled=True)
OFF = ThinkingSpec()
QUESTION = Question("mt_bench", 1, "math", ("What is two and two?", "And three more?"))

PLAIN = (
    "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }} "
    "{% endfor %}{% if add_generation_prompt %}[assistant] {% endif %}"
)
NO_SYSTEM = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    + PLAIN
)
DROPS_SYSTEM = PLAIN.replace("in messages", "in messages if m['role'] != 'system'")
SWITCH = (
    PLAIN + "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
)
PREFILL = PLAIN + "<think>"


@pytest.mark.parametrize(
    ("raw", "finish", "spec", "content", "status", "compliant"),
    [
        # F02: cut off while thinking
        ("<think>first let y be 2 and", "length", ON, "", "truncated", False),
        ("first let y be 2 and", "length", PREFILLED, "", "truncated", False),
        ("<think>I stopped here", "stop", ON, "", "truncated", False),
        # F06: the opening tag was in the prompt, or the model left it out
        ("They say hello.\n</think>\n\nHi there!", "stop", PREFILLED, "Hi there!", "ok", True),
        ("They say hello.\n</think>\n\nHi there!", "stop", ON, "Hi there!", "ok", False),
        # F64: stop strings reach the answer only
        (
            "<think>plan\n\n### part</think>Ready ### more",
            "stop",
            ThinkingSpec(split=True, stop=("###",)),
            "Ready",
            "ok",
            True,
        ),
        (
            "<think>plan\n\n",
            "stop",
            ThinkingSpec(split=True, stop=("###",)),
            "",
            "truncated",
            False,
        ),
        # F77: answers that talk about the tags
        ("Put `<think>` and `</think>` around it.", "stop", OFF, None, "ok", None),
        ("Put `<think>` and `</think>` around it.", "stop", ON, None, "ok", False),
        (
            "<think>q</think>Write `<think>z</think>`.",
            "stop",
            ON,
            "Write `<think>z</think>`.",
            "ok",
            True,
        ),
        # thinking that quotes the tags, in a pair or alone
        ("<think>the <think>x</think> pair</think>Yes", "stop", ON, "Yes", "ok", True),
        ("<think>the <think> tag</think>Yes", "stop", ON, "Yes", "ok", True),
        ("<think>the <think>x</think> and", "length", ON, "", "truncated", False),
        ("<think>done</think>An answer that is too", "length", ON, None, "truncated", True),
        ("<think>done</think>  ", "stop", ON, "", "empty", True),
        ("no thoughts", "stop", ON, "no thoughts", "ok", False),
        ("no thoughts", "stop", ThinkingSpec(split=True), "no thoughts", "ok", None),
        ("  padded \n", "stop", OFF, "padded", "ok", None),
        ("", "stop", OFF, "", "empty", None),
        ("cut", "length", OFF, "cut", "truncated", None),
        ("cut here ### x", "length", ThinkingSpec(stop=("###",)), "cut here", "ok", None),
    ],
)
def test_split(
    raw: str, finish: str, spec: ThinkingSpec, content: str | None, status: str, compliant: Any
) -> None:
    split = split_thinking(raw, finish, spec)
    expected = raw.removeprefix("<think>done</think>") if content is None else content
    assert (split.content, split.status, split.compliant) == (expected, status, compliant)
    if split.reasoning is not None:
        assert split.reasoning in raw


def test_unknown_template_splits_only_what_begins_with_the_tag() -> None:
    spec = thinking_spec(ModelConfig(path="m"), None)
    assert split_thinking("The tag </think> ends it.", "stop", spec).content.startswith("The tag")
    assert split_thinking("<think>a</think>b", "stop", spec).content == "b"
    asked = thinking_spec(ModelConfig(path="m", thinking="on"), None)
    assert split_thinking("a</think>b", "stop", asked).content == "b"


@given(st.text(), st.text(alphabet=st.characters(exclude_characters="<")))
def test_answer_after_block_survives_whatever_it_says(answer: str, thought: str) -> None:
    split = split_thinking(f"<think>{thought}</think>{answer}", "stop", ON)
    assert split.content == answer.strip()
    assert split_thinking(answer, "stop", OFF).content == answer.strip()


@pytest.mark.parametrize(
    ("settings", "template", "split"),
    [
        ({}, "no tags", False),
        ({}, "{{ '<think>' }}", True),
        ({"thinking": "off"}, "<think>", False),
        ({"thinking": "on"}, "no tags", True),
        ({"custom_thinking_prompt": "Think first."}, "no tags", True),
        ({"split_thinking": "never", "thinking": "on"}, "<think>", False),
        ({"split_thinking": "always"}, "no tags", True),
        ({"thinking_open": "[T]", "thinking_close": "[/T]"}, "<think>", False),
        ({"thinking_open": "[T]", "thinking_close": "[/T]"}, "[T]", True),
    ],
)
def test_when_thinking_is_split(settings: dict[str, str], template: str, split: bool) -> None:
    assert thinking_spec(ModelConfig(path="m", **settings), template).split is split  # type: ignore[arg-type]


def test_messages_carry_answers_only_and_no_system_unless_set() -> None:
    assert build_messages(ModelConfig(path="m"), QUESTION, ["4"]) == (
        Message("user", QUESTION.turns[0]),
        Message("assistant", "4"),
        Message("user", QUESTION.turns[1]),
    )


def test_system_text_thinking_prompt_and_context_come_first() -> None:
    model = ModelConfig(path="m", system_prompt="Be kind.", custom_thinking_prompt="Think first.")
    question = Question(
        "mt_bench",
        1,
        "math",
        ("Go on.",),
        context=(Message("system", "A play."), Message("user", "Hi"), Message("assistant", "Ho")),
    )
    assert build_messages(model, question, []) == (
        Message("system", "Be kind.\n\nThink first.\n\nA play."),
        Message("user", "Hi"),
        Message("assistant", "Ho"),
        Message("user", "Go on."),
    )


def test_merge_system_goes_into_first_user_message() -> None:
    messages = [Message("system", "S"), Message("user", "Q"), Message("assistant", "A")]
    assert merge_system(messages) == (Message("user", "S\n\nQ"), Message("assistant", "A"))
    assert merge_system(messages[1:]) == tuple(messages[1:])


@pytest.fixture
def make_checkpoint(tmp_path: Path) -> Callable[..., Path]:
    count = itertools.count()

    def make(template: str | None, **settings: Any) -> Path:
        return write_checkpoint(tmp_path / f"step_{next(count)}", template, **settings)

    return make


def load(folder: Path, **settings: Any) -> ChatTemplate:
    """Of each template here the text without transformers is that of transformers as well."""
    model = ModelConfig(path=str(folder), **settings)
    template = load_template(model)
    same_without_transformers(template, folder)
    look = look_at_template(model)
    assert (look.source, look.options) == (template.source, template.options)
    assert look.merges_system == template.merges_system
    return template


def test_one_begin_token(make_checkpoint: Any) -> None:
    template = load(make_checkpoint(PLAIN))
    messages = [Message("user", "say hi")]
    ids = template.render(messages).ids
    begin = template.tokenizer.bos_token_id
    assert ids[0] == begin
    assert ids.count(begin) == 1
    # what the tokenizer would do with the template's text: a second begin token (F24)
    assert template.tokenizer("<s>hi")["input_ids"][:2] == [begin, begin]
    by_hand = template.tokenizer.apply_chat_template(
        [{"role": "user", "content": "say hi"}], add_generation_prompt=True, return_dict=False
    )
    assert list(ids) == by_hand


@pytest.mark.parametrize("name", [f.stem for f in SHIPPED.glob("*.jinja")])
def test_shipped_templates_render_with_one_begin_token(name: str, make_checkpoint: Any) -> None:
    template = load(make_checkpoint(None), chat_template=name)
    model = ModelConfig(path="m", system_prompt="Be kind.")
    ids = template.render(build_messages(model, QUESTION, ["4"])).ids
    assert ids.count(template.tokenizer.bos_token_id) == 1
    text = template.text(ids)
    places = [text.index(part) for part in ("Be kind.", *QUESTION.turns)]
    assert places == sorted(places)
    assert template.stop
    assert not any(stop in text[places[2] + 10 :] for stop in template.stop if "im_end" not in stop)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("plain", "User: a\n\nAssistant: b\n\nUser: c\n\nAssistant:"),
        (
            "instruction",
            "Each request below is followed by a reply that does what it asks."
            "\n\n### Request\na\n\n### Reply\nb\n\n### Request\nc\n\n### Reply\n",
        ),
        (
            "chatml",
            "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n"
            "<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n",
        ),
    ],
)
def test_shipped_template_text(name: str, expected: str, make_checkpoint: Any) -> None:
    template = load(make_checkpoint(None), chat_template=name)
    messages = [Message("user", "a"), Message("assistant", "b"), Message("user", "c")]
    prompt = template.tokenizer.apply_chat_template(
        [{"role": m.role, "content": m.content} for m in messages],
        chat_template=template.source,
        add_generation_prompt=True,
        tokenize=False,
    )
    assert prompt == expected


@pytest.mark.parametrize("source", [NO_SYSTEM, DROPS_SYSTEM])
def test_system_role_refused_or_dropped_is_merged(source: str, make_checkpoint: Any) -> None:
    template = load(make_checkpoint(source))
    rendered = template.render([Message("system", "be kind"), Message("user", "say hi")])
    assert rendered.merged
    assert rendered.ids == template.render([Message("user", "be kind\n\nsay hi")]).ids


def test_system_role_kept_where_template_takes_it(make_checkpoint: Any) -> None:
    rendered = load(make_checkpoint(PLAIN)).render(
        [Message("system", "be kind"), Message("user", "say hi")]
    )
    assert not rendered.merged


def test_no_template_is_refused_with_the_setting_that_mends_it(make_checkpoint: Any) -> None:
    folder = make_checkpoint(None)
    with pytest.raises(UserError, match=r"(?s)" + folder.name + r".*model\.chat_template="):
        load(folder)
    with pytest.raises(UserError, match="no such file"):
        load(folder, chat_template="no_such_template")


def test_template_from_a_file_is_used_as_it_is(make_checkpoint: Any, tmp_path: Path) -> None:
    own = tmp_path / "own.jinja"
    own.write_text("Q {{ messages[0]['content'] }} A")
    template = load(make_checkpoint(PLAIN), chat_template=str(own))
    assert template.text(template.render([Message("user", "hi")]).ids).split() == ["Q", "hi", "A"]
    assert template.hash != load(make_checkpoint(PLAIN)).hash


def test_thinking_switch_only_where_the_template_knows_it(make_checkpoint: Any) -> None:
    plain, switch = make_checkpoint(PLAIN), make_checkpoint(SWITCH)
    for thinking in ("on", "off"):
        with pytest.raises(UserError, match="enable_thinking"):
            load(plain, thinking=thinking)
    assert load(plain).options == {}
    hello = [Message("user", "hi")]
    unset, off = load(switch).render(hello).ids, load(switch, thinking="off").render(hello).ids
    assert len(off) > len(unset)
    assert load(switch, thinking="on").render(hello).ids == unset


def test_prompt_that_ends_inside_thinking_is_noticed(make_checkpoint: Any) -> None:
    assert load(make_checkpoint(PREFILL)).thinking.prefilled
    assert not load(make_checkpoint(SWITCH)).thinking.prefilled


def test_end_tokens_of_generation_config_tokenizer_and_user(make_checkpoint: Any) -> None:
    folder = make_checkpoint(PLAIN, generation={"eos_token_id": [5, 6]})
    template = load(folder, stop_token_ids=[9])
    assert template.stop_ids == (5, 6, template.tokenizer.eos_token_id, 9)
    # older checkpoints say it in config.json alone
    assert 7 in load(make_checkpoint(PLAIN, config={"eos_token_id": 7})).stop_ids


def test_output_ends_at_an_end_token_and_shows_no_special_tokens(make_checkpoint: Any) -> None:
    folder = make_checkpoint(PLAIN)
    tokenizer = load(folder).tokenizer
    turn_end = tokenizer.convert_tokens_to_ids("<turn>")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [turn_end]}))
    template = load(folder)
    ids = tokenizer.encode("say <s> hi<turn>user and more", add_special_tokens=False)
    text = template.decode(ids)
    assert text.split() == ["say", "hi"]


def test_thinking_tags_stay_readable_though_special(make_checkpoint: Any) -> None:
    template = load(make_checkpoint(PREFILL, special=["<think>", "</think>"]))
    ids = template.tokenizer.encode("<think>a</think>say hi</s>", add_special_tokens=False)
    split = split_thinking(template.decode(ids), "stop", template.thinking)
    assert split.content == "say hi"


def test_window_of_nested_configs(make_checkpoint: Any) -> None:
    assert load(make_checkpoint(PLAIN)).window == 64
    nested = {"max_position_embeddings": None, "text_config": {"max_position_embeddings": 99}}
    assert load(make_checkpoint(PLAIN, config=nested)).window == 99


CHANNELS = [
    "<|channel|>",
    "<|message|>",
    "<|start|>",
    "<|end|>",
    "<|return|>",
]
HARMONY = PLAIN.replace("[assistant] ", "<|start|>assistant") + "{# <|channel|> #}"
SAID = (
    "<|channel|>analysis<|message|>Six times seven. 41? No, 42.<|end|>"
    "<|start|>assistant<|channel|>final<|message|>It is 42.<|return|>"
)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {
            "thinking_open": "<|channel|>analysis<|message|>",
            "thinking_close": "<|channel|>final<|message|>",
            "split_thinking": "always",
        },
        {"thinking_open": "analysis", "thinking_close": "assistantfinal"},
    ],
)
def test_channels_are_split_by_their_tokens(settings: Any, make_checkpoint: Any) -> None:
    template = load(make_checkpoint(HARMONY, special=CHANNELS), **settings)
    ids = template.tokenizer.encode(SAID, add_special_tokens=False)
    split = split_thinking(template.decode(ids), "stop", template.thinking)
    assert (split.content, split.status, split.compliant) == ("It is 42.", "ok", True)
    assert split.reasoning == "Six times seven. 41? No, 42."


@pytest.mark.parametrize(
    ("raw", "finish", "content", "status"),
    [
        (SAID, "stop", "It is 42.", "ok"),
        (SAID[:40], "length", "", "truncated"),
        (SAID.split("<|start|>")[0], "stop", "", "truncated"),
        (SAID.removesuffix(".<|return|>"), "length", "It is 42", "truncated"),
        ("Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.", "stop", "Yes.", "ok"),
        (
            "<|channel|>commentary<|message|>Let me look.<|end|>"
            + SAID.replace("final", "final x"),
            "stop",
            "It is 42.",
            "ok",
        ),
        # a server that drops the tokens
        ("analysisSix times seven.assistantfinalIt is 42.", "stop", "It is 42.", "ok"),
        # answers that talk about them
        ("analysis of the text", "stop", "analysis of the text", "ok"),
        ("The token <|channel|> begins it.", "stop", "The token <|channel|> begins it.", "ok"),
    ],
)
def test_channels_of_an_endpoint(raw: str, finish: str, content: str, status: str) -> None:
    split = split_thinking(raw, finish, thinking_spec(ModelConfig(path="m"), None))
    assert (split.content, split.status) == (content, status)


def test_channels_are_left_where_nothing_is_to_be_split() -> None:
    spec = thinking_spec(ModelConfig(path="m", split_thinking="never"), None)
    assert split_thinking(SAID, "stop", spec).content == SAID


@pytest.mark.parametrize(
    ("settings", "raw", "content"),
    [
        # thinking off: an empty block, or one that came all the same
        ({"thinking": "off"}, "<think>\n\n</think>\n\nHi.", "Hi."),
        ({"thinking": "off"}, "<think>so</think>Hi.", "Hi."),
        ({"thinking": "off"}, "\n</think>\n\nHi.", "Hi."),
        ({"thinking": "off"}, "Write <think> first.", "Write <think> first."),
        # the closing tag alone, thinking unset
        ({}, "They say hello.\n</think>\n\nHi.", "Hi."),
        ({}, "They say hello.</think>\n\nHi.", "Hi."),
        ({}, "They say hello.</think>Hi.", "Hi."),
        ({}, "</think>\n\nHi.", "Hi."),
        ({}, "The tag </think> ends it.", "The tag </think> ends it."),
        ({}, "Write `</think>` there.", "Write `</think>` there."),
        ({}, "Write:\n```\n</think>\n```", "Write:\n```\n</think>\n```"),
        ({}, "Write:\n<think>\nx\n</think>\n", "Write:\n<think>\nx\n</think>"),
        # two blocks
        ({}, "<think>a</think>\n<think>b</think>\nHi.", "Hi."),
        ({"thinking": "on"}, "<think>\n</think><think>b</think>Hi.", "Hi."),
        ({"thinking": "on"}, "<think>a</think><think> tags are odd.", "<think> tags are odd."),
        ({"thinking": "on"}, "<think>a</think><think>and then", ""),
        ({"split_thinking": "never"}, "<think>a</think>Hi.", "<think>a</think>Hi."),
    ],
)
def test_thinking_behind_an_endpoint(settings: Any, raw: str, content: str) -> None:
    spec = thinking_spec(ModelConfig(path="m", **settings), None)
    assert split_thinking(raw, "stop", spec).content == content


def test_both_blocks_are_kept_as_reasoning() -> None:
    assert split_thinking("<think>a</think><think>b</think>c", "stop", ON).reasoning == "a\n\nb"


def test_tags_of_other_models_are_known_by_their_template() -> None:
    spec = thinking_spec(ModelConfig(path="m"), "{{ '[THINK]' }} {{ '[/THINK]' }}")
    assert split_thinking("[THINK]a[/THINK]b", "stop", spec).content == "b"
    own = ModelConfig(path="m", thinking_open="<x>", thinking_close="</x>")
    assert thinking_spec(own, "[THINK] [/THINK]").open == "<x>"


def test_thinking_prompt_tells_the_model_and_is_replaced_by_the_users_own() -> None:
    model = ModelConfig(path="m", thinking="prompt", system_prompt="Be kind.")
    system = build_messages(model, QUESTION, [])[0]
    assert system.role == "system"
    assert system.content.startswith("Be kind.\n\n")
    assert "<think>" in system.content
    assert "</think>" in system.content
    own = ModelConfig(path="m", thinking="prompt", custom_thinking_prompt="Think first.")
    assert build_messages(own, QUESTION, [])[0].content == "Think first."
    spec = thinking_spec(model, "no tags")
    assert (spec.split, spec.required) == (True, True)
    assert split_thinking("no thoughts", "stop", spec).compliant is False
    assert split_thinking("<think>a</think>b", "stop", spec).compliant is True


def test_thinking_prompt_needs_no_switch_in_the_template(make_checkpoint: Any) -> None:
    template = load(make_checkpoint(PLAIN), thinking="prompt")
    assert template.options == {}
    assert template.thinking.required


def test_thinking_prompt_uses_the_tags_that_are_set() -> None:
    model = ModelConfig(path="m", thinking="prompt", thinking_open="[T]", thinking_close="[/T]")
    assert "[T]" in build_messages(model, QUESTION, [])[0].content


def test_compliance_by_turn() -> None:
    def turn(number: int, compliant: bool | None) -> Turn:
        return Turn("a", number, "b", 1, "m", 0, "x", "ok", compliant=compliant)

    rows = [turn(1, True), turn(1, False), turn(2, True), turn(2, None)]
    assert thinking_compliance(rows) == {1: 0.5, 2: 1.0}
    assert thinking_compliance([turn(1, None)]) == {}


def test_a_byte_order_mark_is_no_part_of_a_template(make_checkpoint: Any, tmp_path: Path) -> None:
    folder = make_checkpoint(PLAIN)
    marked = tmp_path / "bom.jinja"
    marked.write_text(PLAIN, "utf-8-sig")
    hello = [Message("user", "hi")]
    plain, own = load(folder), load(folder, chat_template=str(marked))
    assert own.render(hello).ids == plain.render(hello).ids
    assert own.hash == plain.hash
    inside = load(make_checkpoint("\ufeff" + PLAIN))
    assert inside.render(hello).ids == plain.render(hello).ids


def test_a_template_in_another_encoding_is_told(make_checkpoint: Any, tmp_path: Path) -> None:
    wide = tmp_path / "wide.jinja"
    wide.write_text(PLAIN, "utf-16")
    with pytest.raises(UserError, match="cannot be read"):
        load(make_checkpoint(PLAIN), chat_template=str(wide))


def test_a_torchvision_made_for_another_torch_is_named(tmp_path, monkeypatch):
    """transformers then imports no model at all, and says that a model's config is at fault."""
    folder = tmp_path / "path"
    (folder / "torchvision").mkdir(parents=True)
    (folder / "torchvision" / "__init__.py").write_text("raise RuntimeError('no operator nms')")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "torchvision", raising=False)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UserError) as error:
        load_template(ModelConfig(path=str(tmp_path)))
    assert "pip uninstall -y torchvision torchaudio torchcodec" in str(error.value)
