"""Models and sketches given to the diagnostics, checked."""

from __future__ import annotations

from typing import Any

from dask_sketch.errors import InputError
from dask_sketch.models import Centroids, GaussianMixture
from dask_sketch.sketching import Sketch


def require_model(name: str, value: Any) -> None:
    """Refuse what is no model."""
    if not isinstance(value, (GaussianMixture, Centroids)):
        raise InputError(
            f"{name} of type {type(value).__name__}: give a model, as decode or open_model returns "
            "it."
        )


def require_sketch(name: str, value: Any, model: GaussianMixture | Centroids) -> None:
    """Refuse what is no sketch, or one of other features than the model's."""
    if not isinstance(value, Sketch):
        raise InputError(
            f"{name} of type {type(value).__name__}: give a Sketch; call .compute() on a lazy one, "
            "open_sketch a stored one."
        )
    if value.feature_map.n_features != model.n_features:
        raise InputError(
            f"the model has {model.n_features} features, {name} {value.feature_map.n_features}: "
            "give a sketch of the same features."
        )
