"""Finding checkpoints by step."""

import json

import pytest

from mtbench_ray.checkpoints import find, step_of
from mtbench_ray.config import ModelConfig
from mtbench_ray.errors import UserError


@pytest.fixture
def run(tmp_path):
    for name in ("step_120", "step_40", "checkpoint-240", "epoch=1-step=80", "global_step360"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
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
        ("llama-3.2-1b", None),
        ("timestep_model", None),
        ("final", None),
    ],
)
def test_steps_are_read_from_names(name, step):
    assert step_of(name) == step


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
    (other / "step_40").mkdir()
    (other / "step_40" / "config.json").write_text("{}")
    labels = {find(ModelConfig(root=str(root)))[0].label for root in (run, other)}
    assert len(labels) == 2


def test_adapters_are_found_with_their_base(tmp_path):
    folder = tmp_path / "checkpoint-10"
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "org/base"}))
    (model,) = find(ModelConfig(root=str(tmp_path)))
    assert (model.path, model.adapter) == ("org/base", str(folder))


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
