"""What a worker does for a pass over partitions: sketches some, and keeps their errors apart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import dask

from dask_sketch.announcing import report_rows
from dask_sketch.errors import ArtifactError, ChunkError, DeviceError, InputError
from dask_sketch.features import FeatureMap
from dask_sketch.graph.reading import blocks_read
from dask_sketch.sketching.partial import partial_sketch, prepare
from dask_sketch.sketching.sketch import Sketch, merge

FATAL = (ArtifactError, DeviceError)  # of the worker and not of its data: they end the pass


@dataclass(frozen=True)
class Reading:
    """How one partition is read: its number, and a graph that stands by itself."""

    number: int
    graph: dict[Any, Any]
    key: Any


@dataclass(frozen=True)
class Failed:
    """A partition that gave no sketch; ``again`` if another try may."""

    message: str
    again: bool


@dataclass(frozen=True)
class Run:
    """Neighbouring partitions that one task sketches, one after the other.

    An object, which Dask hands over as it is; a list of graphs would be taken for tasks.
    """

    readings: tuple[Reading, ...]
    alone: bool = False  # with nothing else on the cluster, so that what goes wrong is its fault


def sketch_run(
    run: Run, feature_map: FeatureMap, label: str, nan_policy: str, dtype: Any
) -> list[Sketch | Failed]:
    """Sketch the partitions of a run; an error of one is its result, and not that of the others.

    Nothing that is wrong with the data is raised: a worker would log where it was raised from, for
    every partition and every try, and a scheduler knows no pauses between tries.

    Raises
    ------
    ArtifactError
        If this process draws other frequencies than the map states; before anything is read.
    """
    # a worker that joined after the pass began does this here
    prepare(feature_map, dtype)
    return [_sketch_partition(reading, label, feature_map, nan_policy) for reading in run.readings]


def _sketch_partition(
    reading: Reading, label: str, feature_map: FeatureMap, nan_policy: str
) -> Sketch | Failed:
    found: list[Sketch] = []
    try:
        for block, weights, name in _blocks(reading, label):
            part = partial_sketch(block, feature_map, weights, nan_policy=nan_policy, label=name)
            report_rows(part.count, feature_map.n_frequencies)
            # merged as they come, so that one block at a time is held
            found = [merge([*found, part])] if found else [part]
    except _Unreadable as error:
        return Failed(str(error), again=True)
    except FATAL:
        raise
    except (ChunkError, InputError) as error:  # the same values would be refused again
        return Failed(str(error), again=False)
    return found[0] if found else Sketch.empty(feature_map)


class _Unreadable(Exception):
    """Data did not come; why is not known here, so that another try may help."""


def _blocks(reading: Reading, label: str) -> Iterator[tuple[Any, Any, str]]:
    try:
        yield from blocks_read(dask.get(reading.graph, reading.key))
    except ChunkError as error:  # from a reader, which has named what it read
        raise _Unreadable(str(error)) from error
    except InputError:  # what was read is not samples
        raise
    except Exception as error:  # stores and decoders fail in many ways
        raise _Unreadable(
            f"chunk {reading.number} of {label} could not be read: {type(error).__name__}: {error}."
        ) from error
