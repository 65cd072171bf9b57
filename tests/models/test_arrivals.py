"""A folder that grows in slow motion is taken once it is whole, and never before. No test waits."""

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_models import files_of, small_model

from mtbench_ray.config import ModelConfig
from mtbench_ray.models.arrivals import Arrivals
from mtbench_ray.models.whole import newest_change

SETTLE_S = 30.0


@dataclass
class Training:
    """A trainer that writes into a folder, and a clock that it moves."""

    root: Path
    now: float = 1000.0
    changed: float = 1000.0
    arrivals: Arrivals = field(init=False)

    def __post_init__(self):
        model = ModelConfig(root=str(self.root))
        self.arrivals = Arrivals(model, SETTLE_S, lambda _: self.changed)

    def passes(self, seconds):
        self.now += seconds

    def look(self):
        return self.arrivals.look(self.now, self.now)

    def states(self):
        return {one.candidate.folder.name: one.state for one in self.look()}


def writing(name, content, how, cuts):
    """Steps that write one file: a function of the folder each."""
    if how == "renamed":
        hidden = f".{name}.tmp"
        first = [lambda folder: (folder / hidden).write_bytes(content[: len(content) // 2])]
        return [
            *first,
            lambda folder: (folder / hidden).write_bytes(content),
            lambda folder: (folder / hidden).rename(folder / name),
        ]
    ends = sorted({min(cut, len(content)) for cut in cuts} | {len(content)})
    if how == "made long first":  # as a download that reserves its place
        zeros = [lambda folder: (folder / name).write_bytes(bytes(len(content)))]
    else:
        zeros = []
    return [
        *zeros,
        *(
            lambda folder, end=end: (folder / name).write_bytes(
                content[:end] + bytes(len(content) - end if zeros else 0)
            )
            for end in ends
        ),
    ]


@st.composite
def writers(draw):
    """A checkpoint, the steps in which it is written, and the pause after each."""
    files = files_of(draw(st.floats(1, 9)), draw(st.sampled_from([1, 2, 3])))
    if draw(st.booleans()):
        files = files_of(2.0, base="org/base")
    steps = []
    for name in draw(st.permutations(sorted(files))):
        how = draw(st.sampled_from(["at once", "in parts", "renamed", "made long first"]))
        cuts = [] if how == "at once" else draw(st.lists(st.integers(0, 400), max_size=3))
        steps += [(name, step) for step in writing(name, files[name], how, cuts)]
    pauses = draw(st.lists(st.sampled_from([0.0, 1.0, 29.0, 31.0, 4000.0]), min_size=len(steps),
                           max_size=len(steps)))  # fmt: skip
    return files, steps, pauses, draw(st.booleans())


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(writers())
def test_a_folder_that_grows_in_slow_motion_is_never_taken_too_early(writer):
    files, steps, pauses, under_another_name = writer
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        training = Training(root)
        folder = root / ("tmp-step_7" if under_another_name else "step_7")
        folder.mkdir()

        def there():
            return {path.name: path.read_bytes() for path in folder.iterdir()}

        def look():
            for one in training.look():
                if one.state == "whole":
                    assert there() == files
                    assert one.candidate.folder.name == "step_7"

        for number, ((_, step), pause) in enumerate(zip(steps, pauses, strict=True)):
            step(folder)
            training.changed = training.now
            look()
            # A trainer rests for longer only where it can be seen that something is to come.
            weights = [name for name in files if "model" in name]
            seen = any(there().get(name) != files[name] for name in weights)
            rests = pause < SETTLE_S or (seen and _shows(there(), files, weights))
            if number < len(steps) - 1:
                training.passes(pause if rests else 29.0)
                look()
        if under_another_name:
            folder = folder.rename(root / "step_7")
            training.changed = training.now
            assert training.states() == {"step_7": "changing"}
        training.passes(SETTLE_S - 1)
        assert training.states() == {"step_7": "changing"}
        training.passes(2)
        assert training.states() == {"step_7": "whole"}


def _shows(there, files, weights):
    """Whether it can be seen that weights are to come: one is not there, or is shorter."""
    return any(len(there.get(name, b"")) < len(files[name]) for name in weights)


def test_one_that_lay_there_before_is_taken_at_once(tmp_path):
    small_model(tmp_path / "step_1")
    training = Training(tmp_path, changed=1000.0 - SETTLE_S)
    assert training.states() == {"step_1": "whole"}


def test_the_age_of_a_folder_is_that_of_its_newest_file_whatever_a_copy_says(tmp_path):
    import os
    import time

    folder = small_model(tmp_path / "step_1")
    os.utime(folder / "config.json", (1, 1))
    os.utime(folder, (1, 1))
    assert time.time() - newest_change(folder) < 60


def test_a_clock_that_is_ahead_makes_no_folder_old(tmp_path):
    small_model(tmp_path / "step_1")
    training = Training(tmp_path, changed=5000.0)
    assert training.states() == {"step_1": "changing"}
    training.passes(SETTLE_S)
    assert training.states() == {"step_1": "whole"}


def test_what_a_trainer_writes_beside_the_weights_is_waited_for(tmp_path):
    folder = small_model(tmp_path / "step_1")
    training = Training(tmp_path)
    for size in range(5):
        training.passes(20)
        (folder / "optimizer.pt").write_bytes(bytes(size))
        assert training.states() == {"step_1": "changing"}
    training.passes(SETTLE_S)
    assert training.states() == {"step_1": "whole"}


@pytest.mark.parametrize("name", ["global_step_1/actor/huggingface", "global_step_1/huggingface"])
def test_shards_beside_a_model_inside_the_folder_are_waited_for(name, tmp_path):
    small_model(tmp_path / name)
    training = Training(tmp_path)
    training.passes(20)
    training.look()
    (tmp_path / "global_step_1" / "optim_world_size_1_rank_0.pt").write_bytes(b"x")
    training.passes(20)
    assert training.states() == {"global_step_1": "changing"}
    training.passes(SETTLE_S)
    assert training.states() == {"global_step_1": "whole"}


def test_a_broken_one_is_looked_at_again_when_it_changes(tmp_path):
    folder = small_model(tmp_path / "step_1", shards=2)
    lost = folder / "model-00002-of-00002.safetensors"
    content = lost.read_bytes()
    lost.unlink()
    training = Training(tmp_path)
    training.passes(SETTLE_S)
    (one,) = training.look()
    assert (one.state, one.quiet_s) == ("incomplete", SETTLE_S)
    training.passes(1000)
    (one,) = training.look()
    assert (one.state, one.quiet_s) == ("incomplete", SETTLE_S + 1000)
    lost.write_bytes(content)
    assert training.states() == {"step_1": "changing"}
    training.passes(SETTLE_S)
    assert training.states() == {"step_1": "whole"}


def test_weights_that_are_written_again_in_place_are_another_content(tmp_path):
    folder = small_model(tmp_path / "final")
    training = Training(tmp_path)
    training.passes(SETTLE_S)
    (first,) = training.look()
    assert first.state == "whole"
    (folder / "model.safetensors").write_bytes(files_of(2.0)["model.safetensors"])
    (one,) = training.look()
    assert one.state == "changing"
    training.passes(SETTLE_S)
    (second,) = training.look()
    assert second.state == "whole"
    assert second.content != first.content


def test_a_folder_that_is_removed_and_comes_back_is_waited_for_again(tmp_path):
    folder = small_model(tmp_path / "step_1")
    training = Training(tmp_path)
    training.passes(SETTLE_S)
    assert training.states() == {"step_1": "whole"}
    shutil.rmtree(folder)
    assert training.states() == {}
    small_model(folder)
    training.changed = training.now
    assert training.states() == {"step_1": "changing"}


def test_one_that_changes_while_it_is_looked_into_is_not_taken(tmp_path, monkeypatch):
    from mtbench_ray.models import arrivals

    folder = small_model(tmp_path / "step_1")
    training = Training(tmp_path)
    training.passes(SETTLE_S)
    inspect = arrivals.inspect

    def slowly(one):
        verdict = inspect(one)
        (folder / "late.json").write_text("{")
        return verdict

    monkeypatch.setattr(arrivals, "inspect", slowly)
    assert training.states() == {"step_1": "changing"}
