"""The compilers that meet the kernels' source accept it, for the devices it is meant for."""

from __future__ import annotations

import ctypes
import ctypes.util
import importlib.util
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from dask_sketch.features.kernels.cuda import OPTIONS, source

KINDS = [(12, "float32", "float32"), (100, "uint64", "float32"), (300, "int64", "float64")]
NVCC = shutil.which("nvcc")


@pytest.mark.slow
@pytest.mark.skipif(NVCC is None, reason="nvcc is not installed")
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
@pytest.mark.parametrize(
    "kind",
    [KINDS[0], *(pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS[1:])],
    ids=str,
)
def test_nvcc_compiles_without_spilling(kind, architecture, tmp_path):
    code = tmp_path / "moments.cu"
    code.write_text(source(*kind))
    done = subprocess.run(
        [NVCC, *OPTIONS, "-cubin", f"-arch={architecture}", "-Xptxas", "-v,-warn-spills",
         "-o", str(tmp_path / "moments.cubin"), str(code)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    spills = re.findall(r"info.* for (\w+)\n.*?(\d+) bytes spill stores", done.stderr)
    assert len(spills) == code.read_text().count("__global__")
    # two registers of the weighted kernel, of 128, for sm_90 by the compiler of CUDA 13.0
    assert all(int(size) <= (8 if name == "sum_weighted" else 0) for name, size in spills), spills


def nvrtc():
    """The library that CuPy compiles with, from a wheel or from the system."""
    spec = importlib.util.find_spec("nvidia")
    for folder in [] if spec is None else spec.submodule_search_locations:
        for path in sorted(Path(folder).glob("*/lib/libnvrtc.so*")):
            return ctypes.CDLL(str(path))
    name = ctypes.util.find_library("nvrtc")
    return None if name is None else ctypes.CDLL(name)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_nvrtc_compiles(kind):
    library = nvrtc()
    if library is None:
        pytest.skip("NVRTC is not installed; pip install nvidia-cuda-nvrtc-cu12 brings it")
    program = ctypes.c_void_p()
    code = source(*kind).encode()
    assert not library.nvrtcCreateProgram(ctypes.byref(program), code, b"moments.cu", 0, None, None)
    added = ("-ftz=true", "--device-as-default-execution-space")  # by CuPy
    given = [option.encode() for option in (*OPTIONS, "-arch=sm_80", *added)]
    options = (ctypes.c_char_p * len(given))(*given)
    failed = library.nvrtcCompileProgram(program, len(given), options)
    size = ctypes.c_size_t()
    library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    library.nvrtcGetProgramLog(program, log)
    assert not failed, log.value.decode()
