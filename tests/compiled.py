"""Compile the kernels that many tests use."""

from __future__ import annotations

import gc
import sys


def sketches():
    """Rows of both kinds in both precisions, both kernels, and the decoders."""
    import numpy as np

    from dask_sketch import FeatureMap, decode, partial_sketch

    for dtype in ("float32", "float64"):
        for distribution in ("sparse-sums", "sparse-radius"):
            feature_map = FeatureMap(3, 60, scale=1.0, distribution=distribution, dtype=dtype)
            for raw in ("f4", "f8"):
                x = np.random.default_rng(0).normal(size=(200, 3)).astype(raw)
                sketch = partial_sketch(x, feature_map, np.ones(200))
                if distribution == "sparse-sums":
                    missing = np.where(x > 2.0, np.nan, x).astype(raw)
                    partial_sketch(missing, feature_map, nan_policy="available")
            decode(sketch, 2, refine="efficient", threads=1)
        partial_sketch(1e6 * x, feature_map)  # far from the center
        for n_features in (1, 2, 3, 12):
            feature_map = FeatureMap(n_features, 60, scale=1.0, dtype=dtype)
            partial_sketch(np.ones((200, n_features), dtype), feature_map, sample=10)


def groups():
    """Rows of groups as most tests have them, and both kernels."""
    import numpy as np

    from dask_sketch import FeatureMap, merge, partial_sketch

    for dtype, kinds in (("float32", ("f4", "f8")), ("float64", ("f8",))):
        for distribution in ("sparse-sums", "sparse-radius"):
            feature_map = FeatureMap(3, 60, scale=1.0, distribution=distribution, dtype=dtype)
            for raw in kinds:
                x = np.random.default_rng(0).normal(size=(200, 3)).astype(raw)
                group = partial_sketch(x, feature_map, groups=np.arange(200) % 3)
            other = partial_sketch(x, feature_map, np.ones(200), groups=np.arange(200) % 4)
            merge([group, other, merge([group, other])])
    names = np.array([f"speaker {i}" for i in range(1200)])  # fewer are sorted
    partial_sketch(np.tile(x, (6, 1)), feature_map, groups=names)


def polishing():
    """Steps of EM and of Lloyd's algorithm, and second moments."""
    import numpy as np

    from dask_sketch import Centroids, GaussianMixture, polish, second_moments
    from dask_sketch.models.gaussian_kernels import add_second_moments, squared_distances

    x = np.random.default_rng(0).normal(size=(200, 2))
    mixture = GaussianMixture([1.0], [[0.0, 0.0]], [[1.0, 1.0]])
    polish(mixture, x, 1)
    polish(mixture, x.astype(np.float32), 1)
    full = GaussianMixture([1.0], [[0.0, 0.0]], [np.eye(2)], covariance_type="full")
    polish(full, x, 1)
    squared_distances(x, np.zeros((1, 2)), np.eye(2)[None])
    add_second_moments(np.zeros((1, 2, 2)), np.ones((1, 200)), x)
    polish(Centroids([1.0], [[0.0, 0.0]]), x, 1)
    second_moments(x)


def speech():
    """Compile the functions of librosa, at import and at the first file."""
    import numpy as np

    try:
        from dask_sketch.speech.mfcc import FrontEnd, active_frames, mfcc
    except ImportError:
        return
    audio = np.random.default_rng(0).normal(size=8000).astype(np.float32)
    mfcc(audio, active_frames(audio, FrontEnd()), FrontEnd())


if __name__ == "__main__":
    gc.disable()  # a tenth of the time of the compiler
    for part in sys.argv[1:]:
        globals()[part]()
