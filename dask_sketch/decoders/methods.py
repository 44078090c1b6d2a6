"""Table of the decoding methods: a new method is one module and one row here.

Its name is also listed in :mod:`dask_sketch.decoders.names`, which needs no numerics.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from dask_sketch.decoders import (
    centroids_of_rows,
    density_clustering,
    direction_search,
    likelihood,
    matrix_search,
    mixture_reduction,
    sketch_and_shift,
    stable_search,
)
from dask_sketch.decoders.greedy import (
    IHT_ITERATIONS,
    Algorithm,
    cl_omp,
    cl_ompr,
    hard_thresholding,
    hierarchical_splitting,
    n_levels,
)
from dask_sketch.decoders.names import ATOMS
from dask_sketch.decoders.problem import Problem, Report, Solution, lowest_cost
from dask_sketch.decoders.search import (
    conclude_search,
    count_reports,
    search_atoms,
    search_from_start,
)
from dask_sketch.validation.threads import Threads

# Arguments that only some methods take.
OPTIONAL = ("merge", "refine", "covariance", "device")


@dataclass(frozen=True)
class Method:
    """One method of decoding, for some of the models.

    Attributes
    ----------
    name
        Name, as given to :func:`dask_sketch.decode`.
    models
        Models that it decodes; the first is the default.
    fit
        Function ``(problem, rng, report, threads)`` that fits one replicate and calls ``report``
        with the cost after each step. Its result has a ``cost``, and pickles.
    conclude
        Function ``(problem, results, threads, report)`` of the results of all replicates that
        returns the :class:`~dask_sketch.decoders.problem.Solution`, and calls ``report`` with the
        cost after each round of refinement.
    count_reports
        Function of the problem: largest number of reports of a replicate.
    family
        Family of the atoms that are fitted, by default the family of the model.
    arguments
        Names in ``OPTIONAL`` that it takes.
    finds_number
        Whether it finds the number of components.
    """

    name: str
    models: tuple[str, ...]
    fit: Callable[[Problem, np.random.Generator, Report, Threads], Any]
    conclude: Callable[[Problem, list[Any], Threads, Report], Solution]
    count_reports: Callable[[Problem], int]
    family: str | None = None
    arguments: tuple[str, ...] = ()
    finds_number: bool = False


def _search(
    name: str,
    algorithm: Algorithm,
    n_iterations: Callable[[int], int],
    *,
    coarse: bool = True,
    finds_number: bool = False,
) -> Method:
    """Row of a method that searches for atoms, of any model."""
    return Method(
        name,
        ATOMS,
        partial(search_atoms, algorithm=algorithm, coarse=coarse),
        conclude_search,
        partial(count_reports, n_iterations=n_iterations, coarse=coarse),
        arguments=OPTIONAL,
        finds_number=finds_number,
    )


TABLE = (
    Method(
        "likelihood",
        ("gaussian", "isotropic"),
        likelihood.fit_replicate,
        likelihood.conclude,
        partial(count_reports, n_iterations=lambda k: 2 * k + 1),
        arguments=("refine",),
    ),
    Method(
        "likelihood",
        ("dirac",),
        centroids_of_rows.fit_replicate,
        centroids_of_rows.conclude,
        lambda problem: 1,
    ),
    Method(
        "likelihood",
        ("von-mises-fisher",),
        direction_search.fit_with_rows,
        direction_search.conclude_with_rows,
        lambda problem: 4,
    ),
    _search("cl-ompr", cl_ompr, lambda k: 2 * k),
    _search("cl-omp", cl_omp, lambda k: k, finds_number=True),
    _search("splitting", hierarchical_splitting, n_levels),
    _search("iht", hard_thresholding, lambda k: IHT_ITERATIONS, coarse=False),
    Method(
        "sketch-shift",
        ("dirac", "gaussian"),
        sketch_and_shift.fit_replicate,
        lowest_cost,
        sketch_and_shift.count_reports,
        family="dirac",
    ),
    Method(
        "density",
        ("dirac",),
        density_clustering.fit_replicate,
        lowest_cost,
        density_clustering.count_reports,
    ),
    Method(
        "density",
        ("gaussian",),
        mixture_reduction.fit_replicate,
        mixture_reduction.reduce_densities,
        mixture_reduction.count_reports,
        family="scaled",
    ),
    Method(
        "density",
        ("von-mises-fisher",),
        direction_search.fit_replicate,
        direction_search.conclude,
        direction_search.count_reports,
    ),
    Method(
        "cl-ompr",
        ("alpha-stable",),
        stable_search.fit_replicate,
        stable_search.conclude,
        stable_search.count_reports,
    ),
)
# The method of problems with a start, which replaces the name of a method.
START = Method(
    "start",
    ATOMS,
    search_from_start,
    conclude_search,
    partial(count_reports, n_iterations=lambda k: 1),
    arguments=OPTIONAL,
    finds_number=True,
)


# Methods of problems with a start for models of other families, by the names of the models.
_STARTS = {
    model: Method(
        "start", (model,), module.fit_from_start, module.conclude_from_start, lambda problem: 3
    )
    for model, module in (
        ("von-mises-fisher", direction_search),
        ("alpha-stable", stable_search),
    )
}


# Methods that fit covariance matrices, by their names; "likelihood" does so itself.
_MATRICES = {
    name: Method(
        name,
        ("gaussian",),
        fit,
        matrix_search.conclude_matrices,
        lambda problem: matrix_search.N_REPORTS,
        arguments=("refine",),
    )
    for name, fit in (
        ("cl-ompr", matrix_search.search_matrices),
        ("splitting", matrix_search.search_matrices),
        ("start", matrix_search.fit_from_start),
    )
}


def transform_start(model: str) -> Method:
    """Row of the method of problems with a start, of a model of another family.

    Parameters
    ----------
    model
        Name of the model.
    """
    return _STARTS[model]


def matrix_row(row: Method) -> Method | None:
    """Row of the method that fits covariance matrices; None if the method does not.

    Parameters
    ----------
    row
        Row of the method for diagonal covariances.
    """
    return row if row.name == "likelihood" else _MATRICES.get(row.name)


def rows_of(name: str) -> list[Method]:
    """Rows of the table with a name, one or more for different models."""
    return [row for row in TABLE if row.name == name]
