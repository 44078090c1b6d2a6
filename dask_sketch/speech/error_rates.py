"""How often a verifier is wrong: the DET curve and the equal error rate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import norm

from dask_sketch.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = NDArray[np.float64]
_LEAST = 1e-4  # of a rate in a picture, whose axes have no place for zero


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
    interval
        Of the equal error rate, 95 %; ``None`` unless models were given.
    """

    thresholds: Array
    miss: Array
    false_alarm: Array
    equal_error_rate: float
    interval: tuple[float, float] | None = None

    def plot(self, ax: Axes | None = None, **line: Any) -> Axes:
        """Draw the DET curve: both rates on the scale of normal deviates.

        Two normal distributions of scores, of equal variance, give a straight line.

        Parameters
        ----------
        ax
            Where to draw; a new figure by default.
        line
            Arguments of ``Axes.plot``, such as ``label``.
        """
        import matplotlib.pyplot as plt

        if ax is None:
            _, ax = plt.subplots()
        x, y = (norm.ppf(np.clip(rate, _LEAST, 1 - _LEAST)) for rate in self._rates())
        (drawn,) = ax.plot(x, y, **line)
        here = norm.ppf(np.clip(self.equal_error_rate, _LEAST, 1 - _LEAST))
        ax.plot([here], [here], "o", color=drawn.get_color())
        ticks = np.array([0.001, 0.01, 0.05, 0.2, 0.5, 0.8, 0.95])
        for axis, name in ((ax.xaxis, "false alarms"), (ax.yaxis, "misses")):
            axis.set_ticks(norm.ppf(ticks), [f"{100 * tick:g} %" for tick in ticks])
            axis.set_label_text(name)
        ax.set_aspect("equal")
        return ax

    def _rates(self) -> tuple[Array, Array]:
        return self.false_alarm, self.miss


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
    interval = None
    if models is not None:
        claimed = np.asarray(models)
        if claimed.shape != values.shape:
            raise InputError(
                f"models has shape {claimed.shape} for {len(values)} trials: give one for each."
            )
        _, number = np.unique(claimed[order], return_inverse=True)
        interval = _interval(counts, last, number, n_draws, np.random.default_rng(seed))
    return ErrorRates(
        thresholds=np.append(values[last], np.inf),
        miss=rates[0],
        false_alarm=rates[1],
        equal_error_rate=_crossing(*rates),
        interval=interval,
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


def _interval(
    counts: Array,
    last: NDArray[np.bool_],
    number: NDArray[np.intp],
    n_draws: int,
    rng: np.random.Generator,
) -> tuple[float, float]:
    n_models = int(number.max()) + 1
    found = []
    for _ in range(n_draws):
        times = np.bincount(rng.integers(n_models, size=n_models), minlength=n_models)
        drawn = counts * times[number]
        if drawn.sum(axis=1).all():
            found.append(_crossing(*_rates(drawn, last)))
    low, high = np.quantile(found, [0.025, 0.975])
    return float(low), float(high)
