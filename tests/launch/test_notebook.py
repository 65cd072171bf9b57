"""launch/mtbench.ipynb is executed by a real kernel, on the fake engine and the stub judge."""

import os

import pytest
from paths import ROOT

pytestmark = pytest.mark.runs

nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
pytest.importorskip("ipykernel", reason="ipykernel is not installed")

NOTEBOOK = ROOT / "launch" / "mtbench.ipynb"


@pytest.mark.timeout(150)
def test_every_cell_runs_and_shows_plan_table_and_plot(stub, questions, tmp_path, monkeypatch):
    import nbformat

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells), "it is kept without outputs"
    (place,) = [i for i, cell in enumerate(notebook.cells) if "SETTINGS = {" in cell.source]
    more = {
        "engine": "fake",
        "question_path": str(questions),
        "limit": None,
        "limit_by": "order",
        "judge.model": "stub",
        "judge.base_url": stub.url,
    }
    own = nbformat.v4.new_code_cell(f"JUDGE, MODEL = 'openai', 'm'\nSETTINGS |= {more!r}")
    notebook.cells.insert(place + 1, own)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(NOTEBOOK.parents[1])]))
    client = nbclient.NotebookClient(
        notebook, timeout=100, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    )
    client.execute()
    shown = {cell.source[:24]: cell.outputs for cell in notebook.cells if cell.cell_type == "code"}
    texts = "".join(
        output.get("text", "") + output.get("data", {}).get("text/plain", "")
        + output.get("data", {}).get("text/markdown", "")
        for outputs in shown.values() for output in outputs
    )  # fmt: skip
    assert "turns to answer" in texts, "the plan"
    assert "8/8" in texts, "the table"
    assert "Rating: [[" in texts, "what the judge wrote"
    images = [o for outputs in shown.values() for o in outputs if "image/png" in o.get("data", {})]
    assert len(images) == 1, "the plot"
    assert (tmp_path / "results" / "scores.parquet").is_file()
