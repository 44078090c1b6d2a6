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


def test_numerics_load_no_dask():
    paths = [path for folder in NUMERIC for path in sorted((PACKAGE / folder).rglob("*.py"))]
    names = [".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts) for path in paths]
    assert len(names) > 40
    code = (
        "import importlib, sys\n"
        f"for name in {names}: importlib.import_module(name.removesuffix('.__init__'))\n"
        "wrong = [m for m in sys.modules if m.split('.')[0] in ('dask', 'distributed')]\n"
        "assert not wrong, wrong[:5]\n"
    )
    done = run(code)
    assert done.returncode == 0, done.stderr


def test_numerics_work_without_dask():
    code = (
        "import sys\n"
        "sys.modules['dask'] = sys.modules['distributed'] = None\n"
        "import numpy as np\n"
        "from dask_sketch import FeatureMap, merge, partial_sketch\n"
        "fm = FeatureMap(2, 20, scale=1.0)\n"
        "a = partial_sketch(np.zeros((5, 2)), fm)\n"
        "assert merge([a, a]).count == 10\n"
        "repr(a), a._repr_html_()\n"
    )
    done = run(code)
    assert done.returncode == 0, done.stderr


def test_the_package_itself_is_light():
    code = (
        "import sys, time\n"
        "start = time.process_time()\n"
        "import dask_sketch\n"
        "assert time.process_time() - start < 0.5\n"
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
