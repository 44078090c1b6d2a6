"""Names and limits of arguments in several layers. This module imports no numerics."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from difflib import get_close_matches
from typing import Any, Literal, get_args

from dask_sketch.errors import InputError

Distribution = Literal[
    "adapted-radius", "sparse-radius", "sparse-windows", "sparse-sums", "dense-sums",
    "folded-gaussian", "gaussian", "gaussian-marginals", "gaussian-pairs", "clustering",
]  # fmt: skip
DISTRIBUTIONS: tuple[str, ...] = get_args(Distribution)
"""Frequency distributions, see :mod:`dask_sketch.features.frequency_distributions`."""
STRUCTURED = ("sparse-sums", "dense-sums", "gaussian-pairs")
"""Distributions whose frequencies are sums and differences of a few base frequencies."""

Task = Literal["mixture", "clustering", "comparison"]
TASKS: tuple[str, ...] = get_args(Task)
"""Purposes of a sketch of random Fourier features, see :func:`dask_sketch.design`."""
PCA = "pca"  # task of second moments, which have no frequencies

Whitening = Literal["diagonal", "full"]
WHITENINGS: tuple[str, ...] = get_args(Whitening)
"""Kinds of whitening, see :func:`dask_sketch.design`."""

CovarianceType = Literal["diag", "spherical", "tied", "full"]
COVARIANCE_TYPES: tuple[str, ...] = get_args(CovarianceType)
"""Types of the covariances of a mixture, as in scikit-learn; see :class:`GaussianMixture`.

Beside these there is ``"low-rank:r"`` with a rank ``r``, see :func:`rank_of`.
"""
LOW_RANK = "low-rank"
MAX_SOLVABLE = 4096
"""Largest number of parameters whose normal equations are solved, and of matrices in a sketch."""
CovarianceTypes = Sequence[str | tuple[str, int]]


def refuse_unused(reason: str, **arguments: Any) -> None:
    """Refuse arguments that have no effect.

    Parameters
    ----------
    reason
        Text that follows the argument and its value, such as ``"has no effect between rows"``.
    arguments
        Arguments, which are None where they are not given.

    Raises
    ------
    InputError
        If an argument is not None.

    Examples
    --------
    >>> refuse_unused("has no effect here", level=None)
    """
    for name, value in arguments.items():
        if value is not None:
            raise InputError(f"{name}={value!r} {reason}; leave it out.", parameter=name)


def named_type(covariance_type: Any) -> Any:
    """Name of a covariance type; ``("low-rank", r)`` is named ``"low-rank:r"``.

    Parameters
    ----------
    covariance_type
        Argument of that name; anything else than such a pair is returned as it is.

    Examples
    --------
    >>> named_type(("low-rank", 3)), named_type("full")
    ('low-rank:3', 'full')
    """
    is_pair = isinstance(covariance_type, (tuple, list)) and len(covariance_type) == 2
    return ":".join(map(str, covariance_type)) if is_pair else covariance_type


def rank_of(covariance_type: Any) -> int | None:
    """Rank of the covariance type ``"low-rank:r"``; None for anything else.

    Parameters
    ----------
    covariance_type
        Name of a covariance type, see :func:`named_type`.

    Examples
    --------
    >>> rank_of("low-rank:3"), rank_of("full"), rank_of("low-rank:0")
    (3, None, None)
    """
    match = re.fullmatch(f"{LOW_RANK}:([1-9][0-9]{{0,5}})", str(covariance_type))
    return None if match is None else int(match[1])


def known_type(covariance_type: Any) -> bool:
    """Whether a name is a covariance type."""
    is_name = isinstance(covariance_type, str)
    return is_name and (covariance_type in COVARIANCE_TYPES or rank_of(covariance_type) is not None)


def named_types(covariance_types: Any) -> list[str]:
    """Names of several covariance types, or of one; empty if one of them is unknown.

    Parameters
    ----------
    covariance_types
        Names, or pairs as in :func:`named_type`.

    Examples
    --------
    >>> named_types(["full", ("low-rank", 3)]), named_types("full"), named_types(["banded"])
    (['full', 'low-rank:3'], ['full'], [])
    """
    single = named_type(covariance_types)
    several = isinstance(covariance_types, Iterable) and not isinstance(covariance_types, str)
    types = [single] if known_type(single) else map(named_type, covariance_types if several else ())
    types = list(types)
    return types if all(map(known_type, types)) else []


def require_keywords(
    function: str | Callable[..., Any], names: Iterable[str], accepted: Collection[str], noun: str
) -> None:
    """Raise TypeError for keywords that a function does not have.

    Parameters
    ----------
    function
        Function that was called with them, or its name.
    names
        Names of the keywords.
    accepted
        Names that the function passes on.
    noun
        Name of their receiver, for messages.

    Examples
    --------
    >>> require_keywords(uses_matrices, ["seed"], ["seed", "replicates"], "decode")
    """
    for name in names:
        if name in accepted:
            continue
        parameters = () if isinstance(function, str) else inspect.signature(function).parameters
        meant = get_close_matches(name, [*parameters, *accepted], 1)
        remedy = f"those for {noun} are {', '.join(sorted(accepted))}"
        called = function if isinstance(function, str) else function.__name__
        raise TypeError(
            f"{called}() got an unexpected keyword argument {name!r}; "
            + (f"did you mean {meant[0]!r}?" if meant else remedy)
        )


def listed_types() -> str:
    """Names of the covariance types, for messages."""
    return ", ".join(COVARIANCE_TYPES) + " or low-rank:r with a rank r of at least 1"


def uses_matrices(covariance_type: str | None) -> bool:
    """Whether components of a covariance type have covariance matrices.

    Parameters
    ----------
    covariance_type
        Type of the covariances, or the family of the atoms of a sketch; None for the default.

    Examples
    --------
    >>> uses_matrices("tied"), uses_matrices("diag"), uses_matrices("low-rank:2")
    (True, False, True)
    """
    return covariance_type in ("full", "tied") or rank_of(covariance_type) is not None
