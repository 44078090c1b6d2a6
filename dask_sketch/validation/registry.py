"""Registries of functions of upper layers: methods for lazy input, and readers of artifacts.

Models know nothing about Dask, :func:`dask_sketch.open` nothing about the packages above it, and
the class of sketches nothing about the function that reads them. The package registers, in its
``__init__``, how to load the functions that do: nothing is loaded before lazy input is given, or
such an artifact is opened.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Reader = Callable[[Any, object], Any]
_loaders: list[Callable[[], Callable[..., Any]]] = []
_unpackers: list[Callable[[], Callable[[Any], Any]]] = []
_readers: dict[str, tuple[int, Callable[[], Reader]]] = {}


def register_lazy_methods(load: Callable[[], Callable[..., Any]]) -> None:
    """Register the function for lazy input; the last one registered is used.

    Parameters
    ----------
    load
        Function without arguments, called when lazy input is first given. It returns a function
        that is called as ``function(model, method, x, weights)``.
    """
    _loaders.append(load)


def apply_lazily(model: Any, method: str, x: Any, weights: Any = None) -> Any:
    """Apply a method of a model to lazy samples, by the function that is registered.

    Parameters
    ----------
    model
        Object with the method.
    method
        Name of the method.
    x
        Lazy samples of any kind.
    weights
        Weights of the samples, where the method takes them.

    Returns
    -------
    result
        Lazy result of the method.
    """
    return _loaders[-1]()(model, method, x, weights)


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


def register_unpacker(load: Callable[[], Callable[[Any], Any]]) -> None:
    """Register the function that reads a sketch from bytes; the last one registered is used.

    Parameters
    ----------
    load
        Function without arguments, called when a sketch is first read by its class. It returns a
        function of the bytes, which returns the sketch.
    """
    _unpackers.append(load)


def registered_unpacker() -> Callable[[Any], Any]:
    """Load the function that reads a sketch from bytes."""
    return _unpackers[-1]()
