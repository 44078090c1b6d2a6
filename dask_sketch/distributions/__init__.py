"""Compare and test distributions by their sketches."""

from __future__ import annotations

from dask_sketch.distributions.independent_rows import compare_rows
from dask_sketch.distributions.result import FeatureDifference, TwoSampleTest
from dask_sketch.distributions.two_sample import compare

__all__ = ["FeatureDifference", "TwoSampleTest", "compare", "compare_rows"]
