"""Compile what many tests use; parts have no function in common, and may run side by side."""

from __future__ import annotations

import sys


def sketches():
    """Rows of both kinds in both precisions, both kernels, and the decoders."""
    import numpy as np

    from dask_sketch import FeatureMap, decode, partial_groups, partial_sketch

    for dtype in ("float32", "float64"):
        for law in ("sparse-sums", "sparse-radius"):
            feature_map = FeatureMap(3, 60, scale=1.0, law=law, dtype=dtype)
            for raw in ("f4", "f8"):
                x = np.random.default_rng(0).normal(size=(200, 3)).astype(raw)
                sketch = partial_sketch(x, feature_map, np.ones(200))
            decode(sketch, 2, refine="efficient", threads=1)
            if dtype == "float32":
                for raw in ("f4", "f8"):
                    x = np.random.default_rng(0).normal(size=(200, 3)).astype(raw)
                    partial_groups(x, feature_map, np.arange(200) % 3)


def speech():
    """What librosa compiles when it is loaded, and at the first file."""
    import numpy as np

    try:
        from dask_sketch.speech.frontend import FrontEnd, active_frames, mfcc
    except ImportError:
        return
    audio = np.random.default_rng(0).normal(size=8000).astype(np.float32)
    mfcc(audio, active_frames(audio, FrontEnd()), FrontEnd())


if __name__ == "__main__":
    {"sketches": sketches, "speech": speech}[sys.argv[1]]()
