"""Prompts of checkpoints without transformers: the same bytes, or left to transformers."""

import json
import subprocess
import sys
from datetime import datetime

import pytest
from checkpoints import same_without_transformers, write_checkpoint

from mtbench_ray.config import ModelConfig
from mtbench_ray.errors import UserError
from mtbench_ray.models.chat_template import SHIPPED, load_template, look_at_template
from mtbench_ray.models.template_file import read_template_file

HARD = {
    "blocks are trimmed": "{% for m in messages %}\n  {% if true %}\n  {{ m.content }}\n"
    "  {% endif %}\n{%- endfor %}\n\n",
    "json is no html": "{{ messages | tojson }}{{ messages[0] | tojson(indent=2) }}",
    "loop controls": "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}"
    "{{ m['content'] }}{% endfor %}",
    "marks for training": "{% set x = 'out' %}{% for m in messages %}{% generation %}"
    "{% set x = 'in' %}\n{{ m['content'] }}{{ x }}\n{% endgeneration %}\n{{ x }}{% endfor %}",
    "a name that nobody knows": "{{ date_string }}[{{ tools }}]{{ messages[0]['content'] }}",
    "several ends": "{{ bos_token + messages[-1]['content'] + eos_token }}",
    "tools": "{% if tools is not none %}tools{% else %}none{% endif %}"
    "{% if documents is defined %}{{ documents }}{% endif %}",
    "namespace": "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}"
    "{% endfor %}{{ ns.n }}{{ messages[0].content.split(' ')[0] | upper | trim }}",
    "macro": "{% macro say(m) %}<{{ m.role | title }}>{{ m.content }}{% endmacro %}"
    "{% for m in messages %}{{ say(m) }}{% endfor %}",
    "refused": "{{ raise_exception('no ' + messages[0]['role']) }}",
    "unsafe": "{{ messages.append(1) }}",
    "private": "{{ messages.__class__.__mro__ }}",
    "alternating": "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{{ m.content }}{% endfor %}",
}


@pytest.mark.parametrize("source", HARD.values(), ids=HARD)
def test_the_text_is_that_of_transformers(source, tmp_path):
    folder = write_checkpoint(tmp_path / "m", "{{ messages[0]['content'] }}")
    template = load_template(ModelConfig(path=str(folder)))
    same_without_transformers(template.__class__(**(vars(template) | {"source": source})), folder)


@pytest.mark.parametrize("name", [f.stem for f in SHIPPED.glob("*.jinja")])
def test_templates_that_are_shipped_are_covered(name, tmp_path):
    folder = write_checkpoint(tmp_path / "m", None)
    same_without_transformers(
        load_template(ModelConfig(path=str(folder), chat_template=name)), folder
    )


def test_the_date_is_todays(tmp_path):
    folder = write_checkpoint(tmp_path / "m", "{{ strftime_now('%Y') }}")
    look = look_at_template(ModelConfig(path=str(folder)))
    assert look.prompt == str(datetime.now().year)


def settings(folder, **changes):
    path = folder / "tokenizer_config.json"
    found = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in found.items() if v != "gone"}))
    return folder


def test_a_template_in_the_settings_and_tokens_with_their_kinds(tmp_path):
    folder = write_checkpoint(tmp_path / "m", None)
    source = "{{ bos_token }}{{ messages[0]['content'] }}"
    settings(folder, chat_template=[{"name": "tool_use", "template": "x"},
                                    {"name": "default", "template": source}],
             bos_token={"__type": "AddedToken", "content": "<s>", "lstrip": False,
                        "normalized": False, "rstrip": False, "single_word": False,
                        "special": True})  # fmt: skip
    template = load_template(ModelConfig(path=str(folder)))
    assert template.source == source
    assert read_template_file(folder).source == source
    same_without_transformers(template, folder)


@pytest.mark.parametrize(
    "change",
    [
        {"auto_map": {"AutoTokenizer": ["own.py", None]}},
        {"chat_template": [{"name": "tool_use", "template": "x"}]},
    ],
)
def test_what_only_transformers_reads_is_left_to_it(change, tmp_path):
    folder = write_checkpoint(tmp_path / "m", None)
    assert read_template_file(settings(folder, **change)) is None


def test_tokens_that_only_transformers_knows_are_left_to_it(tmp_path):
    folder = write_checkpoint(tmp_path / "m", "{{ pad_token }}{{ messages[0].content }}")
    file = read_template_file(settings(folder, pad_token="gone"))
    assert not file.covers(file.source)
    assert file.covers("{{ messages[0].content }}")
    named = settings(folder, extra_special_tokens={"image_token": "<turn>"})
    assert not read_template_file(named).covers("{{ image_token }}")
    (folder / "special_tokens_map.json").write_text('{"eos_token": "<turn>"}')
    assert read_template_file(folder) is None


@pytest.mark.parametrize("broken", ["{", "{}", None])
def test_a_broken_tokenizer_is_told_in_the_words_of_transformers(broken, tmp_path):
    folder = write_checkpoint(tmp_path / "m", "{{ messages[0].content }}")
    if broken is None:
        (folder / "tokenizer.json").unlink()
    else:
        (folder / "tokenizer.json").write_text(broken)
    model = ModelConfig(path=str(folder))
    assert read_template_file(folder) is None
    with pytest.raises(UserError, match="its tokenizer does not load") as error:
        look_at_template(model)
    with pytest.raises(UserError) as other:
        load_template(model)
    assert str(error.value) == str(other.value)


def test_a_template_that_is_no_jinja_is_told(tmp_path):
    folder = write_checkpoint(tmp_path / "m", "{% if %}")
    with pytest.raises(UserError, match="its chat template does not work"):
        look_at_template(ModelConfig(path=str(folder)))


def test_prompts_are_checked_without_transformers_and_torch(tmp_path):
    folder = write_checkpoint(tmp_path / "m", "{{ bos_token }}{{ messages[0].content }}")
    script = (
        "import sys\n"
        "from mtbench_ray.config import EngineConfig, ModelConfig\n"
        "from mtbench_ray.models.fingerprint import check_prompts\n"
        f"model = ModelConfig(path={str(folder)!r}, system_prompt='Be kind.')\n"
        "print(check_prompts(model, EngineConfig(max_model_len=9999)))\n"
        "print([m for m in ('transformers', 'torch', 'vllm', 'ray') if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    notes, heavy = done.stdout.splitlines()
    assert "above the model's 64" in notes
    assert heavy == "[]"
