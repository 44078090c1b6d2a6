"""Compiled elementary functions of float64: power of two, logarithm, and operations on bits.

They hold no branch and no call, so that LLVM turns loops over them into vector instructions. No
fast-math flag is used: rounding is that of the operations as written, and fused operations are
explicit.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from dask_sketch.validation.compilation import cached_njit

# 2**f on |f| <= 1/2
_E0, _E1, _E2, _E3, _E4, _E5, _E6, _E7, _E8, _E9, _E10 = (
    1.0,
    0.69314718055995,
    0.24022650695910158,
    0.05550410866444768,
    0.009618129107587253,
    0.0013333558230170627,
    0.00015403530463727982,
    1.5252657257186041e-05,
    1.3215432534254162e-06,
    1.0208690835930362e-07,
    7.074194562603152e-09,
)
# Adding this constant rounds to an integer, held in the lowest bits of the sum.
ROUND = 1.5 * 2.0**52
_SMALLEST = -1022.0  # exponent of the smallest normal number


def _fused(typing: Any, a: Any, b: Any, c: Any) -> Any:
    signature = types.float64(types.float64, types.float64, types.float64)
    return signature, lambda context, builder, sig, args: builder.fma(*args)


def _to_bits(typing: Any, a: Any) -> Any:
    signature = types.int64(types.float64)
    return signature, lambda context, builder, sig, args: builder.bitcast(args[0], ir.IntType(64))


def _to_number(typing: Any, a: Any) -> Any:
    signature = types.float64(types.int64)
    return signature, lambda context, builder, sig, args: builder.bitcast(args[0], ir.DoubleType())


# a * b + c rounded once; a number as its bits; bits as a number
fma: Any = intrinsic(_fused)
bits: Any = intrinsic(_to_bits)
number: Any = intrinsic(_to_number)


@cached_njit(nogil=True, error_model="numpy")
def power_of_two(e):  # type: ignore[no-untyped-def]
    """``2**e`` for ``e < 1024``; at most the smallest normal number where that underflows."""
    e = max(e, _SMALLEST)
    k = e + ROUND
    f = e - (k - ROUND)
    p = fma(fma(_E10, f, _E9), f, _E8)
    p = fma(fma(fma(fma(p, f, _E7), f, _E6), f, _E5), f, _E4)
    p = fma(fma(fma(fma(p, f, _E3), f, _E2), f, _E1), f, _E0)
    return number(bits(p) + (bits(k) << 52))


# log2((1 + s) / (1 - s)) / s in s**2, on |s| <= 0.172: Taylor coefficients 2 / ((2 j + 1) log 2)
_L0, _L1, _L2, _L3, _L4, _L5, _L6, _L7, _L8, _L9, _L10 = (
    2.8853900817779268,
    0.9617966939259756,
    0.5770780163555854,
    0.41219858311113244,
    0.32059889797532523,
    0.2623081892525388,
    0.22195308321368667,
    0.1923593387851951,
    0.16972882833987804,
    0.1518626358830488,
    0.1373995277037108,
)
_MANTISSA = 2**52 - 1
_ROOT_HALF = 0x3FE6A09E667F3BCD  # bits of the square root of a half


@cached_njit(nogil=True, error_model="numpy")
def log_to_base_two(x):  # type: ignore[no-untyped-def]
    """Binary logarithm of a normal number ``x > 0``, within 2e-16 of its size or absolutely."""
    shifted = bits(x) - _ROOT_HALF
    exponent = shifted >> 52
    m = number((shifted & _MANTISSA) + _ROOT_HALF)  # number in sqrt(1/2) to sqrt(2)
    s = (m - 1.0) / (m + 1.0)
    y = s * s
    p = fma(fma(_L10, y, _L9), y, _L8)
    p = fma(fma(fma(fma(p, y, _L7), y, _L6), y, _L5), y, _L4)
    p = fma(fma(fma(fma(p, y, _L3), y, _L2), y, _L1), y, _L0)
    return fma(p, s, float(exponent))
