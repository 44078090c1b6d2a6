"""Registry of readers of artifacts that packages above :func:`dask_sketch.open` define.

The package registers them in its ``__init__``, so that nothing is loaded before such an artifact
is opened.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Reader = Callable[[Any, object], Any]
_readers: dict[str, tuple[int, Callable[[], Reader]]] = {}


def register_reader(schema: str, version: int, load: Callable[[], Reader]) -> None:
    """Register the reader of a kind of artifact; the last one registered is used.

    Parameters
    ----------
    schema
        Name of the schema, such as ``"dask-sketch/sketch"``.
    version
        Version of the schema that is read.
    load
        Function without arguments, called when such an artifact is first opened. It returns a
        function of the stored dataset and of the name of its store, which returns the object.
    """
    _readers[schema] = (version, load)


def registered_versions() -> dict[str, int]:
    """Version of each registered schema."""
    return {schema: version for schema, (version, _) in _readers.items()}


def registered_reader(schema: str) -> Reader:
    """Load the reader of a registered schema."""
    return _readers[schema][1]()
