"""Noise on the integers, drawn exactly: discrete Laplace and discrete Gaussian.

Noise in floating point gives itself away: which numbers a rounded logarithm can and cannot be tells
what was added to what (Mironov 2012). Here every draw is made of comparisons of uniform integers,
so that the distribution is the one stated, to the last bit, and no real number is ever rounded.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]
LARGEST_SCALE = 2**48  # of the noise, in steps: magnitudes then stay far inside 64 bits
_BATCH = 2**15  # draws worked on at once


class RandomBits:
    """Random words for privacy: of the operating system, or of a secret key.

    With a key they are SHAKE-256 of it, block by block: whoever does not know the key cannot tell
    them from chance, nor the next from those before. A generator for simulations would not do, its
    state can be computed from what it gives.

    Parameters
    ----------
    key
        Secret bytes; the operating system's entropy when not given.
    """

    def __init__(self, key: bytes | None = None) -> None:
        self._key = key
        self._block = 0

    def words(self, n: int) -> NDArray[np.uint64]:
        """Words of 64 random bits, shape (n,)."""
        if self._key is None:
            return np.frombuffer(secrets.token_bytes(8 * n), dtype="<u8")
        stream = hashlib.shake_256(self._key + self._block.to_bytes(8, "little"))
        self._block += 1
        return np.frombuffer(stream.digest(8 * n), dtype="<u8")

    def below(self, bound: int, n: int) -> Integers:
        """Uniform integers of ``[0, bound)``, shape (n,), for ``1 <= bound < 2**63``.

        By rejection of those of as many bits that are too large, hence without any bias.
        """
        shift = np.uint64(64 - max((bound - 1).bit_length(), 1))
        out = np.empty(n, dtype=np.int64)
        filled = 0
        while filled < n:
            found = (self.words(n - filled) >> shift).astype(np.int64)
            found = found[found < bound]
            out[filled : filled + len(found)] = found
            filled += len(found)
        return out


def discrete_laplace(scale: int, n: int, bits: RandomBits) -> Integers:
    """Draw from ``P(y) ~ exp(-|y| / scale)`` on the integers, algorithm 2 of the source.

    Parameters
    ----------
    scale
        In ``1 .. 2**48``.
    n
        Number of draws.
    bits
        Where chance comes from.

    Returns
    -------
    noise
        Shape (n,).

    References
    ----------
    Canonne, Kamath, Steinke (2020), The discrete Gaussian for differential privacy.

    Examples
    --------
    >>> discrete_laplace(3, 4, RandomBits(b"a key")).shape
    (4,)
    """

    def magnitudes(n: int) -> Integers:
        part = bits.below(scale, n)
        part = part[_exp_of(_ratio(part, scale, bits), len(part))]
        whole = _geometric(1, len(part), bits)
        return whole * scale + part

    return _signed(magnitudes, n, bits)


def discrete_gaussian(deviation: int, n: int, bits: RandomBits) -> Integers:
    """Draw from ``P(y) ~ exp(-y**2 / (2 deviation**2))`` on the integers.

    A magnitude is ``whole * deviation + part``, and its distribution factors into trials whose
    chances are ratios of integers: ``exp(-whole**2 / 2)``, ``exp(-whole * part / deviation)`` and
    ``exp(-(part / deviation)**2 / 2)``; algorithm D of Karney, trials by algorithm 1 of Canonne et
    al.

    Parameters
    ----------
    deviation
        In ``1 .. 2**48``. For 3 and more, the standard deviation to within ``1e-30``.
    n
        Number of draws.
    bits
        Where chance comes from.

    Returns
    -------
    noise
        Shape (n,).

    References
    ----------
    Canonne, Kamath, Steinke (2020), The discrete Gaussian for differential privacy.
    Karney (2016), Sampling exactly from the normal distribution.

    Examples
    --------
    >>> discrete_gaussian(3, 4, RandomBits(b"a key")).shape
    (4,)
    """

    def magnitudes(n: int) -> Integers:
        whole = _geometric(2, n, bits)
        # exp(-k / 2) of the draw times exp(-k (k - 1) / 2) of the trials
        whole = whole[_repeated(whole * (whole - 1), lambda rows: _inverse(2, len(rows), bits))]
        part = bits.below(deviation, len(whole))

        def once(rows: Integers) -> Flags:
            return _exp_of(_ratio(part[rows], deviation, bits), len(rows))

        kept = _repeated(whole, once)
        whole, part = whole[kept], part[kept]

        def square(rows: Integers, k: int) -> Flags:
            below = bits.below(2 * k, len(rows)) == 0
            for _ in range(2):
                below &= bits.below(deviation, len(rows)) < part[rows]
            return below

        near = _exp_of(square, len(part))
        return whole[near] * deviation + part[near]

    return _signed(magnitudes, n, bits)


def _signed(magnitudes: Callable[[int], Integers], n: int, bits: RandomBits) -> Integers:
    """Both signs alike; zero must not come twice as often, so that minus zero is drawn again."""
    out = np.empty(n, dtype=np.int64)
    filled = 0
    while filled < n:
        found = magnitudes(min(2 * (n - filled) + 16, _BATCH))
        negative = bits.below(2, len(found)) == 1
        found = np.where(negative, -found, found)[~(negative & (found == 0))][: n - filled]
        out[filled : filled + len(found)] = found
        filled += len(found)
    return out


def _exp_of(trial: Callable[[Integers, int], Flags], n: int) -> Flags:
    """Trials of chance ``exp(-g)``, from those of chance ``g / k``: algorithm 1 of Canonne et al.

    ``trial(rows, k)`` draws for some rows. The first ``k`` that fails is odd with that chance.
    """
    out = np.zeros(n, dtype=np.bool_)
    rows = np.arange(n)
    k = 1
    while rows.size:
        success = trial(rows, k)
        out[rows[~success]] = k % 2 == 1
        rows = rows[success]
        k += 1
    return out


def _ratio(numerators: Integers, denominator: int, bits: RandomBits) -> Callable[..., Flags]:
    """Trials of chance ``numerators / (denominator k)``."""

    def trial(rows: Integers, k: int) -> Flags:
        return bits.below(denominator * k, len(rows)) < numerators[rows]

    return trial


def _inverse(divisor: int, n: int, bits: RandomBits) -> Flags:
    """Trials of chance ``exp(-1 / divisor)``, shape (n,)."""
    return _exp_of(_ratio(np.ones(n, dtype=np.int64), divisor, bits), n)


def _geometric(divisor: int, n: int, bits: RandomBits) -> Integers:
    """Successes before the first failure of trials of chance ``exp(-1 / divisor)``, shape (n,)."""
    out = np.zeros(n, dtype=np.int64)
    rows = np.arange(n)
    while rows.size:
        rows = rows[_inverse(divisor, len(rows), bits)]
        out[rows] += 1
    return out


def _repeated(times: Integers, once: Callable[[Integers], Flags]) -> Flags:
    """Whether all of ``times`` trials succeed, row by row."""
    out = np.ones(len(times), dtype=np.bool_)
    done = 0
    rows = np.flatnonzero(times > done)
    while rows.size:
        success = once(rows)
        out[rows[~success]] = False
        done += 1
        rows = rows[success & (times[rows] > done)]
    return out
