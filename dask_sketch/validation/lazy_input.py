"""Registry of the function that applies a model's methods to lazy input.

Models know nothing of Dask. The package registers, in its ``__init__``, how to load the function
that does: nothing is loaded before lazy input is given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_loaders: list[Callable[[], Callable[..., Any]]] = []


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
