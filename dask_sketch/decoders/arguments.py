"""Validate the arguments of :func:`dask_sketch.decode`, and pick the method."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import psutil
from numpy.typing import ArrayLike

from dask_sketch.decoders.efficient import memory_needed
from dask_sketch.decoders.methods import (
    OPTIONAL,
    START,
    Method,
    matrix_row,
    rows_of,
    transform_start,
)
from dask_sketch.decoders.names import MAXIMA, METHODS, MODELS, REFINEMENTS, TRANSFORMS
from dask_sketch.decoders.objectives.atoms import Array, covariance_matrix
from dask_sketch.decoders.problem import Problem
from dask_sketch.decoders.stable_search import require_alphas
from dask_sketch.decoders.starts import (
    Start,
    components_of,
    model_of_start,
    nearby_mixture,
    pilot_clusters,
)
from dask_sketch.errors import DecodeError, InputError
from dask_sketch.models.centroids import Centroids
from dask_sketch.models.low_rank import covariances_of, require_rank
from dask_sketch.models.open import AnyModel
from dask_sketch.sketching.second_moments import SecondMoments
from dask_sketch.sketching.sketch import Sketch
from dask_sketch.validation.arrays import require_integer
from dask_sketch.validation.choices import MAX_SOLVABLE, rank_of, uses_matrices
from dask_sketch.validation.tables import feature_title, require_names_in
from dask_sketch.validation.warn import warn_user

# Arguments that make a method other than "likelihood" the default, or take the place of a method.
_NOT_DEFAULT = ("method", "start", "bounds", "covariance", "device", "merge")
_MAX_RATIO = 1e3  # largest ratio of the standard deviations of features that have one variance
# Rows without missing values, in all or as a part of the rows, and for each parameter, below which
# they are not used.
_COMPLETE_ROWS, _COMPLETE_PART, _ROWS_PER_PARAMETER = 1000, 0.5, 5
# rows of the sample for each component from which maximum likelihood is the default
_ROWS_PER_COMPONENT = 4


def check_problem(
    sketch: Sketch,
    n_components: int | None,
    *,
    method: str | None,
    model: str | None,
    bounds: str | ArrayLike | None,
    covariance: ArrayLike | None,
    start: AnyModel | None,
    maxima: str,
    merge: bool,
    refine: str | None,
    seed: int,
    replicates: int,
    variance_floor: float,
    device: str | None,
    covariance_type: str | None = None,
    shared_alpha: bool = False,
) -> tuple[Problem, Method]:
    """Validate all arguments that describe a problem, and find the row of its method.

    The parameters are described in :func:`dask_sketch.decode`.

    Raises
    ------
    DecodeError
        If an argument is invalid, does not suit the method, or asks for more than the sketch holds.
    """
    require_content(sketch)
    if n_components is not None:
        n_components = require_integer("n_components", n_components, 1, DecodeError)
    replicates = require_integer("replicates", replicates, 1, DecodeError)
    seed = require_integer("seed", seed, 0, DecodeError)
    _require_known(method=method, model=model, maxima=maxima, refine=refine, device=device)
    _require_type(covariance_type, sketch.feature_map.n_features)
    if not isinstance(variance_floor, (float, np.floating)) or not 0.0 < variance_floor < 1.0:
        raise DecodeError(f"variance_floor={variance_floor!r}: give a fraction between 0 and 1.")
    model = model_of_start(start, model)
    if model in TRANSFORMS:
        unused = {"bounds": bounds, "covariance": covariance, "device": device, "refine": refine}
        _require_transform(model, n_components or start, unused | {"merge": merge or None})
    require_alphas(model, shared_alpha)
    model = _model_of_type(model, covariance_type)
    _require_width(model, refine)
    has_matrices = uses_matrices(covariance_type)
    components = components_of(start, sketch.feature_map, model, has_matrices)
    if all(value is None for value in (method, start, bounds, covariance, device, merge or None)):
        method = _method_of_sample(sketch, model, n_components)
        if has_matrices and sketch.sample is None:
            method = None  # the mixture of the pilot has no correlations
    row, model = _row(method, model, n_components, start)
    if has_matrices:
        row = _row_of_matrices(row, covariance_type, n_components, bounds, components)
    _require_suited(model, sketch)
    without_rows = row.name == "likelihood" and sketch.sample is None
    if without_rows and (has_matrices or not _pilot_knows(sketch, model, n_components)):
        raise DecodeError(
            f"method='likelihood' with model={model!r} and a sketch without a sample: sketch with "
            "sample=True, or choose another method."
        )
    optional = {"merge": merge, "refine": refine, "covariance": covariance, "device": device}
    _require_taken(row, covariance_type if has_matrices else None, optional)
    for name, value in (("bounds", bounds), ("covariance", covariance)):
        require_names_in(name, value, sketch.feature_map.feature_names, "the sketch")
    box = _box(bounds, sketch)
    if sketch.privacy is not None and box is not None:
        # a private sketch has no other range than its bounds, which these replace
        sketch = replace(sketch, minimum=box[0], maximum=box[1])
    problem = Problem(
        sketch,
        n_components,
        method=row.name,
        model=model,
        box=box,
        covariance=covariance_matrix(model, covariance, sketch.feature_map.n_features),
        start=components,
        maxima=maxima, merge=merge, refine=refine, seed=seed, replicates=replicates,
        variance_floor=variance_floor, device=device,
        covariance_type=covariance_type or "diag",
        shared_alpha=bool(shared_alpha),
    )  # fmt: skip
    is_solved = has_matrices or model in TRANSFORMS
    if row.name == "likelihood" and is_solved:  # the rows may determine what the sketch does not
        return problem, row
    _require_refinable(problem)
    _require_enough(problem, problem.count_parameters(row.family))
    if is_solved:
        _require_solvable(problem)
    return problem, row


_KNOWN = {
    "method": METHODS, "model": MODELS, "maxima": MAXIMA, "refine": REFINEMENTS,
    "device": ("cuda",),
}  # fmt: skip


def _require_known(**names: str | None) -> None:
    """Raise an error for a name that is unknown."""
    for name, value in names.items():
        known = _KNOWN[name]
        if value not in known and (value is not None or name == "maxima"):
            choices = f"choose one of {', '.join(known)}"
            if len(known) == 1:
                choices = f"give {known[0]!r}, or leave it out"
            raise DecodeError(f"{name}={value!r} is unknown: {choices}.")


def _require_type(covariance_type: Any, n_features: int) -> None:
    """Raise an error for a type of covariances that is unknown or does not suit the features."""
    try:
        covariances_of("diag" if covariance_type is None else covariance_type)
        require_rank(covariance_type, n_features)
    except InputError as error:
        raise DecodeError(str(error)) from None


def _require_taken(row: Method, matrices: Any, options: dict[str, Any]) -> None:
    """Raise an error for an argument that the method, or the fit of matrices, does not take."""
    chosen = f"method={row.name!r}: leave it out, or choose 'cl-ompr', 'splitting' or another."
    if matrices is not None:
        chosen = f"covariance_type={matrices!r}: leave it out, or decode diagonal covariances."
    for name in OPTIONAL:
        if name not in row.arguments and not (options[name] is None or options[name] is False):
            raise DecodeError(f"{name}={options[name]!r} with {chosen}")


def _model_of_type(model: str | None, covariance_type: str | None) -> str | None:
    """Model of a covariance type; an error for a model of other covariances."""
    if covariance_type is None:
        return model
    implied = "isotropic" if covariance_type == "spherical" else "gaussian"
    if model not in (None, implied):
        raise DecodeError(
            f"covariance_type={covariance_type!r} with model={model!r}: leave one of them out."
        )
    return implied


def _require_transform(model: str, n_components: object, options: dict[str, Any]) -> None:
    """Raise an error for arguments that have no meaning for a model of another family."""
    for name, value in options.items():
        if value is not None:
            raise DecodeError(
                f"{name} with model={model!r}: leave {name} out, it is for Gaussians and points. "
                "Fits of this model are refined in any case."
            )
    if n_components is None:
        raise DecodeError(f"n_components=None with model={model!r}: give a number of components.")


def _row_of_matrices(
    row: Method,
    covariance_type: str | None,
    n_components: int | None,
    bounds: object,
    start: Start | None,
) -> Method:
    """Row of the method that fits covariance matrices."""
    if start is not None and n_components not in (None, len(start.weights)):
        raise DecodeError(
            f"n_components={n_components} with a start of {len(start.weights)} components and "
            f"covariance_type={covariance_type!r}: leave n_components out, or start."
        )
    matrices_row = matrix_row(row)
    if matrices_row is None:
        raise DecodeError(
            f"covariance_type={covariance_type!r} with method={row.name!r}"
            f"{' and n_components=None' if n_components is None else ''}: give a number of "
            "components, and one of the methods 'likelihood', 'cl-ompr' and 'splitting', or none."
        )
    if bounds is not None:
        raise DecodeError(
            f"bounds with covariance_type={covariance_type!r}: leave bounds out, or decode "
            "covariance_type='diag'."
        )
    return matrices_row


def _require_suited(model: str, sketch: Sketch) -> None:
    """Raise an error for a model that does not suit the rows of the sketch."""
    normalize = sketch.feature_map.normalize
    if normalize and model not in ("dirac", "von-mises-fisher"):
        raise DecodeError(
            f"model={model!r} with a feature map with normalize=True: the rows are directions, of "
            "which model='dirac' finds centroids, and model='von-mises-fisher' a mixture. For a "
            "Gaussian mixture, divide the rows by their lengths before they are sketched."
        )
    if model == "von-mises-fisher" and sketch.feature_map.n_features < 2:
        raise DecodeError(f"model={model!r} with 1 feature: sketch directions of at least two.")
    if model == "von-mises-fisher" and not normalize:
        raise DecodeError(
            f"model={model!r} with a feature map with normalize=False: sketch with a feature map "
            "with normalize=True, which divides rows by their lengths."
        )
    if model == "isotropic":
        _require_alike(sketch)


def _require_alike(sketch: Sketch) -> None:
    """Raise an error for one variance of features that have very different scales.

    A component that is far wider than the narrowest feature has no effect on most frequencies.
    """
    deviations = np.sqrt(sketch.extent[1])
    varies = np.flatnonzero(deviations > 0.0)
    if not len(varies):
        return
    narrow, wide = (varies[pick(deviations[varies])] for pick in (np.argmin, np.argmax))
    if deviations[wide] > _MAX_RATIO * deviations[narrow]:
        names = sketch.feature_map.feature_names
        raise DecodeError(
            f"covariance_type='spherical' (model='isotropic'): features have one variance, but "
            f"standard deviations are {deviations[narrow]:.3g} of "
            f"{feature_title(int(narrow), names)} and {deviations[wide]:.3g} of "
            f"{feature_title(int(wide), names)}: scale the features before they are sketched, or "
            "decode covariance_type='diag'."
        )


def _require_solvable(problem: Problem) -> None:
    """Raise an error for more parameters than normal equations can have."""
    d, k = problem.n_features, problem.required_size
    if problem.model in TRANSFORMS:
        n_parameters = k * problem.count_parameters()
        choice, remedy = f"model={problem.model!r}", "components"
    else:
        n_parameters = problem.count_solved()
        choice = f"covariance_type={problem.covariance_type!r}"
        remedy = "components or covariance_type='diag'"
    if problem.model != "alpha-stable":
        remedy += ", or sketch with sample=True"
    if n_parameters > MAX_SOLVABLE:
        raise DecodeError(
            f"{choice} with n_components={k} of {d} features has {n_parameters:,} parameters, and "
            f"at most {MAX_SOLVABLE:,} can be fitted to a sketch: decode fewer {remedy}."
        )


def _method_of_sample(sketch: Sketch, model: str | None, n_components: int | None) -> str | None:
    """The method for a sketch with enough rows, or with a pilot; None for any other."""
    if sketch.privacy is not None or n_components is None or model in ("known", "alpha-stable"):
        return None
    if sketch.sample is not None:
        n_rows = len(sketch.sample)
        # the nearest centroids of all rows, or one Gaussian, cannot be too close to them
        is_close = (model == "dirac" or n_components == 1) and sketch.holds_all_rows
        enough = n_rows >= (1 if is_close else _ROWS_PER_COMPONENT) * n_components
    else:
        enough = _pilot_knows(sketch, model or "gaussian", n_components)
    return "likelihood" if enough else None


def _pilot_knows(sketch: Sketch, model: str, n_components: int | None) -> bool:
    """Whether the pilot rows of the feature map can take the place of rows of the sketch."""
    if model == "dirac":
        return pilot_clusters(sketch, n_components) is not None
    return model == "gaussian" and nearby_mixture(sketch) is not None


def non_default_arguments(n_components: int | None, options: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the arguments that keep :func:`decode` from comparing with maximum likelihood.

    Parameters
    ----------
    n_components
        Number of components, which the comparison needs.
    options
        Further arguments of :func:`dask_sketch.decode`.

    Examples
    --------
    >>> non_default_arguments(None, {"method": "cl-omp", "merge": False})
    ('n_components', 'method')
    """
    values = {name: options.get(name) for name in _NOT_DEFAULT}  # arrays and models among them
    names = [name for name, value in values.items() if value is not None and value is not False]
    if values["method"] == "likelihood":
        names.remove("method")
    if options.get("model") in ("isotropic", "known"):
        names.append("model")
    return (*(["n_components"] if n_components is None else []), *names)


def without_few_rows(
    sketch: Any, n_components: int | None = None, covariance_type: str | None = None
) -> Any:
    """Sketch without its random rows where these are few because others lack some values.

    Complete rows alone are then no sample of the data that maximum likelihood could rely on.

    Parameters
    ----------
    sketch
        Sketch; anything else is returned as it is.
    n_components, covariance_type
        Arguments of :func:`dask_sketch.decode`.
    """
    if not isinstance(sketch, Sketch) or sketch.missing is None or sketch.sample is None:
        return sketch
    d, k = sketch.feature_map.n_features, n_components or 1
    full = (d + 1) / 2 if uses_matrices(covariance_type) else 1
    rank = rank_of(covariance_type)
    each = int(1 + d + d * (full if rank is None else 1 + rank))
    few = min(_COMPLETE_ROWS, _COMPLETE_PART * sketch.count), _ROWS_PER_PARAMETER * k * each
    return sketch if len(sketch.sample) >= max(few) else sketch.without_sample()


def require_content(sketch: Any) -> None:
    """Raise an error for anything but a sketch of at least one sample."""
    if not isinstance(sketch, Sketch):
        remedy = "sketch samples by dask_sketch.sketch, and call .compute() on a lazy sketch"
        if isinstance(sketch, (str, os.PathLike)):
            remedy = "open a stored one by dask_sketch.open"
        elif isinstance(sketch, SecondMoments):
            remedy = "SketchPCA finds the principal components of second moments"
        raise DecodeError(
            f"sketch of type {type(sketch).__name__}: give a Sketch or a SketchGroup; {remedy}."
        )
    if not sketch.total_weight > 0:
        raise DecodeError(
            f"sketch is empty: total weight {sketch.total_weight:g}, {sketch.count} samples. "
            "Decode a sketch of at least one sample."
        )
    if sketch.missing is not None and not (sketch.observed.feature_fractions > 0.0).all():
        feature = int(np.argmin(sketch.observed.feature_fractions))
        title = feature_title(feature, sketch.feature_map.feature_names)
        raise DecodeError(
            f"sketch has no observed value of {title}: leave that feature out of the samples."
        )


def _row(
    method: str | None,
    model: str | None,
    n_components: int | None,
    start: AnyModel | None,
) -> tuple[Method, str]:
    """Row of the table for a method and a model, with the default of each."""
    if start is not None:
        if method is not None:
            raise DecodeError(f"method={method!r} and start: give one, a start needs no method.")
        if model in TRANSFORMS:
            return transform_start(model), model
        return START, model or ("dirac" if isinstance(start, Centroids) else "gaussian")
    if method is None:
        method = "density" if model in ("dirac", "von-mises-fisher") else "cl-ompr"
        if n_components is None:
            method = "cl-omp"
    rows = rows_of(method)
    model = model or rows[0].models[0]
    fitting = [row for row in rows if model in row.models]
    if not fitting:
        models = [name for row in rows for name in row.models]
        raise DecodeError(
            f"model={model!r} with method={method!r}: choose one of {', '.join(models)}."
        )
    if n_components is None and not fitting[0].finds_number:
        raise DecodeError(
            f"n_components=None with method={method!r}: give a number, or method='cl-omp', which "
            "finds it."
        )
    return fitting[0], model


def _box(bounds: str | ArrayLike | None, sketch: Sketch) -> Array | None:
    """Bounds on means as an array (2, n_features), or None."""
    if bounds is None:
        return None
    if isinstance(bounds, str):
        if bounds != "data":
            raise DecodeError(
                f"bounds={bounds!r}: give None, 'data', or an array of lowest and highest means."
            )
        return np.stack([sketch.minimum, sketch.maximum])
    d = sketch.feature_map.n_features
    try:
        box = np.asarray(bounds, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DecodeError(
            f"bounds={bounds!r} is not an array of numbers: give shape (2, {d}), or 'data'."
        ) from error
    if box.shape != (2, d):
        raise DecodeError(
            f"bounds has shape {box.shape}; for n_features={d} give (2, {d}): lowest, highest."
        )
    if not (box[0] < box[1]).all():
        feature = int(np.argmin(box[0] < box[1]))
        raise DecodeError(
            f"bounds of feature {feature} are {box[0, feature]:g} and {box[1, feature]:g}: give "
            "a lowest mean below the highest."
        )
    return box


def _require_enough(problem: Problem, n_each: int) -> None:
    """Raise an error for more parameters than numbers, or more components than samples.

    Warn of fewer than two frequencies for each parameter: estimation breaks down there (section
    5.5), and is safe with five.
    """
    d, m = problem.n_features, problem.n_frequencies
    n_components = problem.n_components or 1
    n_parameters = n_each * n_components
    if n_parameters > 2 * m:
        n_possible = 2 * m // n_each
        fewer = f"Decode at most {n_possible} components, or sketch" if n_possible else "Sketch"
        raise DecodeError(
            f"n_components={n_components} with {d} features has {n_parameters} parameters, more "
            f"than the {2 * m} real numbers of a sketch of {m} frequencies. {fewer} with at least "
            f"{5 * n_parameters} frequencies."
        )
    if problem.sketch.count < n_components:
        raise DecodeError(
            f"n_components={n_components} from a sketch of {problem.sketch.count:,} samples: "
            "decode no more components than there are samples."
        )
    if m < 2 * n_parameters:
        warn_user(
            f"n_components={n_components} with {d} features has {n_parameters} parameters, for "
            f"which {m} frequencies are few: estimates may fail. Decode fewer components, or "
            f"sketch with {5 * n_parameters} frequencies, as design() takes for n_components and "
            "covariance_type."
        )


def _require_width(model: str | None, refine: str | None) -> None:
    """Raise an error for efficient refinement of points."""
    if model == "dirac" and refine is not None:
        raise DecodeError(
            f"refine={refine!r} with model='dirac': points say nothing about the noise of a "
            "sketch. Decode model='gaussian' or 'isotropic', or leave refine out."
        )


def _require_refinable(problem: Problem) -> None:
    """Raise an error if efficient refinement does not suit the model or fit into memory."""
    _require_width(problem.model, problem.refine)
    if problem.refine is None:
        return
    covariance = problem.covariance
    if covariance is not None and (covariance != np.diag(np.diagonal(covariance))).any():
        raise DecodeError(
            "refine='efficient' with a known covariance matrix: only known variances can be "
            "refined. Whiten the data with it, leave refine out, or decode the matrices too by "
            "covariance_type='full'."
        )
    if problem.n_components is None:
        return
    n_parameters = problem.n_components * problem.count_parameters()
    needed = memory_needed(n_parameters, problem.n_frequencies)
    available = psutil.virtual_memory().available
    if needed > available:
        raise DecodeError(
            f"refine='efficient' with n_components={problem.n_components} needs "
            f"{needed / 2**30:.1f} GiB of memory, and {available / 2**30:.1f} GiB is available. "
            "Decode fewer components, sketch with fewer frequencies, or leave refine out."
        )
