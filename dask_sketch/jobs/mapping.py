"""The feature map of a job: from a file, or designed by the first run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dask_sketch.graph import design
from dask_sketch.stored import read_map

if TYPE_CHECKING:
    from dask_sketch.features import FeatureMap
    from dask_sketch.jobs.inputs import OpenSource
    from dask_sketch.jobs.job_file import Job


def feature_map_of(job: Job, sources: list[OpenSource]) -> FeatureMap:
    """The map that the job file names, or one designed from a few chunks of the largest source."""
    given = job.feature_map
    if given.file is not None:
        return read_map(job.place(given.file))
    largest = max(sources, key=lambda source: source.samples.bytes_read or 0)
    options = {
        name: value
        for name in ("task", "law", "scale", "whitening", "dtype", "n_pilot")
        if (value := getattr(given, name)) is not None
    }
    return design(
        largest.samples,
        given.n_frequencies,
        given.n_components,
        seed=job.job.seed,
        **options,
    )
