"""Pictures of the README and of the documentation: ``make pictures``; those of pages need Chromium.

A model over held-out samples, the report of the demo, and the page on Dask's dashboard during a
pass.
"""

from __future__ import annotations

import io
import sys
import tempfile
import threading
from pathlib import Path

import dask.array as da
import matplotlib
import matplotlib.pyplot as plt
import numpy as np
from distributed import Client
from matplotlib.image import imread, imsave

import dask_sketch as ds
from dask_sketch.cli.demo import run_demo
from dask_sketch.cluster import dashboard
from dask_sketch.models import random_mixture

sys.path.insert(0, str(Path(__file__).parent))
from browser import CHROMIUM, browser, visit

FOLDER = Path(__file__).parent.parent / ".pictures"
REPORT, DASHBOARD = 1320, 800  # pixels from the top


def mixture() -> None:
    """Two million samples, a sketch of 12 kB, eight Gaussians, and what the sketch says of them."""
    truth = random_mixture(n_components=8, n_features=2, seed=4)
    rows = truth.sample(2_000_000, seed=0)
    feature_map = ds.design(rows, n_components=8, n_frequencies=400, seed=0)
    sketch = ds.sketch(rows, feature_map)
    model = ds.decode(sketch, n_components=8, refine="efficient", seed=0)
    matplotlib.rcParams["svg.hashsalt"] = "dask-sketch"
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
    model.plot.ellipses(rows[:100_000], ax=left)
    left.set_title(f"decoded from {sketch.moment_quanta.nbytes / 1000:.0f} kB")
    sketch.plot.moduli(model, ax=right)
    right.set_title("moduli of the sketch and of the model")
    figure.savefig(FOLDER / "mixture.png", dpi=110, metadata={"Software": None})


def report(port: int) -> None:
    """The upper part of the page that ``dask-sketch demo`` writes."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        run_demo(report=page, n_frames=500_000, n_components=12)
        crop(visit(port, page.as_uri(), width=1200).picture, "report.png", REPORT)


def on_dashboard(port: int) -> None:
    """The page on the dashboard, some seconds into a pass."""
    with Client(n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0") as client:
        address = dashboard.install(client)
        feature_map = ds.FeatureMap(12, 8000, scale=1.0, distribution="sparse-sums")
        rows = np.random.default_rng(0).normal(size=(200_000, 12)).astype(np.float32)
        x = da.concatenate([da.from_array(rows, chunks=(100_000, 12), name="frames")] * 400)
        ds.plan(x, feature_map, calibrate=True)
        run = threading.Thread(target=ds.sketch(x, feature_map).compute)
        run.start()
        crop(visit(port, address, width=1200, seconds=15).picture, "dashboard.png", DASHBOARD)
        run.join()


def crop(picture: bytes, name: str, height: int) -> None:
    """Keep the upper part."""
    imsave(FOLDER / name, imread(io.BytesIO(picture))[:height])


def main() -> None:
    """Write all pictures that this machine can."""
    FOLDER.mkdir(exist_ok=True)
    mixture()
    if CHROMIUM is None:
        sys.stderr.write("no Chromium here: only mixture.png is made\n")
        return
    with browser() as port:
        report(port)
        on_dashboard(port)


if __name__ == "__main__":
    main()
