"""The loop that adds stacked sums to others: one reading of what is added, and no copies."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numba
import numpy as np
from numba import types

from dask_sketch.features.fixed_point import LOW_BITS
from dask_sketch.features.kernel import COMPILING

_MASK = 2**LOW_BITS - 1


def add_stacked(out: Any, words: Any, places: Any, shift: int) -> None:
    """Add the rows of ``2**shift`` times some numbers to rows of others, in place.

    Parameters
    ----------
    out
        Shape (n_words, n, ...), of int32 or int64: ``sum_k out[k] 2**(56 k)``, all words but the
        last in 0 to ``2**56 - 1``. It must hold the sums: that is not checked.
    words
        Shape (m, n_rows, ...) with m at most ``n_words``, of no longer integers.
    places
        Rows of ``out``, shape (n_rows,), int64; several may be one.
    shift
        Bits, ``>= 0``.

    Examples
    --------
    >>> out = np.zeros((1, 2, 1), dtype=np.int64)
    >>> add_stacked(out, np.array([[[3], [4], [5]]], dtype=np.int32), np.array([0, 1, 1]), 1)
    >>> out.ravel()
    array([ 6, 18])
    """
    if not words.size:
        return
    n_words, n = out.shape[:2]
    flat = np.ascontiguousarray(words).reshape(len(words), words.shape[1], -1).view()
    flat.flags.writeable = False  # as those of a stack are: one loop to compile
    loop = _loop(n_words == 1, out.dtype, flat.dtype)
    loop(out.reshape(n_words, n, -1), flat, places.astype(np.int64, copy=False), shift)


@lru_cache(maxsize=8)
def _loop(one_word: bool, kind: Any, given: Any) -> Callable[..., None]:
    signature = types.void(
        types.Array(numba.from_dtype(kind), 3, "C"),
        types.Array(numba.from_dtype(given), 3, "C", readonly=True),
        types.Array(types.int64, 1, "C"),
        types.int64,
    )
    with COMPILING:
        made: Callable[..., None] = numba.njit(
            signature, nogil=True, cache=True, error_model="numpy"
        )(_add_word if one_word else _add_words)
    return made


def _add_word(out: Any, words: Any, places: Any, shift: int) -> None:
    for i in range(words.shape[1]):
        row = places[i]
        if shift == 0:
            for j in range(words.shape[2]):
                out[0, row, j] += words[0, i, j]
        else:
            for j in range(words.shape[2]):
                out[0, row, j] += words[0, i, j] << shift


def _add_words(out: Any, words: Any, places: Any, shift: int) -> None:
    n_words, n_given = out.shape[0], words.shape[0]
    first, above = shift // LOW_BITS, shift % LOW_BITS
    for i in range(words.shape[1]):
        row = places[i]
        for j in range(words.shape[2]):
            carry = np.int64(0)
            for k in range(first, n_words):
                total = carry
                source = k - first
                if source < n_given:
                    word = np.int64(words[source, i, j])
                    if k == n_words - 1:
                        total += word << above
                    else:
                        total += (word & (_MASK >> above)) << above
                if 0 < source <= n_given:
                    total += np.int64(words[source - 1, i, j]) >> (LOW_BITS - above)
                total += out[k, row, j]
                if k < n_words - 1:
                    carry = total >> LOW_BITS
                    total &= _MASK
                out[k, row, j] = total
