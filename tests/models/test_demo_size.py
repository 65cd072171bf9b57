"""How many questions the demo takes on a machine."""

import json

import pytest

from mtbench_ray.run import demo_size
from mtbench_ray.run.demo_size import QUESTION_STEPS, START_STEPS, Size, choose, settings


def test_a_fast_machine_takes_all_questions(tmp_path, monkeypatch):
    monkeypatch.setattr(demo_size, "time_step", lambda: 0.01)
    assert choose(0.01).questions == 80
    assert settings([f"workspace={tmp_path}"]) == ([], "")


def test_a_slow_machine_takes_what_fits_evenly_and_at_least_one_of_each_category():
    step = 300 / (START_STEPS + 45 * QUESTION_STEPS)  # 45 questions would fit
    size = choose(step)
    assert size.questions == 40
    assert size.seconds <= 300 < size.all_seconds
    assert choose(10.0).questions == 8
    assert choose(step, tokens=512).questions < 40


def test_what_would_take_hardly_longer_is_not_cut():
    assert choose(330 / (START_STEPS + 80 * QUESTION_STEPS)).questions == 80


def test_the_choice_is_kept_in_the_workspace_and_told_with_the_way_to_all(tmp_path, monkeypatch):
    monkeypatch.setattr(demo_size, "time_step", lambda: 10.0)
    workspace = tmp_path / "new"
    first = settings([f"workspace={workspace}", "quiet=true"])
    assert first[0] == ["limit=8", "limit_by=category"]
    assert "8 of the 80 questions, 1 of each category" in first[1]
    assert "bash launch/demo.sh limit=80" in first[1]
    monkeypatch.setattr(demo_size, "time_step", lambda: 0.01)
    assert settings([f"workspace={workspace}"]) == first
    assert Size(**json.loads((workspace / "demo.json").read_text())).questions == 8


@pytest.mark.parametrize(
    "typed", [["limit=80"], ["model=a"], ["judge.model=b"], ["-m", "model=a,b"], ["stage=answers"]]
)
def test_your_own_choice_is_left_alone_and_nothing_is_timed(tmp_path, monkeypatch, typed):
    monkeypatch.setattr(demo_size, "time_step", lambda: 1 / 0)
    assert settings([*typed, f"workspace={tmp_path}"]) == ([], "")


def test_the_step_is_timed():
    assert 0 < demo_size.time_step() < 60
