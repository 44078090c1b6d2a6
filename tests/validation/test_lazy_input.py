"""Lazy input of models, in a process that has loaded nothing but the models."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys
from dask_sketch.models.gaussian_mixture import GaussianMixture

mixture = GaussianMixture([0.5, 0.5], [[-3.0], [3.0]], [[1.0], [1.0]])
assert mixture.predict([[2.0]]).tolist() == [1]
assert "dask" not in sys.modules
import dask.array as da

found = mixture.predict(da.ones((4, 1), chunks=(2, 1)))
assert isinstance(found, da.Array)
assert found.compute(scheduler="sync").tolist() == [1, 1, 1, 1]
"""


def test_models_take_lazy_input_without_loading_dask_before():
    subprocess.run([sys.executable, "-c", SCRIPT], check=True, timeout=100)
