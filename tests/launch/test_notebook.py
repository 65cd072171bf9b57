"""launch/mtbench.ipynb is executed by a real kernel, on the fake engine and the stub judge."""

import json
import os

import pytest
from paths import ROOT

pytestmark = pytest.mark.runs

nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
pytest.importorskip("ipykernel", reason="ipykernel is not installed")

NOTEBOOK = ROOT / "launch" / "mtbench.ipynb"


def execute(folder, monkeypatch, timeout, model, **settings):
    """Run all cells with other settings; its texts and how many pictures it shows."""
    import nbformat

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells), "it is kept without outputs"
    (place,) = [i for i, cell in enumerate(notebook.cells) if "SETTINGS = {" in cell.source]
    own = nbformat.v4.new_code_cell(f"JUDGE, MODEL = 'openai', {model!r}\nSETTINGS |= {settings!r}")
    notebook.cells.insert(place + 1, own)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("IPYTHONDIR", str(folder / "ipython"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(NOTEBOOK.parents[1])]))
    client = nbclient.NotebookClient(
        notebook, timeout=timeout, kernel_name="python3", resources={"metadata": {"path": folder}}
    )
    client.execute()
    outputs = [o for cell in notebook.cells for o in cell.get("outputs", ())]
    texts = "".join(
        output.get("text", "") + output.get("data", {}).get("text/plain", "")
        + output.get("data", {}).get("text/markdown", "")
        for output in outputs
    )  # fmt: skip
    return texts, sum("image/png" in output.get("data", {}) for output in outputs)


def judged_by(stub, questions):
    return {
        "question_path": str(questions),
        "limit": None,
        "limit_by": "order",
        "judge.model": "stub",
        "judge.base_url": stub.url,
    }


@pytest.mark.timeout(150)
def test_every_cell_runs_and_shows_plan_table_and_plot(stub, questions, tmp_path, monkeypatch):
    settings = judged_by(stub, questions) | {"engine": "fake"}
    texts, pictures = execute(tmp_path, monkeypatch, 100, "m", **settings)
    assert "turns to answer" in texts, "the plan"
    assert "8/8" in texts, "the table"
    assert "Rating: [[" in texts, "what the judge wrote"
    assert pictures == 1, "the plot"
    assert (tmp_path / "results" / "scores.parquet").is_file()


@pytest.mark.engine
@pytest.mark.rays
@pytest.mark.timeout(600)
def test_it_runs_the_demo_model_on_a_real_engine(stub, questions, tmp_path, monkeypatch):
    settings = judged_by(stub, questions) | {"limit": 2, "sampling.max_tokens": 24}
    texts, pictures = execute(tmp_path, monkeypatch, 500, "smollm2-135m", **settings)
    print(texts)
    assert "on GPUs: 0.3 GB of weights" in texts, "what plan says of memory"
    assert "4/4" in texts, "the table"
    assert pictures == 1, "the plot"
    rows = (tmp_path / "results" / "answers.jsonl").read_text().splitlines()
    assert [json.loads(row)["engine_origin"] for row in rows] == ["cold"] * 4
