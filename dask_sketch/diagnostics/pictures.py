"""``plot`` of feature maps, sketches, models and the rest: the pictures of each (extra ``plot``).

``sketch.plot.moduli()`` draws into ``ax`` if given, else into a new figure, and returns the axes.
In a notebook that figure is one of pyplot's, so that it shows beneath the cell; elsewhere it is
the caller's alone (``axes.figure.savefig("moduli.png")``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from numpy.typing import ArrayLike

from dask_sketch.diagnostics import plots
from dask_sketch.diagnostics.plots_det import plot_det
from dask_sketch.diagnostics.plots_matrix import plot_matrix
from dask_sketch.display.notebook import in_notebook

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from dask_sketch.features.described import Described
    from dask_sketch.models import Centroids, GaussianMixture
    from dask_sketch.sketching.averages import Averages
    from dask_sketch.sketching.group_averages import GroupAverages
    from dask_sketch.speech.detection import ErrorRates


@dataclass(frozen=True)
class FeatureMapPictures:
    """Of a feature map."""

    _of: Described

    def scale_fit(self, ax: Axes | None = None) -> Axes:
        """How the scale was found: :func:`~dask_sketch.diagnostics.plots.plot_scale_fit`."""
        return plots.plot_scale_fit(self._of.scale_fit, shown(ax))


@dataclass(frozen=True)
class SketchPictures:
    """Of a sketch."""

    _of: Averages

    def moduli(self, model: GaussianMixture | None = None, ax: Axes | None = None) -> Axes:
        """``|z|`` against radius: :func:`~dask_sketch.diagnostics.plots.plot_modulus`."""
        return plots.plot_modulus(self._of, model, shown(ax))


@dataclass(frozen=True)
class GroupPictures:
    """Of sketches of groups."""

    _of: GroupAverages

    def mmd(self, ax: Axes | None = None) -> Axes:
        """Discrepancy of every two groups: :func:`~.plots_matrix.plot_matrix` of ``mmd()``."""
        return plot_matrix(self._of.mmd(), shown(ax))


@dataclass(frozen=True)
class ModelPictures:
    """Of a mixture, or of centroids."""

    _of: GaussianMixture | Centroids

    def ellipses(
        self,
        sample: ArrayLike | None = None,
        features: tuple[int, int] | None = None,
        names: Sequence[str] | None = None,
        ax: Axes | None = None,
    ) -> Axes:
        """Components over a sample: :func:`~dask_sketch.diagnostics.plots.plot_mixture`."""
        return plots.plot_mixture(self._of, sample, features, names, shown(ax))

    def trace(self, ax: Axes | None = None) -> Axes:
        """Cost of the decoder: :func:`~dask_sketch.diagnostics.plots.plot_trace`."""
        return plots.plot_trace(self._of.decoding, shown(ax))


@dataclass(frozen=True)
class RatesPictures:
    """Of the errors of a verifier."""

    _of: ErrorRates

    def det(self, ax: Axes | None = None, **line: Any) -> Axes:
        """The DET curve: :func:`~dask_sketch.diagnostics.plots_det.plot_det`."""
        return plot_det(self._of, shown(ax), **line)


def shown(ax: Axes | None) -> Axes | None:
    """Axes that a notebook will show, where there is one and none are given."""
    if ax is not None or not in_notebook():
        return ax
    plots.require_matplotlib()
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=plots.SIZE, layout="constrained")[1]
