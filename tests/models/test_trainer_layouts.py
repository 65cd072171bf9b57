"""What the common trainers write is found, and what no engine loads is named with its tool."""

import json
from pathlib import Path

import pytest
from small_models import files_of, small_model

from mtbench_ray.cli.main import main
from mtbench_ray.config import ModelConfig
from mtbench_ray.errors import UserError
from mtbench_ray.models.arrivals import once
from mtbench_ray.models.discovery import find, step_of
from mtbench_ray.models.whole import why_not_whole


def below(root: Path, **more) -> list[str]:
    models = find(ModelConfig(root=str(root), **more))
    return [str(Path(m.adapter or m.path).relative_to(root)) for m in models]


def touch(folder: Path, *names: str) -> Path:
    """Empty files, and folders where a name ends with a slash."""
    for name in names:
        path = folder / name
        if name.endswith("/"):
            path.mkdir(parents=True, exist_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("")
    return folder


@pytest.mark.parametrize(
    "names",
    [
        ["step_100", "step_200", "step_1000"],
        ["checkpoint-100", "checkpoint-200"],
        ["global_step_120/huggingface", "global_step_240/huggingface"],
        ["global_step_120/actor/huggingface", "global_step_240/actor/huggingface"],
        ["0120", "0240", "1200"],
        ["iter_0000120", "iter_0000240"],
        ["epoch_3", "epoch_10", "final"],
        ["epoch_0_step_9/model/consolidated", "epoch_0_step_10/model/consolidated"],
        ["checkpoint-100", "final"],
    ],
)
@pytest.mark.parametrize("shards", [1, 3])
def test_layouts_of_common_trainers_in_the_order_of_training(names, shards, tmp_path):
    for name in reversed(names):
        small_model(tmp_path / name, shards=shards)
    touch(tmp_path, "logs/", "runs/", "trainer_state.json", "latest_checkpointed_iteration.txt")
    assert below(tmp_path) == names


def test_an_adapter_is_one_beside_the_config_of_its_base_too(tmp_path):
    plain = small_model(tmp_path / "checkpoint-1", base="org/base")
    beside = small_model(tmp_path / "checkpoint-2", base="org/base")
    (beside / "config.json").write_bytes(files_of()["config.json"])
    merged = small_model(small_model(tmp_path / "checkpoint-3", base="org/base"))
    models = find(ModelConfig(root=str(tmp_path)))
    assert [(m.path, m.adapter) for m in models] == [
        ("org/base", str(plain)), ("org/base", str(beside)), (str(merged), None),
    ]  # fmt: skip


def test_a_run_of_runs(tmp_path):
    for run, count in (("a", 3), ("b", 2)):
        for step in range(count):
            small_model(tmp_path / run / f"step_{step}")
    assert below(tmp_path, runs="*") == ["a/step_0", "a/step_1", "a/step_2", "b/step_0", "b/step_1"]
    assert below(tmp_path, runs="*", last=1) == ["a/step_2", "b/step_1"]
    assert below(tmp_path, runs="b", every=2) == ["b/step_1"]
    with pytest.raises(UserError, match="its folders a, b do") as caught:
        below(tmp_path)
    assert "model.runs='*'" in caught.value.hint


def test_a_pattern_finds_what_is_not_called_as_usual(tmp_path):
    for step in (9, 10):
        small_model(tmp_path / "weights" / f"it{step}-x" / "export")
    assert below(tmp_path, pattern="weights/it{step}-*/export") == [
        "weights/it9-x/export", "weights/it10-x/export",
    ]  # fmt: skip
    with pytest.raises(UserError, match=r"model.pattern=it must have one \{step\}"):
        below(tmp_path, pattern="it")


def test_a_link_to_a_checkpoint_is_no_second_one(tmp_path):
    small_model(tmp_path / "step_5")
    (tmp_path / "final").symlink_to("step_5")
    assert below(tmp_path) == ["step_5"]


@pytest.mark.parametrize(
    "name",
    ["tmp-checkpoint-9", ".step_9.tmp", "step_9.incomplete", "_tmp_step_9", "step_9.part"],
)
def test_a_folder_that_is_still_to_be_renamed_is_none(name, tmp_path):
    small_model(tmp_path / "step_5")
    small_model(tmp_path / name)
    assert below(tmp_path) == ["step_5"]


@pytest.mark.parametrize(
    ("names", "what", "tool"),
    [
        (["actor/model_world_size_2_rank_0.pt", "actor/model_world_size_2_rank_1.pt",
          "actor/huggingface/config.json"], "verl", "verl.model_merger merge --backend fsdp"),
        (["actor/dist_ckpt/__0_0.distcp", "actor/huggingface/config.json"], "verl",
         "--backend megatron"),
        (["mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt"], "ZeRO",
         "zero_to_fp32"),
        (["config.json", "global_step9/mp_rank_00_model_states.pt", "zero_to_fp32.py"], "ZeRO",
         "zero_to_fp32"),
        (["mp_rank_00/model_optim_rng.pt"], "Megatron", "export_ckpt"),
        (["common.pt", "__0_0.distcp", ".metadata"], "Megatron", "export_ckpt"),
        ([".metadata", "__0_0.distcp", "__1_0.distcp"], "FSDP", "convert_to_hf.py"),
        (["config.json", "pytorch_model_fsdp_0/__0_0.distcp", "optimizer_0/__0_0.distcp"],
         "accelerate", "accelerate merge-weights"),
        (["lit_model.pth", "model_config.yaml"], "LitGPT", "litgpt convert_from_litgpt"),
    ],
)  # fmt: skip
def test_sharded_state_is_an_error_that_names_the_tool(names, what, tool, tmp_path, capsys):
    folder = touch(tmp_path / "step_9", *names)
    for config in folder.rglob("config.json"):
        config.write_text("{}")
    with pytest.raises(UserError, match=what) as caught:
        find(ModelConfig(root=str(tmp_path)))
    assert tool in caught.value.hint
    assert main(["list", "checkpoints", f"root={tmp_path}"]) == 0
    out = capsys.readouterr().out
    assert what in out
    assert tool in out
    assert "taken" not in out


def test_what_is_not_whole_is_left_out_with_why(tmp_path, capsys):
    for step in (1, 2, 10):
        small_model(tmp_path / f"step_{step}", shards=2)
    (tmp_path / "step_10" / "model-00002-of-00002.safetensors").unlink()
    remarks: list[str] = []
    assert [step_of(m.path) for m in find(ModelConfig(root=str(tmp_path)), remarks)] == [1, 2]
    assert remarks == [
        f"{tmp_path}/step_10 is left out: lacks weights: model-00002-of-00002.safetensors"
    ]
    with pytest.raises(UserError, match="no checkpoint of step 10") as caught:
        find(ModelConfig(root=str(tmp_path), steps=[10]))
    assert "lacks weights" in caught.value.hint
    assert main(["list", "checkpoints", f"root={tmp_path}"]) == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    assert [line.split()[0] for line in lines] == ["1", "2", "10"]
    assert [line.split(maxsplit=2)[2] for line in lines] == [
        "taken", "taken", "lacks weights: model-00002-of-00002.safetensors",
    ]  # fmt: skip


def test_list_checkpoints_says_what_it_wants(tmp_path, capsys):
    assert main(["list", "checkpoints"]) == 2
    assert "root=DIR" in capsys.readouterr().err
    assert main(["list", "checkpoints", f"root={tmp_path}"]) == 2
    assert "model.pattern=" in capsys.readouterr().err
    small_model(tmp_path / "a" / "it7")
    line = ["list", "checkpoints", f"model.root={tmp_path}", "model.runs=*", "pattern=it{step}"]
    assert main(line) == 0
    assert capsys.readouterr().out.splitlines()[1].endswith("a/it7  taken")


def broken(folder: Path, how: str) -> None:
    weights = folder / "model-00001-of-00002.safetensors"
    content = weights.read_bytes()
    index = folder / "model.safetensors.index.json"
    if how == "short":
        weights.write_bytes(content[:-1])
    elif how == "long":
        weights.write_bytes(content + b"x")
    elif how == "head":
        weights.write_bytes(content[:20])
    elif how == "nothing":
        weights.write_bytes(b"")
    elif how == "index":
        index.unlink()
    elif how == "other index":
        named = json.loads(index.read_text())
        named["weight_map"]["w9"] = weights.name
        index.write_text(json.dumps(named))
    elif how == "half json":
        (folder / "tokenizer.json").write_text('{"version": ')
    elif how == "temporary":
        (folder / "model.safetensors.tmp").write_text("")
    elif how == "rsync":
        (folder / ".tokenizer.json.a1B2c3").write_text("")
    else:
        (folder / "config.json").unlink()


@pytest.mark.parametrize(
    ("how", "said"),
    [("short", "model-00001"), ("long", "its header says"), ("head", "model-00001"),
     ("nothing", "model-00001"), ("index", "index"), ("other index", "lacks w9"),
     ("half json", "tokenizer.json"), ("temporary", "still being written"),
     ("rsync", "still being written"), ("config", "no config.json")],
)  # fmt: skip
def test_a_folder_with_a_part_that_is_not_whole(how, said, tmp_path):
    folder = small_model(tmp_path / "step_1", shards=2)
    assert why_not_whole(folder) == ""
    broken(folder, how)
    assert said in why_not_whole(folder)
    assert once(ModelConfig(root=str(tmp_path)))[0].state == "incomplete"


def test_old_pytorch_files_are_whole_where_their_archive_is(tmp_path):
    import zipfile

    folder = small_model(tmp_path / "step_1")
    (folder / "model.safetensors").unlink()
    with zipfile.ZipFile(folder / "pytorch_model.bin", "w") as archive:
        archive.writestr("data.pkl", "x" * 100)
    assert why_not_whole(folder) == ""
    content = (folder / "pytorch_model.bin").read_bytes()
    (folder / "pytorch_model.bin").write_bytes(content[:-30])
    assert why_not_whole(folder) == "pytorch_model.bin is not whole"
