"""Compute the error rates of a verifier: DET curve and equal error rate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from dask_sketch.display.html import card
from dask_sketch.display.plots import RatesPlots
from dask_sketch.errors import InputError

Array = NDArray[np.float64]
_LOW, _HIGH = 0.025, 0.975


@dataclass(frozen=True)
class ErrorRates:
    """Rates of misses and false alarms at every threshold.

    Attributes
    ----------
    thresholds
        Thresholds in ascending order, shape (n,); a trial is accepted if its score is at least the
        threshold.
    miss
        Fraction of target trials that are rejected, shape (n,), from 0 to 1.
    false_alarm
        Fraction of impostor trials that are accepted, shape (n,), from 1 to 0.
    equal_error_rate
        Rate at which misses and false alarms are equal, in [0, 1], interpolated linearly between
        thresholds.
    draws
        Equal error rates of bootstrap samples of the speakers, shape (n_draws,); NaN for samples
        with only targets or only impostors; ``None`` unless models were given. Verifiers with the
        same seed and speakers have the same bootstrap samples, so that they can be compared in
        pairs.
    n_speakers
        Number of claimed speakers; ``None`` unless models were given.
    """

    thresholds: Array
    miss: Array
    false_alarm: Array
    equal_error_rate: float
    draws: Array | None = None
    n_speakers: int | None = None

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % interval of the equal error rate; ``None`` unless models were given.

        It is wider than the quantiles of the bootstrap samples by Student's t for the number of
        speakers. In 150 simulations each of effects of speakers, such intervals contained the rate
        in 91 to 93 % with 6 speakers, in 85 % with 12, and in 95 % with 30.
        """
        if self.draws is None:
            return None
        low, high = interval_of(self.draws, self.n_speakers)
        return max(low, 0.0), min(high, 1.0)

    @property
    def plot(self) -> RatesPlots:
        """Plots (extra ``plot``): ``rates.plot.det()``."""
        return RatesPlots(self)

    def _repr_html_(self) -> str:
        equal = f"{self.equal_error_rate:.2%}"
        if self.interval is not None:
            equal += f" ({self.interval[0]:.2%} to {self.interval[1]:.2%})"
        fields = {"equal error rate": equal, "thresholds": f"{len(self.thresholds):,}"}
        return card("ErrorRates", fields, summary=f"equal error rate {equal}")


def error_rates(
    scores: ArrayLike,
    targets: ArrayLike,
    models: ArrayLike | None = None,
    *,
    n_draws: int = 1000,
    seed: int = 0,
) -> ErrorRates:
    """Compute the error rates of a verifier over its trials.

    Parameters
    ----------
    scores
        Score of each trial, shape (n_trials,); larger scores favour the claimed speaker.
    targets
        Whether each trial is of the claimed speaker, shape (n_trials,).
    models
        Claimed speaker of each trial, shape (n_trials,), to compute an interval. Trials of one
        speaker are dependent, so that the bootstrap samples speakers, each with all of its trials
        (Poh and Bengio, 2007).
    n_draws
        Number of bootstrap samples.
    seed
        Seed of the bootstrap, ``>= 0``.

    Returns
    -------
    rates
        Error rates at every threshold.

    Raises
    ------
    InputError
        If shapes differ, a score is not finite, or all trials are of one kind.

    Examples
    --------
    >>> error_rates([0.1, 0.4, 0.6, 0.9], [False, True, False, True]).equal_error_rate
    0.5
    """
    values = np.asarray(scores, dtype=np.float64)
    kinds = np.asarray(targets, dtype=bool)
    if values.ndim != 1 or kinds.shape != values.shape:
        raise InputError(
            f"scores has shape {values.shape}, targets {kinds.shape}: give both for each trial."
        )
    if not np.isfinite(values).all():
        raise InputError(
            f"scores holds {np.count_nonzero(~np.isfinite(values))} values that are not finite: "
            "leave these trials out."
        )
    if kinds.all() or not kinds.any():
        raise InputError(
            f"targets holds {np.count_nonzero(kinds)} target trials of {len(kinds)}: give target "
            "trials and impostor trials."
        )
    miss, false_alarm, thresholds = _curve(kinds, values)
    draws = n_speakers = None
    if models is not None:
        claimed = np.asarray(models)
        if claimed.shape != values.shape:
            raise InputError(
                f"models has shape {claimed.shape} for {len(values)} trials: give one for each."
            )
        known, speaker = np.unique(claimed, return_inverse=True)
        n_speakers = len(known)
        draws = _bootstrap(kinds, values, speaker, n_draws, np.random.default_rng(seed))
    return ErrorRates(
        thresholds=thresholds,
        miss=miss,
        false_alarm=false_alarm,
        equal_error_rate=_crossing(miss, false_alarm),
        draws=draws,
        n_speakers=n_speakers,
    )


def _curve(
    targets: NDArray[np.bool_], scores: Array, weights: Array | None = None
) -> tuple[Array, Array, Array]:
    """Misses and false alarms by ascending threshold, from no misses to no false alarms."""
    # imported here: scikit-learn takes longer to load than the rest of the command line
    from sklearn.metrics import det_curve

    false_alarm, miss, thresholds = det_curve(targets, scores, sample_weight=weights)
    return (
        np.concatenate([[0.0], miss, [1.0]]),
        np.concatenate([[1.0], false_alarm, [0.0]]),
        np.concatenate([[scores.min()], thresholds, [np.inf]]),
    )


def _crossing(miss: Array, false_alarm: Array) -> float:
    """Value where an increasing and a decreasing piecewise linear function are equal."""
    after = int(np.argmax(miss >= false_alarm))
    gap = miss - false_alarm
    fraction = gap[after] / (gap[after] - gap[after - 1])
    return float(miss[after] - fraction * (miss[after] - miss[after - 1]))


def _bootstrap(
    targets: NDArray[np.bool_],
    scores: Array,
    speaker: NDArray[np.intp],
    n_draws: int,
    rng: np.random.Generator,
) -> Array:
    """Equal error rates of bootstrap samples of speakers, shape (n_draws,)."""
    n_speakers = int(speaker.max()) + 1
    rates = np.full(n_draws, np.nan)
    for i in range(n_draws):
        counts = np.bincount(rng.integers(n_speakers, size=n_speakers), minlength=n_speakers)
        weights = counts[speaker].astype(np.float64)
        if weights[targets].any() and weights[~targets].any():
            miss, false_alarm, _ = _curve(targets, scores, weights)
            rates[i] = _crossing(miss, false_alarm)
    return rates


def interval_of(draws: ArrayLike, n_units: int | None = None) -> tuple[float, float]:
    """Central 95 % interval of bootstrap samples, ignoring NaN.

    Parameters
    ----------
    draws
        Bootstrap samples, shape (n_draws,).
    n_units
        Number of units that were sampled. The distances of the ends from the median are then
        widened to those of Student's t, and to the divisor ``n_units - 1`` of the variance.

    Examples
    --------
    >>> interval_of([0.1, 0.1, float("nan")])
    (0.1, 0.1)
    """
    values = np.asarray(draws, dtype=np.float64)
    low, middle, high = np.nanquantile(values, [_LOW, 0.5, _HIGH])
    factor = 1.0
    if n_units is not None and n_units > 1:
        ratio = special.stdtrit(n_units - 1, _HIGH) / special.ndtri(_HIGH)
        factor = float(ratio * np.sqrt(n_units / (n_units - 1)))
    return float(middle - factor * (middle - low)), float(middle + factor * (high - middle))
