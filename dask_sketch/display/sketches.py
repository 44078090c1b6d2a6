"""Cards of feature maps and sketches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dask_sketch.display.drawing import BLUE, ORANGE, Array, Chart, bars, thinned
from dask_sketch.display.html import card, grid, words

if TYPE_CHECKING:
    from dask_sketch.features.feature_map import Described
    from dask_sketch.features.scale import ScaleFit
    from dask_sketch.sketching.sketch import Sketch

_FEATURES = 20  # shown in a table
_LEAST = 1e-6  # of a modulus in a picture


def feature_map_card(feature_map: Described) -> str:
    """Which frequencies, for components of what size, and what was seen of that size."""
    pictures = [_radii(feature_map)]
    if feature_map.scale_fit is not None:
        pictures.append(scale_fit_chart(feature_map.scale_fit))
    return card(
        "FeatureMap",
        feature_map._fields(),
        summary=f"{feature_map.n_features:,} features to {feature_map.n_frequencies:,} frequencies",
        pictures=pictures,
    )


def _radii(feature_map: Described) -> str:
    counts, edges = np.histogram(feature_map.scaled_radii, bins=30)
    return bars(
        "number of frequencies against their radius",
        counts,
        f"frequencies by radius, {edges[0]:.2g} to {edges[-1]:.2g} over the scale",
    )


def scale_fit_card(fit: ScaleFit) -> str:
    """A scale and what gave it."""
    fields = {
        "scale": f"{fit.scale:.6g}",
        "samples": f"{fit.n_samples:,}",
        "scale after each iteration": ", ".join(f"{scale:.4g}" for scale in fit.path),
    }
    return card("ScaleFit", fields, pictures=[scale_fit_chart(fit)])


def scale_fit_chart(fit: ScaleFit) -> str:
    """Moduli of the pilot samples against radius, and the envelope that gave the scale."""
    far = float(fit.radii.max())
    chart = Chart(
        "pilot moduli against radius of frequency, and the envelope of one component",
        (0.0, far),
        (0.0, 1.0),
        ("radius of frequency", "|z|"),
    )
    some = thinned(len(fit.radii))
    chart.points(fit.radii[some], fit.moduli[some], BLUE, "pilot samples")
    grid_ = np.linspace(0.0, far, 60)
    chart.line(grid_, fit.curve(grid_), ORANGE, f"one component, scale {fit.scale:.3g}")
    return chart.svg()


def sketch_card(sketch: Sketch) -> str:
    """How many samples in how many numbers, and how much of these is more than noise."""
    fields, pictures, summary = sketch._fields(), [], "of no sample"
    more = {"feature map": words(sketch.feature_map._fields())}
    if sketch.total_weight > 0:
        visible = np.abs(sketch.characteristic) > 2.0 * sketch.noise_modulus
        fields["frequencies above the noise"] = f"{visible.mean():.0%}"
        summary = (
            f"{sketch.count:,} samples of {sketch.feature_map.n_features:,} features in "
            f"{sketch.feature_map.n_frequencies:,} frequencies"
        )
        pictures.append(_moduli(sketch))
        if sketch.privacy is None:
            more["features"] = _features(sketch)
    return card("Sketch", fields, summary=summary, pictures=pictures, more=more)


def _moduli(sketch: Sketch) -> str:
    radii, moduli = sketch.feature_map.scaled_radii, np.abs(sketch.characteristic)
    far, noise = float(radii.max()), max(sketch.noise_modulus, _LEAST)
    chart = Chart(
        "modulus of the characteristic function against radius of frequency",
        (0.0, far),
        (noise / 10.0, 1.0),
        ("radius of frequency over the scale", "|z|"),
        log=True,
    )
    some = thinned(len(radii))
    chart.points(radii[some], moduli[some], BLUE, "sketch")
    at = np.linspace(0.0, far, 60)
    chart.line(at, np.exp(-0.5 * at**2), ORANGE, "one component")
    chart.level(noise, "noise")
    return chart.svg()


def _features(sketch: Sketch) -> str:
    columns: list[Array] = [
        sketch.mean,
        np.sqrt(sketch.variance),
        sketch.minimum,
        sketch.maximum,
    ]
    rows: list[list[Any]] = [
        [name, *(f"{column[name]:.4g}" for column in columns)]
        for name in range(min(_FEATURES, len(columns[0])))
    ]
    left = len(columns[0]) - len(rows)
    if left > 0:
        rows.append([f"and {left:,} more", "", "", "", ""])
    return grid(["feature", "mean", "deviation", "least", "largest"], rows)


def group_card(
    labels: NDArray[Any],
    counts: NDArray[Any],
    dim: str,
    fields: dict[str, str],
    feature_map: Described,
) -> str:
    """Sketches of groups: how many, how large, and how unlike in size.

    Parameters
    ----------
    labels, counts
        Of the groups, and the samples in each.
    dim
        Name of what the groups are.
    fields
        What else a glance should show, in words.
    feature_map
        Of all sketches.
    """
    order = np.argsort(-counts, kind="stable")
    largest = [[labels[i], f"{counts[i]:,}"] for i in order[:_FEATURES]]
    if len(order) > _FEATURES:
        largest.append([f"and {len(order) - _FEATURES:,} more", ""])
    pictures = []
    if len(order):
        least, most = counts[order[-1]], counts[order[0]]
        spread = f"{most:,} samples" if least == most else f"{least:,} to {most:,} samples"
        pictures = [
            bars("samples of each group", counts[order], f"by size, each {dim} of {spread}")
        ]
    return card(
        "SketchGroup",
        fields,
        summary=f"{len(order):,} sketches, one for each {dim}, of {counts.sum():,} samples",
        pictures=pictures,
        more={
            f"largest of {dim}": grid([dim, "samples"], largest),
            "feature map": words(feature_map._fields()),
        },
    )
