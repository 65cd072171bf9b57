"""Judge prompt files: checks at load, one-pass filling, the shipped rubric."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from verdicts import SINGLE, prompt_file

from mtbench_ray.errors import UserError
from mtbench_ray.judges.prompts import PLACEHOLDERS, builtin_prompts, fill, load_prompts


def test_fastchat_names_and_own_names_get_the_same_roles():
    own = {f"my-{place}": text for place, text in enumerate(SINGLE.values())}
    for templates in (SINGLE, own):
        prompts = load_prompts("mine.jsonl", prompt_file(templates))
        names = [
            prompts.pick("single", turn, references).name
            for turn in (1, 2)
            for references in (False, True)
        ]
        assert names == list(templates)
    assert prompts.name == "mine"
    assert (prompts.verdict, prompts.scale) == ("brackets", (1, 10))


def test_bom_crlf_blank_lines_and_further_fields_are_fine():
    text = prompt_file(category="general", description="x", output_format="[[rating]]")
    assert len(load_prompts("f", "\ufeff\n" + text.replace("\n", "\r\n\r\n")).prompts) == 4


def test_every_placeholder_must_be_there():
    for name, template in SINGLE.items():
        role = load_prompts("f", prompt_file()).prompts[name].role
        for placeholder in PLACEHOLDERS[role]:
            broken = SINGLE | {name: template.replace(f"{{{placeholder}}}", "")}
            with pytest.raises(UserError, match=rf"f line \d: prompt '{name}' lacks") as caught:
                load_prompts("f", prompt_file(broken))
            assert f"{{{placeholder}}}" in caught.value.message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "f holds no judge prompts"),
        ("{", "f line 1 is not JSON"),
        ("3", "f line 1 is not a JSON object"),
        ('{"name": "x"}', "f line 1: a prompt needs the text field 'type'"),
        (prompt_file(type="triple"), "f line 1: prompt 'single-v1' has type 'triple'"),
        (prompt_file(type="pairwise"), "by its name it is 'single'"),
        (prompt_file(SINGLE | {"single-v1": "{question} {answer} {anwser}"}), r"\{anwser\}"),
        (prompt_file(dict(list(SINGLE.items())[:3])), "f has no single prompt for turn 2 with ref"),
        (prompt_file() + prompt_file(), "both the single prompt for turn 1 without references"),
        (prompt_file(SINGLE | {"own": SINGLE["single-v1"]}), "'single-v1' and 'own' are both"),
        (prompt_file(verdict="stars"), "verdict must be"),
        (prompt_file(scale=[5, 1]), "scale must be"),
        (prompt_file(scale=3), "scale must be"),
        (prompt_file(scale=[1, None, 5]), "scale must be"),
        (prompt_file().replace("}\n", ', "scale": [1, 5]}\n', 1), "same verdict and scale"),
    ],
)
def test_a_bad_file_is_named_with_line_and_prompt(text, message):
    with pytest.raises(UserError, match=message):
        load_prompts("f", text)


def test_the_hash_follows_everything_that_changes_a_verdict():
    texts = [
        prompt_file(),
        prompt_file(system_prompt="T"),
        prompt_file(scale=[1, 5]),
        prompt_file(verdict="tags"),
        prompt_file(SINGLE | {"single-v1": "{question} {answer}"}),
    ]
    assert len({load_prompts("f", text).prompts["single-v1"].hash for text in texts}) == len(texts)


@pytest.mark.parametrize(
    ("template", "filled"),
    [
        ("{a}{b}", "{b}}}{{x"),
        ("{{a}} {a}", "{a} {b}}}"),
        ('{{"rating": {b}}}', '{"rating": {{x}'),
        ('{"x": {"y": {}}} {a}', '{"x": {"y": {}}} {b}}}'),
        ("\\frac{1}{2} {{a}} {a}", "\\frac{1}{2} {{b}}}} {b}}}"),
        ("{a!r} {a}", "{a!r} {b}}}"),
        ("{c} {a}", "{c} {b}}}"),
        ("{ a } {a", "{ a } {a"),
    ],
)
def test_one_pass_over_known_placeholders(template, filled):
    assert fill(template, {"a": "{b}}}", "b": "{{x"}) == filled


TEXT = st.text(st.characters(exclude_categories=()), max_size=40)
PARTS = st.lists(st.sampled_from(["{{", "}}", "{a}", "{b}", "x", "\n", "\ud800"]), max_size=20)


@given(PARTS.map("".join), TEXT, TEXT)
def test_format_strings_render_as_str_format_does(template, a, b):
    assert fill(template, {"a": a, "b": b}) == template.format(a=a, b=b)


@given(TEXT, TEXT)
def test_no_template_raises_and_values_stay_whole(template, value):
    assert fill(template + "{a}", {"a": value}).endswith(value)


def test_the_shipped_rubric():
    prompts = load_prompts("rubric5", builtin_prompts("rubric5"))
    assert (prompts.name, prompts.verdict, prompts.scale) == ("rubric5", "tags", (1, 5))
    for turn in (1, 2):
        for references in (False, True):
            prompt = prompts.pick("single", turn, references)
            assert "<feedback>" in prompt.system
            assert "<score>" in prompt.system
            assert ("{ref_answer_1}" in prompt.template) == references
    with pytest.raises(UserError, match="'rubric5' have no pairwise prompts"):
        prompts.require("pairwise")
    with pytest.raises(UserError, match="'rubric5' have no pairwise prompts"):
        prompts.pick("pairwise", 1, False)
    with pytest.raises(UserError, match="no single prompt for turn 3"):
        prompts.pick("single", 3, False)
    prompts.require("single")


def test_an_unknown_shipped_set_names_the_nearest():
    with pytest.raises(UserError, match="rubric") as caught:
        builtin_prompts("rubric")
    assert "rubric5" in caught.value.hint
