"""Warnings of mixtures and centroids of pilot rows that are too few for them."""

from __future__ import annotations

from dask_sketch.decoders.checks.expected_loss import sampling_losses
from dask_sketch.decoders.checks.unusual_rows import more_rows
from dask_sketch.features.pilot import WARNED_SAMPLING_LOSS, Pilot
from dask_sketch.sketching.sketch import Sketch
from dask_sketch.validation.warn import warn_user

# Bound of the estimated loss of a mixture with covariance matrices, in nats: where 0.07 were
# estimated, 0.17 were lost in one real data set, and nothing in another.
_WARNED_MATRICES = 0.05
_WARNED_CLUSTERS = 1.05  # expected ratio because centroids were found on few pilot rows


def warn_of_few_pilot_rows(sketch: Sketch, *, has_matrices: bool = False) -> None:
    """Warn of a mixture that is no likelier than the pilot's, if the pilot has too few rows.

    Parameters
    ----------
    sketch
        Sketch that was decoded.
    has_matrices
        Whether it is the mixture with covariance matrices.
    """
    pilot = sketch.feature_map.pilot
    if pilot is None:
        return
    loss, bound = pilot.sampling_loss, WARNED_SAMPLING_LOSS
    if has_matrices and pilot.matrix_mixture is not None:
        loss, bound = pilot.matrix_mixture.sampling_loss, _WARNED_MATRICES
    elif pilot.mixture is not None:
        # halves of the rows may have lost the smallest clusters as well
        by_rows = sampling_losses(pilot.mixture.weights, len(pilot.variance), pilot.n_rows)
        loss = max(loss, float(by_rows.sum()))
    if loss > bound:
        warn_user(
            f"the mixture is hardly likelier than EM on the {pilot.n_rows:,} pilot rows, which "
            f"loses about {loss:.2g} nats a sample because they are so few, by fits to halves of "
            f"them or the rows of each component. {more_rows(sketch, pilot.n_rows)}"
        )


def warn_of_few_clustered(sketch: Sketch, n_components: int, pilot: Pilot) -> bool:
    """Warn of centroids from so few pilot rows that their error on other rows is clearly larger.

    Parameters
    ----------
    sketch
        Sketch that was decoded.
    n_components
        Number of centroids.
    pilot
        Record of the pilot rows, which were clustered.
    """
    ratio = 1.0 + max(n_components / pilot.n_rows, pilot.clusters_excess)
    if ratio > _WARNED_CLUSTERS:
        warn_user(
            f"the centroids were found on {pilot.n_rows:,} pilot rows, so few for n_components="
            f"{n_components}, or for the far rows of the data, that their mean squared error on "
            f"all rows is about {ratio:.2f} times the smallest, or more. polish(model, x) takes "
            f"all rows. {more_rows(sketch, pilot.n_rows)}"
        )
    return ratio > _WARNED_CLUSTERS
