"""The rate of multiply-adds that one core reaches when it does nothing else."""

from __future__ import annotations

import time
from functools import lru_cache
from typing import Any

import numba
import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from dask_sketch.features.kernels.dense import OPERATIONS
from dask_sketch.features.kernels.llvm_vectors import Vectors

CHAINS = (6, 8, 12)  # vectors that do not wait for each other: what is best differs by processor
UNROLLED = 4


@intrinsic(prefer_literal=True)
def _chains(typing: Any, out: Any, turns: Any, chains: Any) -> Any:
    """``chains`` vectors, each multiplied and added to ``4 turns`` times; their sum is kept."""
    count, kind = chains.literal_value, out.dtype.name

    def emit(context: Any, b: Any, sig: Any, args: Any) -> Any:
        vec = Vectors(b, kind)
        data = context.make_array(sig.args[0])(context, b, args[0]).data
        value = vec.load(data, vec.type, vec.bits // 8)
        slots = [cgutils.alloca_once(b, vec.type) for _ in range(count)]
        for k, slot in enumerate(slots):
            b.store(vec.constant(float(k)), slot)
        with cgutils.for_range(b, args[1]):
            for slot in slots * UNROLLED:
                b.store(vec.multiply_add(b.load(slot), value, value), slot)
        total = b.load(slots[0])
        for slot in slots[1:]:
            total = b.fadd(total, b.load(slot))
        b.store(total, b.bitcast(data, vec.type.as_pointer()), align=vec.bits // 8)
        return context.get_dummy_value()

    return types.void(out, turns, chains), emit


@lru_cache
def _compiled(chains: int, dtype: str) -> Any:
    real = numba.from_dtype(np.dtype(dtype))

    @numba.njit(types.void(real[::1], types.int64))
    def run(out, turns):  # type: ignore[no-untyped-def]
        _chains(out, turns, chains)

    return run


def multiply_adds(dtype: str = "float32", turns: int = 200_000) -> float:
    """Fused multiply-adds per second of CPU time, in G; the best of a few independent chains."""
    best = 0.0
    for chains in CHAINS:
        run = _compiled(chains, dtype)
        out = np.full(64, 0.5, dtype=dtype)
        start = time.process_time()
        run(out, turns)
        spent = time.process_time() - start
        lanes = 64 // np.dtype(dtype).itemsize
        best = max(best, turns * UNROLLED * chains * lanes / max(spent, 1e-9) / 1e9)
    return best


def pairs(n_features: int, dtype: str = "float32", turns: int = 200_000) -> float:
    """G pairs per second if every operation of a pair were one of :func:`multiply_adds`.

    What is counted is what the arithmetic needs: ``n_features`` for the projection and
    ``OPERATIONS`` for cosine, sine and their rounding to the grid; two additions of integers are
    not. Where additions have ports of their own, a kernel may come out slightly above.
    """
    return multiply_adds(dtype, turns) / (n_features + OPERATIONS[dtype])
