"""What engines wrote on their nodes comes to the workspace: its end, and no secret."""

import platform

from shards import make_shard, rows_of, run_shard

from mtbench_ray.config import ModelConfig
from mtbench_ray.generate.engine_logs import tail


def test_the_end_of_both_outputs_is_kept(tmp_path):
    log = tmp_path / "worker-1.err"
    log.write_text("x" * 100 + "the end")
    log.with_suffix(".out").write_text("said")
    assert tail(str(log), size=7) == "said\n... 100 bytes left out ...\nthe end"
    assert tail(str(tmp_path / "none.err")) == ""


def test_a_checkpoint_that_a_node_lacks_names_the_node(tmp_path):
    shard = make_shard(
        [1], kind="vllm", model=ModelConfig(path=str(tmp_path / "gone"), content="planned")
    )
    turns = rows_of(run_shard(shard)).values()
    assert {turn.status for turn in turns} == {"error"}
    for turn in turns:
        assert f"no such folder: {tmp_path / 'gone'} (on node {platform.node()})" in turn.error
