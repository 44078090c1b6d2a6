"""Compute the error rates of a verifier: DET curve and equal error rate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dask_sketch.display.html import card
from dask_sketch.display.plots import RatesPlots
from dask_sketch.errors import InputError

Array = NDArray[np.float64]


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
    """

    thresholds: Array
    miss: Array
    false_alarm: Array
    equal_error_rate: float
    draws: Array | None = None

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % interval of the equal error rate; ``None`` unless models were given."""
        return None if self.draws is None else interval_of(self.draws)

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
    draws = None
    if models is not None:
        claimed = np.asarray(models)
        if claimed.shape != values.shape:
            raise InputError(
                f"models has shape {claimed.shape} for {len(values)} trials: give one for each."
            )
        _, speaker = np.unique(claimed, return_inverse=True)
        draws = _bootstrap(kinds, values, speaker, n_draws, np.random.default_rng(seed))
    return ErrorRates(
        thresholds=thresholds,
        miss=miss,
        false_alarm=false_alarm,
        equal_error_rate=_crossing(miss, false_alarm),
        draws=draws,
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


def interval_of(draws: ArrayLike) -> tuple[float, float]:
    """Central 95 % interval of bootstrap samples, ignoring NaN.

    Examples
    --------
    >>> interval_of([0.1, 0.1, float("nan")])
    (0.1, 0.1)
    """
    low, high = np.nanquantile(np.asarray(draws, dtype=np.float64), [0.025, 0.975])
    return float(low), float(high)
