"""What was sent is known from the workspace, whatever ended the process."""

from mtbench_ray.trackers.ledger import FILE, Ledger


def test_it_is_known_by_target_run_evaluation_and_digest(tmp_path):
    ledger = Ledger(tmp_path, "wandb p")
    assert ledger.is_new("run_a", "e1", "d1")
    ledger.add("sent", "run_a", evaluation="e1", digest="d1")
    again = Ledger(tmp_path, "wandb p")
    assert not again.is_new("run_a", "e1", "d1")
    assert again.was_sent("run_a", "e1")
    assert again.is_new("run_a", "e1", "d2"), "a figure has changed"
    assert again.is_new("run_b", "e1", "d1")
    assert Ledger(tmp_path, "mlflow p").is_new("run_a", "e1", "d1")
    again.add("sent", "run_a", evaluation="e1", digest="d2")
    assert not Ledger(tmp_path, "wandb p").is_new("run_a", "e1", "d2")


def test_names_and_keys_stay_as_they_were_given(tmp_path):
    ledger = Ledger(tmp_path, "t")
    assert ledger.name("/x/ckpts", "ckpts") == "ckpts"
    other = ledger.name("/y/ckpts", "ckpts")
    assert other.startswith("ckpts-")
    assert ledger.key("r", "line1", "k") == "k"
    second = ledger.key("r", "line2", "k")
    assert second.startswith("k-")
    assert ledger.key("r2", "line2", "k") == "k", "another run of the tracker"
    again = Ledger(tmp_path, "t")
    assert again.key("r", "line2", "k") == second
    assert again.key("r", "line1", "k") == "k"
    assert again.name("/y/ckpts", "ckpts") == other


def test_a_torn_last_line_costs_that_event_only(tmp_path):
    ledger = Ledger(tmp_path, "t")
    ledger.add("run", "r", id="abc")
    ledger.add("sent", "r", evaluation="e1", digest="d")
    with (tmp_path / FILE).open("ab") as file:
        file.write(b'{"target": "t", "event": "sent", "run"')
    again = Ledger(tmp_path, "t")
    assert (again.tracker_id("r"), again.is_new("r", "e1", "d")) == ("abc", False)
    again.add("sent", "r", evaluation="e2", digest="d")
    last = Ledger(tmp_path, "t")
    assert not last.is_new("r", "e2", "d")
    assert not last.is_new("r", "e1", "d")
