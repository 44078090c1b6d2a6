"""The arithmetic of the inner loop: one step adds ROWS samples to the sums of one panel.

A *panel* is as many frequencies as one vector has lanes. The projection keeps one vector of phases
for each sample, so that every frequency that is loaded serves ROWS of them; cosines and sines
follow in registers, and are added as integers (:mod:`dask_sketch.features.vectors`). In all, a
(sample, frequency) pair costs ``n_features + OPERATIONS[kind]`` vector operations, counted in
lanes, and two additions of integers, for which there are ports beside those of multiply-adds.

Features are added in one order, whatever the width of the vectors and however loops are unrolled;
samples may be in any.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils

from dask_sketch.features.vectors import PRODUCT, SQUARE, Vectors, real, whole

ROWS = 8  # samples that share one load of the frequencies and of the sums
# of a pair after its projection: multiply(-add)s, all but two: a rounding and a subtraction
OPERATIONS = {"float32": 14, "float64": 28}
TOGETHER = 32  # features of a group: rounding grows with the number added one after the other
UNROLLED = 4  # of these, in one turn of the loop
_WORD = ir.IntType(64)


def _at(b: Any, pointer: Any, offset: Any) -> Any:
    """The pointer moved by a number of LLVM's, or of Python's: that is part of the load itself."""
    return b.gep(pointer, [_WORD(offset) if isinstance(offset, int) else offset])


def _products(vec: Vectors, n_features: int, x: Any, panel: Any, count: int) -> list[Any]:
    """``count`` features of ROWS samples, times their frequencies, one after the other."""
    b = vec.builder
    turns = [cgutils.alloca_once(b, vec.type) for _ in range(ROWS)]  # LLVM: in registers

    def add(x: Any, panel: Any, feature: int, first: bool = False) -> None:
        frequencies = vec.load(_at(b, panel, feature * vec.lanes), vec.type, vec.bits // 8)
        for row, slot in enumerate(turns):
            value = vec.spread(b.load(_at(b, x, row * n_features + feature)))
            if first:
                b.store(b.fmul(value, frequencies), slot)
            else:
                b.store(vec.multiply_add(value, frequencies, b.load(slot)), slot)

    add(x, panel, 0, first=True)
    looped = (count - 1) // UNROLLED * UNROLLED
    with cgutils.for_range(b, _WORD(looped // UNROLLED)) as loop:
        done = b.mul(loop.index, _WORD(UNROLLED))
        here = _at(b, x, done), _at(b, panel, b.mul(done, _WORD(vec.lanes)))
        for feature in range(1, 1 + UNROLLED):
            add(*here, feature)
    for feature in range(1 + looped, count):
        add(x, panel, feature)
    return [b.load(slot) for slot in turns]


def _project(vec: Vectors, n_features: int, x: Any, panel: Any) -> list[Any]:
    """Phases of ROWS samples in turns; many features are added in groups, then these."""
    b = vec.builder
    whole, rest = divmod(n_features, TOGETHER)
    if n_features <= 2 * TOGETHER:
        return _products(vec, n_features, x, panel, n_features)
    slots = [cgutils.alloca_once(b, vec.type) for _ in range(ROWS)]
    for slot, turns in zip(slots, _products(vec, n_features, x, panel, TOGETHER), strict=True):
        b.store(turns, slot)

    def add(done: Any, count: int) -> None:
        here = _at(b, x, done), _at(b, panel, b.mul(done, _WORD(vec.lanes)))
        for slot, turns in zip(slots, _products(vec, n_features, *here, count), strict=True):
            b.store(b.fadd(b.load(slot), turns), slot)

    with cgutils.for_range(b, _WORD(whole - 1)) as loop:
        add(b.mul(b.add(loop.index, _WORD(1)), _WORD(TOGETHER)), TOGETHER)
    if rest:
        add(_WORD(whole * TOGETHER), rest)
    return [b.load(slot) for slot in slots]


def add_rows(vec: Vectors, n_features: int, x: Any, panel: Any, sums: Any, weights: Any) -> None:
    """Emit one step.

    Parameters
    ----------
    vec
        Where the code shall stand, and the width of a panel.
    n_features
        Known when the code is made: addresses are then constants.
    x
        Pointer to the samples, of shape (ROWS, n_features).
    panel
        Pointer to the frequencies in turns, of shape (n_features, lanes).
    sums
        Pointer to integers as wide as the numbers, of shape (2, lanes): sums of the steps of
        ``1 - cos`` and of ``sin``, and as often the bits of SQUARE and of PRODUCT.
    weights
        Pointer to the weights of the samples, or none.
    """
    b = vec.builder
    totals: list[Any] = []
    for row, turns in enumerate(_project(vec, n_features, x, panel)):
        s, c = vec.half_angle(turns)
        share = s
        if weights is not None:
            share = b.fmul(s, vec.spread(b.load(_at(b, weights, row))))
        parts = [vec.steps(share, s, SQUARE), vec.steps(share, c, PRODUCT)]
        totals = list(map(vec.add_in_order, totals, parts)) if row else parts
    for offset, total in zip((0, vec.lanes), totals, strict=True):
        place, size = _at(b, sums, offset), vec.bits // 8
        total = b.add(vec.load(place, vec.integers, size), total)
        b.store(total, b.bitcast(place, vec.integers.as_pointer()), align=size)


def module(n_features: int, kind: str, vector_bits: int, weighted: bool) -> ir.Module:
    """The step alone, as code of LLVM for any processor: one block of samples, all panels.

    Its function ``step`` takes samples, panels, sums, weights and the number of panels.
    """
    made = ir.Module("step")
    numbers, sums = real(kind).as_pointer(), whole(kind).as_pointer()
    signature = ir.FunctionType(ir.VoidType(), [numbers, numbers, sums, numbers, _WORD])
    function = ir.Function(made, signature, "step")
    b = ir.IRBuilder(function.append_basic_block("entry"))
    vec = Vectors(b, kind, vector_bits)
    x, panels, totals, weights, count = function.args
    with cgutils.for_range(b, count) as loop:
        panel = _at(b, panels, b.mul(loop.index, _WORD(n_features * vec.lanes)))
        place = _at(b, totals, b.mul(loop.index, _WORD(2 * vec.lanes)))
        add_rows(vec, n_features, x, panel, place, weights if weighted else None)
    b.ret_void()
    return made
