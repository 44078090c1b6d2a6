"""Read stored quantised phases, as :func:`dask_sketch.open` does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dask_sketch.errors import ArtifactError
from dask_sketch.features.feature_map import moment_units
from dask_sketch.features.kernels.fixed_point import (
    SQUARED_FRACTION,
    WEIGHT_FRACTION,
    FixedPoint,
    is_weight,
)
from dask_sketch.sketching.artifact import WEIGHTS
from dask_sketch.sketching.open import damaged_store, feature_map_of, stored_array
from dask_sketch.sketching.quantized_phases import MAX_SEED, QuantizedPhases

if TYPE_CHECKING:
    import xarray as xr

_DAMAGES = (LookupError, TypeError, ValueError, OverflowError, RecursionError)
_SQUARED = 2**SQUARED_FRACTION
_MAX_POSITION = 2**62  # that of the first row of a message, as everywhere
_TOLERANCE = 1e-6  # of a total weight: those of float32 have 24 binary digits


def read_phases(dataset: xr.Dataset, store: object = "the dataset") -> QuantizedPhases:
    """Rebuild quantised phases from their stored dataset.

    Parameters
    ----------
    dataset
        Stored arrays and attributes.
    store
        Name of the store for messages.

    Raises
    ------
    ArtifactError
        If an array or attribute is missing or has another shape, or no rows can have such sums.
    """
    attrs = dataset.attrs
    try:
        feature_map = feature_map_of(dataset)
        n, d = dataset.sizes["row"], (feature_map.n_features,)
        bits = int(attrs["bits"])
        width = -(-feature_map.n_frequencies * bits // 8)
        units = stored_array(dataset, "unit", d, (np.float64,))
        arrays: dict[str, Any] = {
            name: stored_array(dataset, name, d, (np.float64,)) for name in ("minimum", "maximum")
        }
        for name in ("first", "second"):
            words = [stored_array(dataset, f"{name}_{w}", d, (np.int64,)) for w in ("high", "low")]
            arrays[f"{name}_quanta"] = FixedPoint(*words)
        weights = (
            stored_array(dataset, "weights", (n,), (np.float64,)) if "weights" in dataset else None
        )
        totals: dict[str, Any] = {
            attribute: int(attrs[name]) for name, attribute in WEIGHTS.items()
        }
        found = QuantizedPhases(
            feature_map=feature_map,
            packed=stored_array(dataset, "packed", (n, width), (np.uint8,)),
            bits=bits,
            seed=int(attrs["seed"]),
            position=int(attrs["position"]),
            omitted=int(attrs["omitted"]),
            weights=weights,
            **arrays,
            **totals,
        )
        given = np.ones(n) if weights is None else weights
        stated = found.weight_quanta / 2**WEIGHT_FRACTION, found.squared_weight_quanta / _SQUARED
    except _DAMAGES as error:
        raise damaged_store(store, "file of quantised phases", error) from error
    possible = found.first_quanta.is_canonical() and found.second_quanta.is_canonical()
    possible &= 0 <= found.seed <= MAX_SEED and 0 <= found.position <= _MAX_POSITION
    possible &= found.omitted >= 0 and all(map(is_weight, given.tolist()))
    possible &= np.allclose(stated, [given.sum(), (given**2).sum()], rtol=_TOLERANCE, atol=0.0)
    possible &= bool((units == moment_units(feature_map)).all())
    if not possible:
        raise ArtifactError(
            f"store={str(store)!r}: no rows have these sums or weights; the file was edited or is "
            "damaged. Restore it from a copy."
        )
    return found
