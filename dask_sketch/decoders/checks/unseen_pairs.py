"""Pairs of features that hardly any row observes together, where values are missing."""

from __future__ import annotations

import numpy as np

from dask_sketch.features.kernels.incomplete import pairs_of
from dask_sketch.sketching.sketch import Sketch
from dask_sketch.validation.tables import feature_labels
from dask_sketch.validation.warn import warn_user

# Rows for each component that observe both features, and part of all rows, below which the
# dependence of a pair is warned of. Two tables of 15,000 rows and three components that shared 50
# rows cost 0.2 to 1.5 nats a sample, 150 rows 0.01 to 0.3, 500 rows 0.01 to 0.05.
_ENOUGH, _RARE = 100, 0.1


def warn_of_unseen_pairs(sketch: Sketch, n_components: int | None) -> None:
    """Warn of a model whose dependence between two features is a guess.

    Parameters
    ----------
    sketch
        Sketch of at least one sample.
    n_components
        Number of components; None if it is not known.
    """
    if sketch.missing is None or n_components == 1:
        return
    first, second = pairs_of(sketch.feature_map.n_features)
    fractions = sketch.observed.pair_fractions
    together = fractions * sketch.effective_count
    k = 2 if n_components is None else n_components
    rare = (together < _ENOUGH * k) & (fractions < _RARE) & (first != second)
    if not rare.any():
        return
    names = feature_labels(sketch.feature_map.n_features, sketch.feature_map.feature_names)
    rarest = int(np.argmin(np.where(rare, together, np.inf)))
    n_rows = max(round(float(together[rarest])), 0)
    seen = f"only about {n_rows:,} rows observe" if n_rows else "no row observes"
    others = f" (and {rare.sum() - 1:,} other pairs)" if rare.sum() > 1 else ""
    warn_user(
        f"{seen} {names[first[rarest]]} and {names[second[rarest]]} together{others}: how the "
        "components combine such features is a guess, and rows that have both may be several nats "
        "less likely than they could be. Sketch more rows without missing values there, or fit the "
        "features that are observed together by themselves."
    )
