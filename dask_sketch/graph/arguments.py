"""What a pass is asked for: its input opened, and held against the feature map."""

from __future__ import annotations

from typing import Any

from dask_sketch.features.feature_map import FeatureMap
from dask_sketch.graph.group_memory import default_fan_in
from dask_sketch.sketching.arguments import require_feature_map
from dask_sketch.sources.open import open_samples, require_options
from dask_sketch.sources.samples import Samples
from dask_sketch.validation.arrays import require_integer


def opened(
    function: str,
    x: Any,
    feature_map: FeatureMap,
    split_every: int | None,
    *,
    options: dict[str, Any],
    **beside: Any,
) -> tuple[Samples, int]:
    """The samples of a pass, and the fan-in of its merges.

    Parameters
    ----------
    function
        Name of the public function that was called, for messages.
    x, feature_map, split_every
        As for :func:`dask_sketch.sketch`.
    options
        Further keyword arguments of that function, which must be those of :func:`open_samples`.
    beside
        Weights and groups.

    Raises
    ------
    InputError
        As :func:`dask_sketch.sketch`.
    TypeError
        If an option is not known.
    """
    require_feature_map(feature_map)
    require_options(function, options)
    samples = open_samples(x, **beside, **options)
    samples.require_features(feature_map.n_features, "the feature map", feature_map.feature_names)
    fan_in = default_fan_in(samples) if split_every is None else split_every
    return samples, require_integer("split_every", fan_in, 2)
