"""Compare and test distributions by their sketches."""

from __future__ import annotations

from dask_sketch.distributions.two_sample import FeatureDifference, TwoSampleTest, compare

__all__ = ["FeatureDifference", "TwoSampleTest", "compare"]
