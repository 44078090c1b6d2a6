"""Cards of how far something is from something else: discrepancies, fits, errors."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dask_sketch.display.drawing import BLUE, GREY, ORANGE, Chart, gauge
from dask_sketch.display.html import card

if TYPE_CHECKING:
    from dask_sketch.diagnostics.detection import ErrorRates
    from dask_sketch.diagnostics.fit import FitDiagnostics

_FAR = 5.0  # standard deviations that noise does not reach


def difference_card(title: str, cost: float, noise_level: float, deviation: float) -> str:
    """A squared discrepancy against its noise.

    Parameters
    ----------
    title
        Name of the class.
    cost, noise_level, deviation
        What was measured, what it is on average without any difference, and its deviation.
    """
    above = (cost - noise_level) / deviation if deviation > 0 else math.inf
    squared = cost - noise_level
    fields = {
        "cost": f"{cost:.3g}",
        "noise level": f"{noise_level:.3g} ± {deviation:.2g}",
        "discrepancy": f"{math.sqrt(max(squared, 0.0)):.3g}",
        "squared": f"{squared:.3g}",
    }
    far = above > _FAR
    parts = [("noise level", min(cost, noise_level), GREY)]
    if squared > 0:
        parts.append(("above it", squared, ORANGE if far else BLUE))
    verdict = "more than noise explains" if far else "as noise explains"
    return card(
        title,
        fields,
        summary=f"{above:,.1f} standard deviations above noise: {verdict}",
        pictures=[
            gauge("cost against noise", parts, noise_level + _FAR * deviation, _below(deviation))
        ],
    )


def _below(deviation: float) -> str:
    return f"bar: noise level and {_FAR:g} deviations" if deviation > 0 else "bar: noise level"


def fit_card(fit: FitDiagnostics) -> str:
    """How good a model is, and what is wrong with it."""
    found = fit.findings
    if not fit.noise_level > 0:
        pictures = []
    else:
        pictures = [
            gauge(
                "cost of the model, in noise levels",
                [("cost", fit.cost, BLUE if fit.cost <= fit.noise_level else ORANGE)],
                fit.noise_level,
                f"cost: {fit.cost_ratio:.3g} of the noise level",
            )
        ]
    return card(
        "FitDiagnostics",
        fit._fields(),
        summary=f"{len(found)} finding{'s' * (len(found) != 1)}" if found else "nothing found",
        pictures=pictures,
        notes=found.values(),
    )


def rates_card(rates: ErrorRates) -> str:
    """How often a verifier is wrong."""
    equal = f"{rates.equal_error_rate:.2%}"
    if rates.interval is not None:
        equal += f" ({rates.interval[0]:.2%} to {rates.interval[1]:.2%})"
    chart = Chart("misses against false alarms", (0.0, 1.0), (0.0, 1.0), ("false alarms", "misses"))
    chart.line([0.0, 1.0], [0.0, 1.0], GREY, "equal")
    chart.line(rates.false_alarm, rates.miss, BLUE, "thresholds")
    fields = {"equal error rate": equal, "thresholds": f"{len(rates.thresholds):,}"}
    return card("ErrorRates", fields, summary=f"equal error rate {equal}", pictures=[chart.svg()])
