"""GPUs: what engines and judge servers need is compared with what there is before all else."""

import pytest

from mtbench_ray.config import ClusterConfig, EngineConfig
from mtbench_ray.errors import UserError
from mtbench_ray.generate import cluster
from mtbench_ray.generate.cluster import count_replicas, fits, require_gpus


@pytest.mark.parametrize(
    ("nodes", "blocks", "room"),
    [
        ([1], [1], True),
        ([1], [1, 1], False),
        ([8], [8], True),
        ([8], [8, 1], False),
        ([4, 4], [8], False),
        ([4, 4], [3, 3, 1, 1], True),
        ([4, 4], [3, 3, 2], False),
        ([2, 4], [2, 2, 2], True),
        ([], [], True),
        ([], [1], False),
    ],
)
def test_a_block_of_gpus_lies_on_one_node(nodes, blocks, room):
    assert fits(nodes, blocks) is room


@pytest.fixture
def nodes(monkeypatch):
    have: list[int] = []
    monkeypatch.setattr(cluster, "gpus_by_node", lambda: have)
    return have


@pytest.mark.parametrize(
    ("have", "engine", "beside", "count"),
    [
        ([1], {}, [], 1),
        ([8], {}, [], 8),
        ([8], {}, [2], 6),
        ([8], {"tensor_parallel": 4}, [1], 1),
        ([8, 8], {"tensor_parallel": 4}, [4], 3),
        ([8], {"replicas": 3}, [2, 2], 3),
        ([8], {"replicas": 3, "tensor_parallel": 2}, [2], 3),
    ],
)
def test_engines_that_have_room_beside_a_judge(nodes, have, engine, beside, count):
    nodes += have
    assert count_replicas(EngineConfig(**engine), ClusterConfig(), 20, 80, beside) == count


@pytest.mark.parametrize(
    ("have", "engine", "beside", "said"),
    [
        ([1], {}, [1], "2 GPUs are needed (1 engine of 1 and judge servers of 1) and"),
        ([8], {"tensor_parallel": 8}, [1], "9 GPUs are needed"),
        ([8], {"replicas": 7}, [2], "9 GPUs are needed (7 engines of 1 and judge servers of 2)"),
        ([4, 4], {"tensor_parallel": 8}, [], "the cluster has 8 (4+4 by node)"),
    ],
)  # fmt: skip
def test_what_would_wait_for_ever_is_told_with_need_and_have(nodes, have, engine, beside, said):
    nodes += have
    with pytest.raises(UserError) as error:
        count_replicas(EngineConfig(**engine), ClusterConfig(), 20, 80, beside)
    assert said in error.value.message
    assert ("judge.schedule=after" in error.value.hint) is bool(beside)


def test_a_judge_alone_that_never_fits_names_its_own_setting(nodes):
    nodes += [4, 4]
    with pytest.raises(UserError, match="8 GPUs are needed") as error:
        require_gpus(0, 1, [8], ClusterConfig())
    assert "judge.tensor_parallel" in error.value.hint
