"""Run every notebook from start to end. Notebooks are committed without outputs."""

from __future__ import annotations

import asyncio
import re
import tempfile
from pathlib import Path

import pytest

nbclient = pytest.importorskip("nbclient", reason="notebooks run with nbclient")
import nbformat
from jupyter_client import AsyncKernelManager
from traitlets.config import Config

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))
SHOWN = {  # part of the output of each
    "01_quickstart": "log-likelihood per sample",
    "02_inputs_and_plans": "3 batches",
    "03_dashboard_and_memory": "noise of |z|: 1.0e-03 after 1,000,000 rows",
    "04_choosing": "3 components explain the sketch",
    "05_speaker_verification": "equal error rate",
    "06_nightly_job": "alarm: True",
    "07_gpu": "one feature map: True",
    "08_real_data": "gradient boosting, calibrated sample",
    "09_comparing": "most clearly in feature 2",
    "10_each_speaker_a_sample": "right by densities: 100%",
    "11_tables_of_sketches": "same bits: True",
}

LONG = (  # of many fits, and of recordings
    "02_inputs_and_plans",
    "04_choosing",
    "05_speaker_verification",
    "08_real_data",
    "09_comparing",
)

SMALLER = {  # sizes in the tests, in place of those of the notebook
    "01_quickstart": {
        "50_000": "5_000",
        "(5_000, 10)": "(5_000, 4)",
        "100_000": "10_000",
        "n_components=5": "n_components=3",
        "n_features=10": "n_features=4",
    },
    "04_choosing": {
        "arange(-2, 3)": "arange(-1, 2)",
        "range(3)": "range(1)",
        "random_mixture(3, 12, seed=3)": "random_mixture(3, 4, seed=3)",
        "FeatureMap(12, 375": "FeatureMap(4, 135",
        "(1, 1.5, 2, 3, 5)": "(1, 5)",
        "100_000": "20_000",
    },
    "05_speaker_verification": {
        "n_components=8, n_frequencies=1250": "n_components=4, n_frequencies=500",
        "range(12)": "range(8)",
    },
    "07_gpu": {"n_components=8": "n_components=4", "200_000": "50_000"},
    "08_real_data": {"300_000": "40_000", "(50_000, 3)": "(10_000, 3)", "K = 8": "K = 3"},
}


@pytest.fixture(scope="module")
def kernel():
    """One kernel for all notebooks, since imports take seconds."""
    # Sockets are files, since a free port may be taken before it is bound. The folder is not
    # tmp_path, because the path of a socket has at most a hundred characters.
    with tempfile.TemporaryDirectory() as sockets:
        settings = {"transport": "ipc", "connection_file": f"{sockets}/kernel.json"}
        manager = AsyncKernelManager(
            kernel_name="python3", config=Config({"KernelManager": settings})
        )
        yield manager
        if manager.has_kernel:
            process = manager.provisioner.process
            asyncio.run(manager.shutdown_kernel(now=True))
            # on a busy machine, the manager may give up before the process has ended
            process.wait(timeout=60)


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=pytest.mark.slow if path.stem in LONG else (), id=path.stem)
        for path in NOTEBOOKS
    ],
)
# jupyter_client uses deprecated functions of asyncio and zmq
@pytest.mark.filterwarnings("default")
def test_notebook_runs(path, kernel, tmp_path):
    notebook = nbformat.read(path, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "commit without outputs"
    for size, smaller in SMALLER.get(path.stem, {}).items():
        cells = [cell for cell in notebook.cells if size in cell.source]
        assert cells, size
        for cell in cells:
            cell.source = cell.source.replace(size, smaller)
    # a notebook must not depend on names or files of another one
    notebook.cells.insert(0, nbformat.v4.new_code_cell(f"%reset_selective -f .\n%cd -q {tmp_path}"))
    client = nbclient.NotebookClient(notebook, timeout=300, km=kernel)
    try:
        client.execute(cleanup_kc=False)
    finally:
        client.kc.stop_channels()
    shown = "".join(str(cell.get("outputs", "")) for cell in notebook.cells)
    assert SHOWN[path.stem] in shown
    assert "same bits: False" not in shown
    # progress bars and log lines of clusters are allowed, warnings are not
    assert not re.findall(r"\w+Warning: .*", "".join(errors(notebook)))


def errors(notebook):
    """Texts on standard error."""
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            if output.get("name") == "stderr":
                yield output["text"]
