"""The DET curve: misses against false alarms of a verifier (extra ``plot``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.stats import norm

from dask_sketch.diagnostics.plots import new_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from dask_sketch.speech.detection import ErrorRates

_LEAST, _MOST = 5e-4, 0.6  # of a rate: the axes have no place for zero, nobody looks at the rest
_TICKS = np.array([0.001, 0.01, 0.05, 0.2, 0.5, 0.8, 0.95])


def plot_det(rates: ErrorRates, ax: Axes | None = None, **line: Any) -> Axes:
    """Both rates of error on the scale of normal deviates, and the point where they are equal.

    Two normal distributions of scores, of equal variance, give a straight line.

    Parameters
    ----------
    rates
        Of a verifier.
    ax
        Where to draw; several curves may share one.
    line
        Arguments of ``Axes.plot``, such as ``label``.

    Raises
    ------
    InputError
        If matplotlib is missing.

    Examples
    --------
    >>> from dask_sketch.speech.detection import error_rates
    >>> rates = error_rates([0.1, 0.4, 0.6, 0.9], [False, True, False, True])
    >>> plot_det(rates, label="sketch").get_xlabel()
    'false alarms'
    """
    ax = new_axes(ax)
    others = len(ax.lines) > 0
    x, y = (norm.ppf(np.clip(r, _LEAST, 1 - _LEAST)) for r in (rates.false_alarm, rates.miss))
    (drawn,) = ax.plot(x, y, **line)
    here = norm.ppf(np.clip(rates.equal_error_rate, _LEAST, 1 - _LEAST))
    ax.plot([here], [here], "o", color=drawn.get_color())
    for axis, name in ((ax.xaxis, "false alarms"), (ax.yaxis, "misses")):
        axis.set_ticks(norm.ppf(_TICKS), [f"{100 * tick:g} %" for tick in _TICKS])
        axis.set_label_text(name)
    most = max(_MOST, min(2.0 * rates.equal_error_rate, 1.0 - _LEAST))
    if others:
        most = max(most, float(norm.cdf(ax.get_xlim()[1])))
    ends = norm.ppf([_LEAST, most])
    ax.set(xlim=ends, ylim=ends, aspect="equal")
    ax.tick_params(axis="x", rotation=45)
    return ax
