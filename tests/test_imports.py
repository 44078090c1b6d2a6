"""The order of the folders, the seam between numerics and Dask, and the public names."""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import dask_sketch as ds

PACKAGE = Path(ds.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
NO_DASK = [
    "features",
    "sketching",
    "decoders",
    "models",
    "ledger",
    "errors",
    "unpacked",
    "guarded",
    "storage",
    "display",
]
# from upstream to downstream; a folder imports those before it, never those after it
FLOW = [
    "errors",
    "display",
    "unpacked",
    "guarded",
    "storage",
    "features",
    "sketching",
    "models",
    "ledger",
    "decoders",
]
DASK_SIDE = ["config", "announcing", "sources", "graph"]


def dotted(path):
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(
        ".__init__"
    )


def folder(path):
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


NUMERIC = [path for path in MODULES if folder(path) in NO_DASK]


def run(code):
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )


def test_numerics_load_no_dask():
    names = [dotted(path) for path in NUMERIC]
    assert len(names) > 10
    code = (
        "import importlib, sys\n"
        f"for name in {names}: importlib.import_module(name)\n"
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


@pytest.mark.parametrize("path", MODULES, ids=dotted)
def test_every_module_imports_quietly(path):
    if path.name == "__main__.py":
        pytest.skip("runs")
    importlib.import_module(dotted(path))


@pytest.mark.parametrize("path", MODULES, ids=dotted)
def test_modules_are_short(path):
    assert len(path.read_text().splitlines()) <= 400


def imports(path):
    """(module name, function-level?) of every import that runs."""

    def visit(node, inside):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            if isinstance(child, ast.Import):
                yield from ((alias.name, inside) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"relative import in {path}"
                yield child.module, inside
            deeper = inside or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef))
            yield from visit(child, deeper)

    yield from visit(ast.parse(path.read_text()), False)


@pytest.mark.parametrize("path", NUMERIC, ids=dotted)
def test_numeric_modules_know_nothing_of_dask(path):
    for name, inside in imports(path):
        top = name.split(".")
        # the ways up: a model hands lazy input over, and `plot` asks for pictures
        if name in ("dask_sketch.graph.apply", "dask_sketch.display.plots"):
            assert inside
            assert folder(path) in ("models", "features", "sketching")
            assert folder(path) == "models" or name.endswith("pictures")
            continue
        assert top[0] not in ("dask", "distributed"), (path, name)
        if top[0] == "dask_sketch" and len(top) > 1:
            assert top[1] not in ("sources", "graph", "config", "cli", "diagnostics"), (path, name)


@pytest.mark.parametrize("path", NUMERIC, ids=dotted)
def test_folders_import_upstream_only(path):
    place = FLOW.index(folder(path))
    for name, _ in imports(path):
        top = name.split(".")
        if top[0] == "dask_sketch" and len(top) > 1 and top[1] in FLOW:
            assert FLOW.index(top[1]) <= place, f"{dotted(path)} imports {name}"


@pytest.mark.parametrize(
    "path", [path for path in MODULES if folder(path) in DASK_SIDE], ids=dotted
)
def test_dask_side_imports_upstream_only(path):
    order = [*FLOW, *DASK_SIDE]
    for name, _ in imports(path):
        top = name.split(".")
        if top[0] == "dask_sketch" and len(top) > 1:
            assert top[1] in order, f"{dotted(path)} imports {name}"
            assert order.index(top[1]) <= order.index(folder(path)), f"{dotted(path)}: {name}"
            assert top[1] not in ("decoders", "models"), f"{dotted(path)} imports {name}"


NUMERICS = {"exp", "cos", "sin", "linalg", "eigh", "svd", "fft", "matmul", "dot", "einsum", "log"}


@pytest.mark.parametrize(
    "path", [path for path in MODULES if folder(path) in ("sources", "graph")], ids=dotted
)
def test_the_dask_side_has_no_numerics(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("np", "da", "scipy"):
            assert node.attr not in NUMERICS, f"{dotted(path)}:{node.lineno} {ast.unparse(node)}"


@pytest.mark.parametrize("path", MODULES, ids=dotted)
def test_library_code_does_not_print(path):
    if folder(path) in ("cli", "demo", "terminal", "__main__"):
        pytest.skip("talks to people")
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            assert ast.unparse(node.func) != "print", f"{dotted(path)}:{node.lineno}"


@pytest.mark.parametrize("path", MODULES, ids=dotted)
def test_no_global_random_state(path):
    allowed = {"default_rng", "SeedSequence", "Generator", "PCG64", "RandomState"}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "np.random":
            assert node.attr in allowed - {"RandomState"}, f"{dotted(path)}:{node.lineno}"


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
    import pickle

    from dask_sketch import errors

    kinds = [kind for kind in vars(errors).values() if inspect.isclass(kind)]
    assert len(kinds) >= 7
    for kind in kinds:
        assert issubclass(kind, ds.SketchError)
        assert issubclass(kind, ValueError)
        again = pickle.loads(pickle.dumps(kind("what, where, and the way out")))
        assert (type(again), str(again)) == (kind, "what, where, and the way out")
