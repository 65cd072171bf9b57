"""Finding checkpoints by step."""

import json

import pytest
from small_models import small_model

from mtbench_ray.config import ModelConfig
from mtbench_ray.errors import UserError
from mtbench_ray.models.discovery import find, run_of, step_of


@pytest.fixture
def run(tmp_path):
    for name in ("step_120", "step_40", "checkpoint-240", "epoch=1-step=80", "global_step360"):
        small_model(tmp_path / name)
    (tmp_path / "step_500").mkdir()  # still being written: no config yet
    (tmp_path / "logs").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("/r/step_120", 120),
        ("checkpoint-0040", 40),
        ("epoch=6-step=100", 100),
        ("epoch=6-step=100.ckpt", 100),
        ("global_step7/", 7),
        ("epoch_3", 3),
        ("pre_step_1k", 1000),
        ("step_1.5M", 1_500_000),
        ("step_1.5", 1),
        ("step_100kb", 100),
        ("step_12345678901234567890", 12345678901234567890),
        ("iter1_checkpoint-500", 500),
        ("step2_sft_checkpoint-700", 700),
        ("run-step1-v2_checkpoint-300", 300),
        ("iter_5_step_20", 20),
        ("step-100_eval-5", 100),
        ("checkpoint-1e3", 1000),
        ("checkpoint-5e2x", 5),
        ("step-1,000", 1000),
        ("step_1,000,000", 1_000_000),
        ("step_12,34", 12),
        ("epoch-2.5", 2.5),
        ("epoch_3.0", 3),
        ("epoch=6.ckpt", 6),
        ("stage1-step140000-tokens588B", 140_000),
        ("step1000-hf", 1000),
        ("epoch=0-step=1000", 1000),
        ("global_step_20_actor", 20),
        ("llama-3.2-1b", None),
        ("timestep_model", None),
        ("final", None),
        ("/r/final", None),
        ("/r/0120/", 120),
        ("0120", None),
        ("/r/iter_0000120", 120),
        ("/r/iteration_7", 7),
        ("/r/global_step_120/huggingface", 120),
        ("/r/global_step_120/actor/huggingface/", 120),
        ("/r/global_steps_120/actor", 120),
        ("/r/0120/hf", 120),
        ("/r/hf", None),
        ("/r/x/model", None),
    ],
)
def test_steps_are_read_from_names(name, step):
    assert step_of(name) == step


@pytest.mark.parametrize(
    "name",
    ["/r/step_7", "/r/0120", "/r/final", "/r/global_step_120/actor/huggingface", "/r/0120/hf",
     "/r/epoch_3/hf", "/r/iter_0000120/"],
)  # fmt: skip
def test_checkpoints_of_all_layouts_are_of_their_run(name):
    assert run_of(name) == "/r"


def steps(models):
    return [step_of(model.path) for model in models]


def test_checkpoints_are_found_in_the_order_of_training(run):
    assert steps(find(ModelConfig(root=str(run)))) == [40, 80, 120, 240, 360]


def test_a_selection(run):
    assert steps(find(ModelConfig(root=str(run), steps=[120, 240]))) == [120, 240]
    assert steps(find(ModelConfig(root=str(run), every=2))) == [40, 120, 360]
    assert steps(find(ModelConfig(root=str(run), last=2))) == [240, 360]


def test_equal_folder_names_of_two_runs_stay_two_models(run, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    small_model(other / "step_40")
    labels = {find(ModelConfig(root=str(root)))[0].label for root in (run, other)}
    assert len(labels) == 2


def test_adapters_are_found_with_their_base(tmp_path):
    folder = small_model(tmp_path / "checkpoint-10", base="org/base")
    (model,) = find(ModelConfig(root=str(tmp_path)))
    assert (model.path, model.adapter) == ("org/base", str(folder))


def test_the_last_checkpoint_of_a_round_is_the_last_one(tmp_path):
    for name in ("iter1_checkpoint-500", "iter1_checkpoint-1000", "iter1_checkpoint-1500"):
        small_model(tmp_path / name)
    models = find(ModelConfig(root=str(tmp_path)))
    assert steps(models) == [500, 1000, 1500]
    assert {run_of(model.path) for model in models} == {f"{tmp_path}/iter1"}
    (last,) = find(ModelConfig(root=str(tmp_path), last=1))
    assert last.path.endswith("checkpoint-1500")


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"base_model_name_or_path": None}, "names no base model"),
        ({"base_model_name_or_path": ""}, "names no base model"),
        ({}, "names no base model"),
        ([], "names no base model"),
        ({"base_model_name_or_path": "/home/trainer/base"}, "is not there: /home/trainer/base"),
    ],
)
def test_an_adapter_without_its_base_takes_the_one_that_is_named(config, said, tmp_path):
    small_model(tmp_path / "checkpoint-30", base="any")
    (tmp_path / "checkpoint-30" / "adapter_config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=said) as caught:
        find(ModelConfig(root=str(tmp_path)))
    assert "model.base=" in caught.value.hint
    (model,) = find(ModelConfig(root=str(tmp_path), base="org/base"))
    assert (model.path, model.base) == ("org/base", None)


def test_mistakes(run, tmp_path):
    empty = tmp_path / "logs"
    for model, message in [
        (ModelConfig(), "needs a folder"),
        (ModelConfig(root=str(run / "nowhere")), "is not a folder"),
        (ModelConfig(root=str(empty)), "no checkpoint folder"),
        (ModelConfig(root=str(run), steps=[41]), "step 41"),
        (ModelConfig(root=str(run), last=0), "no checkpoint is left"),
    ]:
        with pytest.raises(UserError) as error:
            find(model)
        assert message in error.value.message
