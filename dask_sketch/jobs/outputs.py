"""The files that every run of a job replaces, and whether it may."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dask_sketch.destination import local_path, require_page, require_place
from dask_sketch.errors import ArtifactError

if TYPE_CHECKING:
    from dask_sketch.jobs.job_file import Job


def sketch_place(job: Job) -> tuple[str, dict[str, Any] | None] | None:
    """Where the total goes, with the options of its file system; None where nobody wants it."""
    return None if job.outputs.sketch is None else _placed(job, job.outputs.sketch)


def model_places(job: Job) -> Iterator[tuple[str, str, dict[str, Any] | None]]:
    """Name, place and options of each model that is to be written."""
    if job.outputs.model is not None:
        for table in job.decode:
            yield table.name, *_placed(job, job.outputs.model.replace("{name}", table.name))


def require_outputs(job: Job) -> None:
    """Refuse outputs that would fail at the end of a run, or replace what is not the job's.

    Raises
    ------
    ArtifactError
        Naming the key of the job file.
    """
    total = sketch_place(job)
    artifacts = [] if total is None else [("sketch", *total)]
    artifacts += [("model", place, options) for _, place, options in model_places(job)]
    for key, place, options in artifacts:
        with _named(key):
            require_place(place, overwrite=True, storage_options=options)
    if job.outputs.report is not None:
        page = local_path(job.place(job.outputs.report))
        assert page is not None  # the job file takes no URL there
        with _named("report"):
            require_page(page)


@contextlib.contextmanager
def _named(key: str) -> Iterator[None]:
    try:
        yield
    except ArtifactError as error:
        raise ArtifactError(f"outputs.{key}: {error}") from error


def _placed(job: Job, output: str) -> tuple[str, dict[str, Any] | None]:
    place = job.place(output)
    return place, job.options(job.outputs.storage_options, place)
