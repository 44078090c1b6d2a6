"""Compiled functions on disks that are read-only, full or damaged."""

from __future__ import annotations

import importlib.util
import os
import re
import resource
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import numba
import pytest

import dask_sketch
from dask_sketch.validation.compilation import compiled_once

MODULE = """
from dask_sketch.validation.compilation import cached_njit

@cached_njit("int64(int64)")
def double(x):
    return 2 * x

@cached_njit()
def triple(x):
    return 3 * x
"""


def use_cache(monkeypatch, folder):
    """Choose the cache of numba, which reads the environment again if it has changed."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", folder)
    monkeypatch.setattr(numba.config, "CACHE_DIR", folder)


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A module whose compiled code may be stored in ``tmp_path / "cache"``; it takes no time."""
    use_cache(monkeypatch, str(tmp_path / "cache"))
    monkeypatch.setattr(time, "perf_counter", lambda: 0.0)
    path = tmp_path / "package" / "example.py"
    path.parent.mkdir()
    path.write_text(MODULE)

    def load():
        spec = importlib.util.spec_from_file_location("example", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        assert (module.double(4), module.triple(4)) == (8, 12)
        return module

    return load


@pytest.fixture
def read_only(tmp_path, package, monkeypatch):
    """Let nobody, the superuser included, write beside the module or to the home."""
    use_cache(monkeypatch, "")
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/home")
    (tmp_path / "package" / "__pycache__").touch()
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    return package


def test_the_fixture_is_read_only_for_numba(read_only, tmp_path):
    path = tmp_path / "package" / "plain.py"
    path.write_text("import numba\n@numba.njit(cache=True)\ndef f(x):\n    return x\n")
    spec = importlib.util.spec_from_file_location("plain", path)
    with pytest.raises(RuntimeError, match="no locator"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def test_read_only_folders_have_a_cache_among_the_temporary_files(read_only, tmp_path, caplog):
    read_only()
    (folder,) = (tmp_path / "temporary").iterdir()
    assert folder.stat().st_mode & 0o077 == 0
    assert len(list(folder.rglob("*.nbc"))) == 2
    (line,) = caplog.messages
    assert str(folder) in line
    assert "NUMBA_CACHE_DIR" in line
    again = read_only()
    assert sum(again.double.stats.cache_hits.values()) == 1


def test_without_temporary_files_there_is_no_cache(read_only, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "package" / "example.py"))
    assert read_only().double.stats.cache_path is None


def test_a_temporary_folder_that_others_may_write_to_is_not_used(read_only, tmp_path):
    folder = tmp_path / "temporary" / f"dask-sketch-numba-{os.geteuid()}"
    folder.mkdir()
    folder.chmod(0o777)
    assert read_only().double.stats.cache_path is None
    assert not list(folder.iterdir())


@pytest.mark.parametrize("bytes_left", [0, 30, 300])
def test_files_that_are_cut_off_are_compiled_again(package, tmp_path, bytes_left, caplog):
    package()
    files = list((tmp_path / "cache").rglob("*"))
    files = [file for file in files if file.is_file()]
    assert len(files) == 2
    for file in files:
        os.truncate(file, bytes_left)
    package()
    (line,) = caplog.messages
    assert str(tmp_path / "cache") in line
    caplog.clear()
    again = package()
    assert sum(again.double.stats.cache_hits.values()) == 1
    assert sum(again.triple.stats.cache_hits.values()) == 1
    assert not caplog.messages


def test_code_of_another_key_is_never_loaded(package, tmp_path):
    # where two processes write at the same time, numba's index may exchange these files
    package()
    first, second = (tmp_path / "cache").rglob("*.nbc")
    code = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(code)
    again = package()  # the results are right
    assert not again.double.stats.cache_hits
    assert sum(package().double.stats.cache_hits.values()) == 1


@pytest.mark.slow
def test_processes_that_compile_at_the_same_time_share_a_folder(tmp_path, monkeypatch, capsys):
    source = (
        "import sys\n"
        "from dask_sketch.validation.compilation import cached_njit\n"
        "def times(factor):\n"
        "    @cached_njit()\n"
        "    def multiply(x):\n"
        "        return factor * x\n"
        "    return multiply\n"
        "for factor in map(int, sys.argv[1:]):\n"
        "    multiply = times(factor)\n"
        "    print(multiply(10) == 10 * factor, len(multiply.stats.cache_hits))\n"
    )
    (tmp_path / "times.py").write_text(source)
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}

    def run(*factors):
        return subprocess.Popen(
            [sys.executable, tmp_path / "times.py", *map(str, factors)],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )

    for process in [run(2, 3), run(4, 5)]:
        assert process.communicate()[0].split("\n")[:2] == ["True 0", "True 0"]
    use_cache(monkeypatch, str(tmp_path / "cache"))
    spec = importlib.util.spec_from_file_location("times", tmp_path / "times.py")
    monkeypatch.setattr(sys, "argv", ["times.py", "5", "4", "3", "2"])
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    assert capsys.readouterr().out == 4 * "True 1\n"


@pytest.mark.slow
def test_closures_of_other_processes_are_told_apart_as_arguments_of_compiled_code(tmp_path):
    source = (
        "import sys\n"
        "import numba\n"
        "from dask_sketch.validation.compilation import cached_njit\n"
        "signature = numba.int64(numba.int64)\n"
        "def times(factor):\n"
        "    return cached_njit(signature)(lambda x: factor * x)\n"
        "factors = [int(factor) for factor in sys.argv[1:]]\n"
        "functions = [times(factor) for factor in factors]\n"
        "@numba.njit(numba.int64(numba.types.FunctionType(signature), numba.int64))\n"
        "def call(function, x):\n"
        "    return function(x)\n"
        "print([call(function, 1) for function in functions])\n"
        "print([len(function.stats.cache_hits) for function in functions])\n"
    )
    (tmp_path / "times.py").write_text(source)
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    for factors, cached in ("2", "[0]"), ("3", "[0]"), ("2 3", "[1, 1]"):
        command = [sys.executable, str(tmp_path / "times.py"), *factors.split()]
        printed = subprocess.check_output(command, env=environment, text=True).split("\n")
        assert printed[:2] == [f"[{factors.replace(' ', ', ')}]", cached]


def test_the_first_compilation_is_stated_once(package, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(time, "perf_counter", count(step=60.0).__next__)  # slow, as all kernels are
    package()
    (line,) = caplog.messages
    assert "compiles" in line
    assert str(tmp_path / "cache") in line
    caplog.clear()
    assert sum(package().triple.stats.cache_hits.values()) == 1
    assert not caplog.messages


def test_a_full_disk_is_no_error(package, tmp_path, caplog):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        package()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    (line,) = caplog.messages
    assert str(tmp_path / "cache") in line
    assert not list((tmp_path / "cache").rglob("*.nbc"))


def test_all_functions_of_the_package_use_this_cache():
    sources = Path(dask_sketch.__file__).parent.rglob("*.py")
    found = [p.name for p in sources if re.search(r"\bcache=True", p.read_text())]
    assert found == ["compilation.py"]  # in its documentation


@pytest.mark.slow
def test_sketches_where_no_folder_is_writable(tmp_path):
    package = Path(dask_sketch.__file__).parent
    for source in package.rglob("*"):
        target = tmp_path / source.relative_to(package.parent)
        if "__pycache__" in source.parts:
            continue
        if source.is_dir():
            target.mkdir(parents=True)
            (target / "__pycache__").touch()
        elif source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
    (tmp_path / "dask_sketch" / "__pycache__").touch()
    code = (
        "import numpy as np, dask_sketch as ds, tempfile\n"
        "tempfile.tempdir = '/dev/null/temporary'\n"
        "x = np.random.default_rng(0).normal(size=(500, 2))\n"
        "print(ds.sketch(x, ds.design(x, n_components=1)).count)"
    )
    kept = {k: v for k, v in os.environ.items() if k != "NUMBA_CACHE_DIR"}
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env={**kept, "PYTHONPATH": str(tmp_path), "XDG_CACHE_HOME": "/dev/null/home"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.strip() == "500"
    assert ran.stderr.count("NUMBA_CACHE_DIR") == 1


def test_code_is_compiled_once_while_threads_wait_for_it():
    entered, go, made = threading.Event(), threading.Event(), []

    @compiled_once
    def power(n):
        made.append(n)
        if n == 3:
            entered.set()
            assert go.wait(60)
        return lambda x: x**n

    with ThreadPoolExecutor(4) as pool:
        assert power(2)(5) == 25
        cubes = [pool.submit(power, 3) for _ in range(3)]
        assert entered.wait(60)
        # ready code does not wait for other code
        assert pool.submit(power, 2).result(60)(5) == 25
        assert not any(one.done() for one in cubes)
        go.set()
        found = {one.result(60) for one in cubes}
    assert len(found) == 1
    assert made == [2, 3]
