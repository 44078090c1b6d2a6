"""Every notebook runs from start to end, and is committed without outputs."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import pytest

nbclient = pytest.importorskip("nbclient", reason="notebooks run with nbclient")
import nbformat
from jupyter_client import AsyncKernelManager
from traitlets.config import Config

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))
SHOWN = {  # what each must have shown at its end
    "01_quickstart": "log-likelihood per sample",
    "02_inputs_and_plans": "3 batches",
    "03_dashboard_and_memory": "noise of |z|: 1.0e-03 after 1,000,000 rows",
    "04_choosing": "3 components explain the sketch",
    "05_speaker_verification": "equal error rate",
    "06_nightly_job": "alarm: True",
    "07_gpu": "one feature map: True",
}


@pytest.fixture(scope="module")
def kernel():
    """One kernel for all, since each would load the same packages for seconds."""
    # sockets in a folder of its own: a port that is free when it is chosen may be taken when it is
    # bound; the folder is not tmp_path, for a socket's path holds a hundred characters only
    with tempfile.TemporaryDirectory() as sockets:
        settings = {"transport": "ipc", "connection_file": f"{sockets}/kernel.json"}
        manager = AsyncKernelManager(
            kernel_name="python3", config=Config({"KernelManager": settings})
        )
        yield manager
        if manager.has_kernel:
            asyncio.run(manager.shutdown_kernel(now=True))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
# jupyter_client starts its kernel through asyncio and zmq, whose own deprecations are not ours
@pytest.mark.filterwarnings("default")
def test_notebook_runs(path, kernel, tmp_path):
    notebook = nbformat.read(path, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "commit without outputs"
    # nothing of the last one is left: neither its names nor its folder
    notebook.cells.insert(0, nbformat.v4.new_code_cell(f"%reset -f\n%cd -q {tmp_path}"))
    client = nbclient.NotebookClient(notebook, timeout=300, km=kernel)
    client.execute(cleanup_kc=False)
    client.kc.stop_channels()
    shown = "".join(str(cell.get("outputs", "")) for cell in notebook.cells)
    assert SHOWN[path.stem] in shown
    assert "same bits: False" not in shown
    # warnings, which nobody wants in what is to be shown to others
    assert "'name': 'stderr'" not in shown, shown
