"""Sample discrete Laplace and discrete Gaussian noise exactly.

Noise in floating point reveals its input: the set of possible values of a rounded logarithm shows
which number was added (Mironov 2012). All samples here are made by comparing uniform integers, so
the distribution is exactly the stated one, and no real number is rounded.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]
_BATCH = 2**15  # samples per block


class RandomBits:
    """Cryptographic random words: from the operating system, or from a secret key.

    With a key, the words are blocks of SHAKE-256. Without the key they cannot be distinguished from
    random words, nor predicted from earlier ones. A generator for simulations is not suitable,
    because its state can be computed from its output.

    Parameters
    ----------
    key
        Secret bytes; entropy of the operating system by default.
    """

    def __init__(self, key: bytes | None = None) -> None:
        self._key = key
        self._block = 0

    def words(self, n: int) -> NDArray[np.uint64]:
        """Return words of 64 random bits, shape (n,)."""
        if self._key is None:
            return np.frombuffer(secrets.token_bytes(8 * n), dtype="<u8")
        stream = hashlib.shake_256(self._key + self._block.to_bytes(8, "little"))
        self._block += 1
        return np.frombuffer(stream.digest(8 * n), dtype="<u8")

    def below(self, bound: int, n: int) -> Integers:
        """Sample uniform integers in ``[0, bound)``, shape (n,), for ``1 <= bound < 2**63``.

        Words of the smallest sufficient number of bits are rejected if too large, so there is no
        bias.
        """
        shift = np.uint64(64 - max((bound - 1).bit_length(), 1))
        out = np.empty(n, dtype=np.int64)
        filled = 0
        while filled < n:
            numbers = (self.words(n - filled) >> shift).astype(np.int64)
            numbers = numbers[numbers < bound]
            out[filled : filled + len(numbers)] = numbers
            filled += len(numbers)
        return out


def discrete_laplace(scale: int, n: int, bits: RandomBits) -> Integers:
    """Sample ``P(y) ~ exp(-|y| / scale)`` on the integers (Canonne et al. 2020, algorithm 2).

    Parameters
    ----------
    scale
        Scale in ``1 .. 2**48``.
    n
        Number of samples.
    bits
        Source of random words.

    Returns
    -------
    noise
        Samples, shape (n,).

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
        quotient = _geometric(1, len(part), bits)
        return quotient * scale + part

    return _signed(magnitudes, n, bits)


def discrete_gaussian(deviation: int, n: int, bits: RandomBits) -> Integers:
    """Sample ``P(y) ~ exp(-y**2 / (2 deviation**2))`` on the integers.

    A magnitude is ``quotient * deviation + part``. Its distribution factors into trials of
    probabilities ``exp(-quotient**2 / 2)``, ``exp(-quotient * part / deviation)`` and
    ``exp(-(part / deviation)**2 / 2)``, whose exponents are ratios of integers: algorithm D of
    Karney (2016), with the trials of algorithm 1 of Canonne et al. (2020).

    Parameters
    ----------
    deviation
        Scale in ``1 .. 2**48``; from 3 on, the standard deviation to within ``1e-30``.
    n
        Number of samples.
    bits
        Source of random words.

    Returns
    -------
    noise
        Samples, shape (n,).

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
        quotient = _geometric(2, n, bits)
        # exp(-k / 2) of the geometric sample times exp(-k (k - 1) / 2) of the trials
        quotient = quotient[
            _repeated(quotient * (quotient - 1), lambda rows: _inverse(2, len(rows), bits))
        ]
        part = bits.below(deviation, len(quotient))

        def once(rows: Integers) -> Flags:
            return _exp_of(_ratio(part[rows], deviation, bits), len(rows))

        accepted = _repeated(quotient, once)
        quotient, part = quotient[accepted], part[accepted]

        def square(rows: Integers, k: int) -> Flags:
            below = bits.below(2 * k, len(rows)) == 0
            for _ in range(2):
                below &= bits.below(deviation, len(rows)) < part[rows]
            return below

        near = _exp_of(square, len(part))
        return quotient[near] * deviation + part[near]

    return _signed(magnitudes, n, bits)


def _signed(magnitudes: Callable[[int], Integers], n: int, bits: RandomBits) -> Integers:
    """Add random signs; minus zero is rejected, or zero would be twice as frequent."""
    out = np.empty(n, dtype=np.int64)
    filled = 0
    while filled < n:
        values = magnitudes(min(2 * (n - filled) + 16, _BATCH))
        negative = bits.below(2, len(values)) == 1
        values = np.where(negative, -values, values)[~(negative & (values == 0))][: n - filled]
        out[filled : filled + len(values)] = values
        filled += len(values)
    return out


def _exp_of(trial: Callable[[Integers, int], Flags], n: int) -> Flags:
    """Trials of probability ``exp(-g)`` from trials for ``g / k`` (Canonne et al., algorithm 1).

    ``trial(rows, k)`` makes trials for some rows. The first ``k`` that fails is odd with
    probability ``exp(-g)``.
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
    """Trials of probability ``numerators / (denominator k)``."""

    def trial(rows: Integers, k: int) -> Flags:
        return bits.below(denominator * k, len(rows)) < numerators[rows]

    return trial


def _inverse(divisor: int, n: int, bits: RandomBits) -> Flags:
    """Trials of probability ``exp(-1 / divisor)``, shape (n,)."""
    return _exp_of(_ratio(np.ones(n, dtype=np.int64), divisor, bits), n)


def _geometric(divisor: int, n: int, bits: RandomBits) -> Integers:
    """Number of successes of probability ``exp(-1 / divisor)`` before the first failure."""
    out = np.zeros(n, dtype=np.int64)
    rows = np.arange(n)
    while rows.size:
        rows = rows[_inverse(divisor, len(rows), bits)]
        out[rows] += 1
    return out


def _repeated(times: Integers, once: Callable[[Integers], Flags]) -> Flags:
    """Whether all ``times`` trials of a row succeed, for each row."""
    out = np.ones(len(times), dtype=np.bool_)
    done = 0
    rows = np.flatnonzero(times > done)
    while rows.size:
        success = once(rows)
        out[rows[~success]] = False
        done += 1
        rows = rows[success & (times[rows] > done)]
    return out
