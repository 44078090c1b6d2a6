"""The public names, and what importing them loads."""

from __future__ import annotations

import inspect
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import dask_sketch as ds
from dask_sketch import errors

PACKAGE = Path(ds.__file__).parent
NUMERIC = ["features", "sketching", "decoders", "models", "validation", "storage", "display"]


def run(code):
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )


WITHOUT_DASK = """
import importlib, importlib.util, sys
sys.modules["dask"] = sys.modules["distributed"] = None
for name in NAMES:
    importlib.import_module(name)
if importlib.util.find_spec("librosa"):
    import dask_sketch.speech.mfcc
import numpy as np
from dask_sketch import FeatureMap, diagnose, merge, partial_sketch, select_model
from dask_sketch.models import GaussianMixture, random_mixture

truth = random_mixture(3, 2, seed=5)
sketch = partial_sketch(truth.sample(20_000), FeatureMap(2, 100, scale=1.0))
assert merge([sketch, sketch]).count == 40_000
assert repr(sketch) and sketch._repr_html_()
assert not diagnose(truth, sketch).findings
assert select_model([truth], sketch).selected.index == 0
if importlib.util.find_spec("matplotlib"):
    truth.plot.ellipses()
    assert "matplotlib.pyplot" not in sys.modules

# models take lazy input when Dask is loaded after them
mixture = GaussianMixture([0.5, 0.5], [[-3.0], [3.0]], [[1.0], [1.0]])
assert mixture.predict([[2.0]]).tolist() == [1]
del sys.modules["dask"], sys.modules["distributed"]
import dask.array as da

found = mixture.predict(da.ones((4, 1), chunks=(2, 1)))
assert isinstance(found, da.Array)
assert found.compute(scheduler="sync").tolist() == [1, 1, 1, 1]
"""


def test_numerics_work_without_dask():
    """All in one process, because imports take seconds."""
    paths = [path for folder in NUMERIC for path in sorted((PACKAGE / folder).rglob("*.py"))]
    names = [".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts) for path in paths]
    assert len(names) > 40
    names = [name.removesuffix(".__init__") for name in names]
    done = run(f"NAMES = {names}\n{WITHOUT_DASK}")
    assert done.returncode == 0, done.stderr


def test_the_package_itself_is_light():
    code = (
        "import sys\n"
        "import dask_sketch\n"
        "heavy = {'dask', 'distributed', 'numpy', 'scipy', 'numba', 'xarray', 'zarr'}\n"
        "assert not heavy & set(sys.modules)\n"
        "assert set(dask_sketch.__all__) <= set(dir(dask_sketch))\n"
        "assert dask_sketch.__version__\n"
    )
    done = run(code)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ds.__all__)
def test_public_names_are_documented(name):
    value = getattr(ds, name)
    assert inspect.getdoc(value), name
    if inspect.isclass(value):
        for key, member in vars(value).items():
            if not key.startswith("_") and (callable(member) or isinstance(member, property)):
                assert inspect.getdoc(getattr(value, key)), f"{name}.{key}"


def test_public_names_are_all_and_nothing_else():
    assert ds.__all__ == sorted(ds.__all__)
    assert set(ds.__all__) == set(ds._HOME)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = ds.nonsense


def test_errors_are_value_errors_and_pickle():
    kinds = [kind for kind in vars(errors).values() if inspect.isclass(kind)]
    assert len(kinds) >= 7
    for kind in kinds:
        assert issubclass(kind, ds.SketchError)
        assert issubclass(kind, ValueError)
        again = pickle.loads(pickle.dumps(kind("what, where, and the remedy")))
        assert (type(again), str(again)) == (kind, "what, where, and the remedy")
