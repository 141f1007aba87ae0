"""The notebook runs from its first cell to its last, answers and draws."""

from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.filterwarnings("ignore")  # those of Jupyter's own processes and sockets
def test_the_notebook_answers_and_draws() -> None:
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    notebook = nbformat.read(EXAMPLES / "05_corpus_to_answer.ipynb", as_version=4)
    nbclient.NotebookClient(notebook, timeout=100, resources={"metadata": {"path": str(EXAMPLES)}}).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    printed = "".join(output.text for output in outputs if output.output_type == "stream" and output.name == "stdout")
    assert "369 documents" in printed
    assert "二甲双胍" in printed.partition("答：")[2]
    assert any("image/png" in getattr(output, "data", {}) for output in outputs)
    assert not [output for output in outputs if output.output_type == "stream" and output.name == "stderr"]
