"""Cards of models and of how they were decoded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dask_sketch.display.drawing import BLUE, Array, Chart, bars
from dask_sketch.display.html import card, grid

if TYPE_CHECKING:
    from dask_sketch.models.centroids import Centroids
    from dask_sketch.models.gaussian_mixture import GaussianMixture
    from dask_sketch.models.model import Decoding

_COMPONENTS, _FEATURES = 20, 8  # shown in a table
_DRAWN = 100  # components in a picture
_SPREAD = 2.0  # deviations to either side


def mixture_card(model: GaussianMixture) -> str:
    """Components, their weights and places, and how well they match their sketch."""
    return card(
        "GaussianMixture",
        model._fields(),
        summary=_summary(model),
        pictures=[_places(model.weights, model.means, model.covariances), _weights(model.weights)],
        notes=_notes(model.decoding),
        more={"components": _components(model)} | _trace(model.decoding),
    )


def centroids_card(model: Centroids) -> str:
    """Centroids, their weights and places, and how well they match their sketch."""
    pictures = [_weights(model.weights)]
    if model.n_features > 1:
        pictures.insert(0, _places(model.weights, model.centers, None))
    shown = min(_FEATURES, model.n_features)
    rows = [
        [k, f"{model.weights[k]:.4g}", *(f"{x:.4g}" for x in model.centers[k, :shown])]
        for k in range(min(_COMPONENTS, model.n_components))
    ]
    table = grid(["centroid", "weight", *_features(shown)], rows)
    return card(
        "Centroids",
        model._fields(),
        summary=_summary(model),
        pictures=pictures,
        notes=_notes(model.decoding),
        more={"centroids" + _left(model): table} | _trace(model.decoding),
    )


def decoding_card(decoding: Decoding) -> str:
    """How a model was decoded."""
    fields = decoding._fields() | {
        "model": decoding.model,
        "evaluations": f"{decoding.n_evaluations:,}",
        "last descent": "converged" if decoding.converged else decoding.message,
        "seed": f"{decoding.seed}",
        "replicates": f"{decoding.replicates}",
    }
    pictures = list(_trace(decoding).values())
    notes = _notes(decoding)
    return card("Decoding", fields, summary=_fit(decoding), pictures=pictures, notes=notes)


def _summary(model: Any) -> str:
    k, d = model.n_components, model.n_features
    what = f"{k:,} component{'s' * (k > 1)} in {d:,} feature{'s' * (d > 1)}"
    return what if model.decoding is None else f"{what}, {_fit(model.decoding)}"


def _fit(decoding: Decoding) -> str:
    if not decoding.noise_level > 0:
        return f"cost {decoding.cost:.3g}"
    return f"cost {decoding.cost / decoding.noise_level:.3g} noise levels"


def _notes(decoding: Decoding | None) -> list[str]:
    if decoding is None or decoding.converged:
        return []
    return [f"The last descent stopped early: {decoding.message}"]


def _weights(weights: Array) -> str:
    return bars("weights of the components", weights, f"weights of {len(weights)} components")


def _places(weights: Array, means: Array, covariances: Array | None) -> str:
    """Two deviations around the means, in the two features of largest variance between them."""
    deviations = np.zeros_like(means) if covariances is None else np.sqrt(covariances)
    if means.shape[1] == 1:
        return _density(weights, means[:, 0], deviations[:, 0])
    middle = weights @ means
    spread = weights @ ((means - middle) ** 2 + deviations**2)
    pair = np.argsort(-spread, kind="stable")[:2]
    centers = means[:_DRAWN, pair]
    reach = _SPREAD * deviations[:_DRAWN, pair]
    low, high = (centers - reach).min(axis=0), (centers + reach).max(axis=0)
    room = 0.05 * np.maximum(high - low, 1e-12 * (1.0 + np.abs(high)))
    low, high = low - room, high + room
    if covariances is None:
        reach = np.broadcast_to(0.015 * (high - low) * [1.0, 2.0], centers.shape)
    chart = Chart(
        "components in the two features of largest variance",
        (float(low[0]), float(high[0])),
        (float(low[1]), float(high[1])),
        (f"feature {pair[0]}", f"feature {pair[1]}"),
    )
    share = weights[:_DRAWN] / weights.max()
    chart.ellipses(centers, reach, share if covariances is not None else 1.0 + 2.0 * share)
    return chart.svg()


def _density(weights: Array, means: Array, deviations: Array) -> str:
    low = float((means - 2 * _SPREAD * deviations).min())
    high = float((means + 2 * _SPREAD * deviations).max())
    x = np.linspace(low, high, 200)
    away = (x[:, None] - means) / deviations
    density = np.exp(-0.5 * away**2) @ (weights / (deviations * np.sqrt(2.0 * np.pi)))
    chart = Chart(
        "density", (low, high), (0.0, float(density.max()) or 1.0), ("feature 0", "density")
    )
    chart.line(x, density, BLUE)
    return chart.svg()


def _components(model: GaussianMixture) -> str:
    shown = min(_FEATURES, model.n_features)
    errors = model.stderr
    rows = []
    for k in range(min(_COMPONENTS, model.n_components)):
        weight = f"{model.weights[k]:.4g}"
        means = [f"{x:.4g}" for x in model.means[k, :shown]]
        if errors is not None:
            weight += f" ± {errors.weights[k]:.2g}"
            pairs = zip(means, errors.means[k, :shown], strict=True)
            means = [f"{mean} ± {error:.2g}" for mean, error in pairs]
        rows.append([k, weight, *means])
        deviations = np.sqrt(model.covariances[k, :shown])
        rows.append(["", "± deviation", *(f"{x:.4g}" for x in deviations)])
    left = model.n_components - _COMPONENTS
    if left > 0:
        rows.append([f"and {left:,} more", *[""] * (shown + 1)])
    names = _features(shown, model.n_features)
    return grid(["component", "weight", *names], rows)


def _features(shown: int, n_features: int = 0) -> list[str]:
    names = [f"feature {k}" for k in range(shown)]
    if n_features > shown:
        names[-1] += f" (of {n_features:,})"
    return names


def _left(model: Any) -> str:
    left = model.n_components - _COMPONENTS
    return f" ({left:,} more are not shown)" if left > 0 else ""


def _trace(decoding: Decoding | None) -> dict[str, str]:
    if decoding is None or len(decoding.trace) < 2:  # one step is no curve
        return {}
    costs = np.maximum(np.asarray(decoding.trace), np.finfo(float).tiny)
    level = decoding.noise_level
    least = min(costs.min(), level) if level > 0 else costs.min()
    chart = Chart(
        "cost after each iteration",
        (1.0, float(len(costs))),
        (0.7 * float(least), float(costs.max())),
        (decoding.steps, "cost"),
        log=True,
    )
    chart.line(np.arange(1, len(costs) + 1), costs, BLUE, "cost")
    if level > 0:
        chart.level(level, "noise alone")
    return {"decoder": chart.svg()}
