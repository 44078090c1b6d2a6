"""How often a verifier is wrong: the DET curve and the equal error rate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dask_sketch.display.html import card
from dask_sketch.display.plots import RatesPlots
from dask_sketch.errors import InputError

if TYPE_CHECKING:
    pass

Array = NDArray[np.float64]


@dataclass(frozen=True)
class ErrorRates:
    """Both kinds of error at every threshold.

    Attributes
    ----------
    thresholds
        Ascending; a trial is accepted if its score is at least the threshold. Shape (n,).
    miss
        Share of target trials that are rejected, shape (n,), from 0 to 1.
    false_alarm
        Share of impostor trials that are accepted, shape (n,), from 1 to 0.
    equal_error_rate
        Where both are equal, in [0, 1], with straight lines between the thresholds.
    draws
        Equal error rates of the bootstrap's draws of speakers, shape (n_draws,), NaN where one has
        trials of one kind only; ``None`` unless models were given. Verifiers with one seed and the
        same speakers have the same draws, so that these can be compared pair by pair.
    """

    thresholds: Array
    miss: Array
    false_alarm: Array
    equal_error_rate: float
    draws: Array | None = None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Of the equal error rate, 95 %; ``None`` unless models were given."""
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
    """Error rates of a verifier over its trials.

    Parameters
    ----------
    scores
        Of each trial, shape (n_trials,); the larger, the more likely the claimed speaker.
    targets
        Whether it is the claimed speaker, shape (n_trials,).
    models
        Who was claimed, shape (n_trials,). With it, an interval: trials of one speaker are alike,
        so that the bootstrap draws speakers, each with all of its trials (Poh and Bengio, 2007).
    n_draws
        Of the bootstrap.
    seed
        Of the bootstrap.

    Returns
    -------
    rates

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
            f"scores has shape {values.shape}, targets {kinds.shape}: give one of each for a trial."
        )
    if not np.isfinite(values).all():
        raise InputError(
            f"scores holds {np.count_nonzero(~np.isfinite(values))} that are not finite."
        )
    if kinds.all() or not kinds.any():
        raise InputError(
            f"targets holds {np.count_nonzero(kinds)} target trials of {len(kinds)}: both kinds "
            "are needed."
        )
    order = np.argsort(values, kind="stable")
    values, kinds = values[order], kinds[order]
    last = np.append(values[1:] > values[:-1], True)  # of trials with one score
    counts = np.stack([kinds, ~kinds]).astype(np.float64)
    rates = _rates(counts, last)
    draws = None
    if models is not None:
        claimed = np.asarray(models)
        if claimed.shape != values.shape:
            raise InputError(
                f"models has shape {claimed.shape} for {len(values)} trials: give one for each."
            )
        _, number = np.unique(claimed[order], return_inverse=True)
        draws = _draws(counts, last, number, n_draws, np.random.default_rng(seed))
    return ErrorRates(
        thresholds=np.append(values[last], np.inf),
        miss=rates[0],
        false_alarm=rates[1],
        equal_error_rate=_crossing(*rates),
        draws=draws,
    )


def _rates(counts: Array, last: NDArray[np.bool_]) -> tuple[Array, Array]:
    """Misses and false alarms at each threshold, for weights of target and impostor trials."""
    below = np.cumsum(counts, axis=1)
    total = below[:, -1:]
    # at the n-th threshold all trials with smaller scores are rejected
    rejected = np.concatenate([np.zeros((2, 1)), below[:, last]], axis=1) / total
    return rejected[0], 1.0 - rejected[1]


def _crossing(miss: Array, false_alarm: Array) -> float:
    """Where two piecewise straight lines meet, of which one rises and one falls."""
    after = int(np.argmax(miss >= false_alarm))
    gap = miss - false_alarm
    share = gap[after] / (gap[after] - gap[after - 1])
    return float(miss[after] - share * (miss[after] - miss[after - 1]))


def _draws(
    counts: Array,
    last: NDArray[np.bool_],
    number: NDArray[np.intp],
    n_draws: int,
    rng: np.random.Generator,
) -> Array:
    n_models = int(number.max()) + 1
    found = np.full(n_draws, np.nan)
    for place in range(n_draws):
        times = np.bincount(rng.integers(n_models, size=n_models), minlength=n_models)
        drawn = counts * times[number]
        if drawn.sum(axis=1).all():
            found[place] = _crossing(*_rates(drawn, last))
    return found


def interval_of(draws: ArrayLike) -> tuple[float, float]:
    """The middle 95 % of a bootstrap's draws; those that are NaN do not count.

    Examples
    --------
    >>> interval_of([0.1, 0.1, float("nan")])
    (0.1, 0.1)
    """
    low, high = np.nanquantile(np.asarray(draws, dtype=np.float64), [0.025, 0.975])
    return float(low), float(high)
