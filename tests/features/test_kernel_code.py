"""What LLVM makes of the inner step, for this processor and for others."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import llvmlite.binding as llvm
import numba
import numpy as np
import pytest

from dask_sketch.features.kernels import dense as kernel
from dask_sketch.features.kernels import structured as sums_kernel
from dask_sketch.features.kernels import structured_code as waves
from dask_sketch.features.kernels.dense import OPERATIONS, ROWS, TOGETHER, module
from dask_sketch.features.kernels.llvm_vectors import VECTOR_BITS
from dask_sketch.features.kernels.structured import AHEAD
from dask_sketch.features.kernels.structured_frequencies import truncate_to_grid

LINUX, MAC = "-unknown-linux-gnu", "-apple-macosx"
# triple, processor, bits of a panel, bits of a register
TARGETS = {
    "haswell": ("x86_64" + LINUX, 256, 256),  # AVX2
    "znver2": ("x86_64" + LINUX, 256, 256),
    "skylake-avx512": ("x86_64" + LINUX, 512, 512),
    "znver4": ("x86_64" + LINUX, 512, 512),
    "neoverse-n1": ("aarch64" + LINUX, 256, 128),  # NEON
    "neoverse-v1": ("aarch64" + LINUX, 256, 128),
    "apple-m1": ("arm64" + MAC, 256, 128),
}
REGISTER = {128: r"(v\d+\.4s|\.4s)", 256: r"%ymm", 512: r"%zmm"}
MULTIPLY_ADD = r"\t(vfn?m(add|sub)\w*p[sd]|fml[as])\b"
MULTIPLY = r"\t(vmulps|fmul)\b"
ROUND = r"\t(vroundps|vrndscaleps|frintx)\b"
ADD = r"\t(vpaddd|add(\.4s)?\tv)"  # of integers in vectors
SUBTRACT = r"\t(vsubps|fsub)\b"
SCALAR = r"\t(vfn?m\w+s[sd]|vmuls[sd]|vrounds[sd]|vrndscales[sd]|fmadd|fmsub|frint\w*\ts)\b"
CALL = r"\t(callq?|jmpq?\t\*|blr?)\b"
STACK_STORE = r"\t(v?mov\w+\t%[xyz]mm\d+, \S*\(%r[sb]p\)|(str|stp)\t.*\[sp)"
FLAGS = r"\b(fast|nnan|ninf|nsz|arcp|contract|afn|reassoc)\b"


def assembly(n_features, processor, weighted=False):
    """The step compiled for another processor."""
    _, panel, _ = TARGETS[processor]
    return compiled(module(n_features, "float32", panel, weighted), processor)


def compiled(made, processor):
    """Code for another processor; skips where LLVM here cannot."""
    triple, *_ = TARGETS[processor]
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    try:
        target = llvm.Target.from_triple(triple)
    except RuntimeError as error:
        pytest.skip(f"this llvmlite does not compile for {triple}: {error}")
    machine = target.create_target_machine(cpu=processor, opt=3, reloc="pic")
    code = llvm.parse_assembly(str(made))
    code.triple, code.data_layout = triple, str(machine.target_data)
    passes = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(3))
    passes.getModulePassManager().run(code, passes)
    return machine.emit_assembly(code)


def loops(text, least=ROWS):
    """The pieces between labels that hold arithmetic of the step."""
    pieces = re.split(r"\n\.?L\w+:", text)
    return "\n".join(piece for piece in pieces if len(re.findall(MULTIPLY_ADD, piece)) >= least)


def lines(pattern, text):
    return [line for line in text.splitlines() if re.search(pattern, line)]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("processor", TARGETS)
def test_a_pair_costs_what_the_arithmetic_needs(processor, weighted):
    d = 4  # no loop over features
    _, panel, register = TARGETS[processor]
    code = loops(assembly(d, processor, weighted))
    steps = ROWS * panel // register
    assert len(lines(ROUND, code)) == len(lines(SUBTRACT, code)) == steps
    products = lines(MULTIPLY_ADD, code) + lines(MULTIPLY, code)
    assert len(products) == steps * (d + OPERATIONS["float32"] - 2 + weighted)
    additions = lines(ADD, code)
    assert len(additions) == steps * 2  # the last two to the sums so far
    for line in products + additions:
        assert re.search(REGISTER[register], line), line


@pytest.mark.parametrize("n_features", [2, 12, 64, 784])
@pytest.mark.parametrize("processor", TARGETS)
def test_the_loop_has_no_calls_no_scalars_and_keeps_its_phases_in_registers(processor, n_features):
    code = loops(assembly(n_features, processor))
    assert lines(MULTIPLY_ADD, code)
    assert not lines(CALL, code)
    assert not lines(SCALAR, code)
    *_, register = TARGETS[processor]
    # one of 16 registers of AVX2, or a phase in two of NEON, may wait on the stack
    waiting = {512: 0, 256: ROWS, 128: 4 * ROWS}[register]
    if register < 512 and n_features > 2 * TOGETHER:
        waiting += 2 * ROWS  # the sums of groups of features
    assert len(lines(STACK_STORE, code)) <= waiting


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("processor", TARGETS)
def test_waves_and_their_products_stay_in_full_registers(processor, weighted):
    _, panel, register = TARGETS[processor]
    tile = 4 if panel == 512 else 2
    text = compiled(waves.module("float32", panel, tile, weighted), processor)
    assert not lines(CALL, text)
    assert not lines(SCALAR, text)
    _, *functions = re.split(r"\n_?(?=(?:columns|few|many|products):)", text)
    assert [code.split(":")[0] for code in functions] == ["columns", "few", "many", "products"]
    for code, together in zip(functions[1:], (AHEAD, tile * tile, 0), strict=True):
        body = loops(code, least=2)
        assert lines(MULTIPLY_ADD, body)
        for line in lines(MULTIPLY_ADD, body) + lines(MULTIPLY, body) + lines(ADD, body):
            assert re.search(REGISTER[register], line), line
        # r r, S and sin; and S times a weight
        vectors = together * VECTOR_BITS // register
        assert len(lines(ROUND, code)) == vectors
        assert len(lines(MULTIPLY, code)) == vectors * (3 + weighted)
    products = loops(code, least=2)
    assert len(lines(MULTIPLY_ADD, products)) == len(lines(ADD, products))
    assert len(lines(ADD, products)) == tile * tile * panel // register
    assert not lines(STACK_STORE, products)


@pytest.mark.parametrize("n_features", [12, 64])
def test_the_code_of_this_machine_has_no_calls_in_its_loop(n_features):
    if platform.machine() not in ("x86_64", "AMD64", "aarch64", "arm64"):
        pytest.skip(f"no names of instructions here for {platform.machine()}")
    run = kernel.moment_kernel(n_features)._plain
    # compiled again: numba shows no code that comes from its cache
    again = numba.njit(run.signatures[0], error_model="numpy")(run.py_func)
    (text,) = again.inspect_asm().values()
    code = loops(text)
    assert lines(MULTIPLY_ADD, code)
    assert not lines(CALL, code)
    assert not lines(SCALAR, code)
    (llvm_text,) = again.inspect_llvm().values()
    assert not lines(r"(fadd|fmul|fsub|llvm\.fma|llvm\.rint).*" + FLAGS, llvm_text)


@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_no_fast_math_flag_is_written(kind):
    for made in (module(12, kind, 512, weighted=True), waves.module(kind, 512, 4, weighted=True)):
        assert not lines(FLAGS, str(made))


def checksum_of_sums():
    """Sums of a few maps, as bytes in hexadecimal."""
    out = []
    for n_features, dtype in [(1, "float32"), (3, "float64"), (12, "float32"), (70, "float32")]:
        rng = np.random.default_rng(n_features)
        cycles = rng.normal(size=(n_features, 37)).astype(np.float32)
        x = rng.normal(size=(345, n_features)).astype(dtype)
        weights = (1.0 - 0.5 * rng.random(345)).astype(dtype)
        for made, given in (
            (kernel.MomentKernel(n_features, dtype), cycles),
            (sums_kernel.SumsKernel(dtype), truncate_to_grid(cycles).astype(np.float32)),
        ):
            packed = made.pack(given)
            sums = made.zeros(packed)
            made.add(x, packed, sums)
            made.add(x, packed, sums, weights)
            out.append(made.unpack(sums, 37).tobytes().hex())
    return " ".join(out)


# of 256 bits is the code for AVX2, below; of all, with fewer features, test_exactness
@pytest.mark.parametrize(
    "bits",
    [pytest.param(128, marks=pytest.mark.slow), pytest.param(256, marks=pytest.mark.slow), 512],
)
def test_the_width_of_the_vectors_changes_no_bit(bits, monkeypatch):
    here = checksum_of_sums()
    for used in (kernel, sums_kernel):
        monkeypatch.setattr(used, "vector_bits", lambda: bits)
    assert checksum_of_sums() == here


def test_the_code_for_avx2_has_the_same_bits():
    features = llvm.get_host_cpu_features()
    if not (features.get("avx2") and features.get("fma")):
        pytest.skip("this processor has no AVX2")
    named = "+avx,+avx2,+fma,+bmi,+bmi2,+f16c,+sse4.2,+popcnt"
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import test_kernel_code as test\n"
        "assert test.kernel.vector_bits() == 256\n"
        "print(test.checksum_of_sums())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(Path(__file__).parent)],
        env={**os.environ, "NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": named},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == checksum_of_sums()
