"""From a sketch to a mixture: the one door to all decoders."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike
from threadpoolctl import threadpool_limits

from dask_sketch.decoders.clomp import matching_pursuit
from dask_sketch.decoders.coordinates import VARIANCE_FLOOR
from dask_sketch.decoders.families import Array
from dask_sketch.decoders.objective import Objective
from dask_sketch.decoders.splitting import hierarchical_splitting, n_levels
from dask_sketch.decoders.support import Fit
from dask_sketch.errors import DecodeError
from dask_sketch.models import Decoding, GaussianMixture
from dask_sketch.sketching.sketch import Sketch

Method = Literal["cl-ompr", "cl-omp", "splitting"]
Model = Literal["gaussian"]
METHODS: tuple[str, ...] = get_args(Method)
MODELS: tuple[str, ...] = get_args(Model)
_THIN = 1e-5  # of the data's variance: thinner than any component that is meant


def decode(
    sketch: Sketch,
    n_components: int,
    method: str = "cl-ompr",
    model: str = "gaussian",
    bounds: str | ArrayLike | None = None,
    seed: int = 0,
    replicates: int = 1,
    variance_floor: float = VARIANCE_FLOOR,
    progress: Callable[[int, int, float], None] | None = None,
) -> GaussianMixture:
    """Fit a mixture to a sketch; time and memory do not depend on the number of samples.

    Minimises ``||z - A P||`` over mixtures ``P`` (eq. 9), by one of three heuristics. The problem
    is not convex: the result is a local minimum, in ``decoding.cost`` to be held against
    ``decoding.noise_level``. A cost several times the noise level says that the minimum is a poor
    one (try replicates) or that the data is no such mixture.

    Parameters
    ----------
    sketch
        Of at least one sample, with at least ``(2 * n_features + 1) * n_components / 2``
        frequencies.
    n_components
        Number ``K >= 1`` of components.
    method
        ``"cl-ompr"`` (Algorithm 1 with replacement, the most precise; time grows with ``K**2``),
        ``"cl-omp"`` (without) or ``"splitting"`` (Algorithm 2, for large ``K``).
    model
        ``"gaussian"``: Gaussian components with diagonal covariance.
    bounds
        Where means may lie: anywhere (None, as in the paper), within the range of the data
        (``"data"``), or an array of shape (2, n_features), lowest and highest, in data units.
    seed
        Seed of the starting points, ``>= 0``. The same seed gives the same bits.
    replicates
        Number of independent fits ``>= 1``; the one of lowest cost is returned.
    variance_floor
        Smallest variance of a component, as a fraction of the data's variance of that feature,
        in (0, 1). The default is the paper's guard against collapse and nothing more; for data
        that is no Gaussian mixture, 0.01 or more keeps likelihoods meaningful.
    progress
        Called as ``progress(done, total, cost)`` after each iteration.

    Returns
    -------
    mixture
        Components by decreasing weight, in the units of the data, with the record ``decoding``.

    Raises
    ------
    DecodeError
        If the sketch is empty or too short for the mixture, or an argument is out of range; the
        message names it.

    References
    ----------
    Keriven, Bourrier, Gribonval, Pérez (2018), Sketching for large-scale learning of mixture
    models, Information and Inference 7(3), Algorithms 1 and 2.

    Examples
    --------
    >>> from dask_sketch.features import FeatureMap
    >>> from dask_sketch.models import random_mixture
    >>> from dask_sketch.sketching import partial_sketch
    >>> truth = random_mixture(n_components=2, n_features=2, seed=1)
    >>> x = truth.sample(20_000, seed=2)
    >>> sketch = partial_sketch(x, FeatureMap(2, 100, scale=1.0, seed=3))
    >>> mixture = decode(sketch, n_components=2)
    >>> abs(mixture.score(x) - truth.score(x)) < 0.01
    True
    """
    if not isinstance(sketch, Sketch):
        raise DecodeError(
            f"sketch of type {type(sketch).__name__}: give a Sketch; call .compute() on a lazy one."
        )
    if not sketch.total_weight > 0:
        raise DecodeError(
            f"the sketch is empty: total weight {sketch.total_weight:g}, {sketch.count} samples. "
            "There is nothing to decode."
        )
    n_components = _whole("n_components", n_components, 1)
    replicates = _whole("replicates", replicates, 1)
    seed = _whole("seed", seed, 0)
    for name, value, known in (("method", method, METHODS), ("model", model, MODELS)):
        if value not in known:
            raise DecodeError(f"{name}={value!r} is unknown; choose one of {', '.join(known)}.")
    if not 0.0 < variance_floor < 1.0:
        raise DecodeError(f"variance_floor={variance_floor!r}: give a fraction between 0 and 1.")
    _require_enough(sketch, n_components)

    start = time.perf_counter()
    objective = Objective(sketch, model, box=_box(bounds, sketch), variance_floor=variance_floor)
    pursuit = 2 * n_components if method == "cl-ompr" else n_components
    n_iterations = n_levels(n_components) if method == "splitting" else pursuit
    fits: list[tuple[Fit, list[float]]] = []
    for replicate in range(replicates):
        rng = np.random.default_rng((seed, replicate))
        trace: list[float] = []

        def report(cost: float, trace: list[float] = trace) -> None:
            trace.append(cost)
            if progress is not None:
                done = len(fits) * n_iterations + len(trace)
                progress(done, replicates * n_iterations, cost)

        # One BLAS thread: the matrices are small, so that more of them are slower (3 times at 64
        # components, 12 features and 8000 frequencies), and rounding would depend on their number.
        with threadpool_limits(1, user_api="blas"):
            if method == "splitting":
                fit = hierarchical_splitting(objective, n_components, rng, report)
            else:
                fit = matching_pursuit(objective, n_components, n_iterations, rng, report)
        fits.append((fit, trace))
    fit, trace = min(fits, key=lambda pair: pair[0].cost)
    if not fit.weights.sum() > 0:
        raise DecodeError(
            "no component explains the sketch: all weights are zero. The frequencies do not see "
            "the data; design the feature map on a sample of it."
        )
    order = np.argsort(-fit.weights, kind="stable")
    theta, weights = fit.theta[order], fit.weights[order] / fit.weights.sum()
    means, variances = objective.to_data_units(theta)
    _warn_of_collapse(variances, sketch.variance)
    return GaussianMixture(
        weights,
        means,
        variances,
        decoding=Decoding(
            method=method,
            model=model,
            cost=objective.cost(weights, theta),
            noise_level=objective.noise_level,
            trace=tuple(trace),
            seconds=time.perf_counter() - start,
            seed=seed,
            replicates=replicates,
            n_evaluations=objective.n_evaluations,
            converged=fit.converged,
            message=fit.message,
        ),
    )


def _warn_of_collapse(variances: Array, data: Array) -> None:
    """Say when a component has all but no width: the sketch hardly sees it, likelihoods do."""
    thin = int((variances < _THIN * data).any(axis=1).sum())
    if thin:
        warnings.warn(
            f"{thin} of {len(variances)} components are thinner than {_THIN:g} of the data's "
            "variance in some feature, as fits to data that is no mixture of Gaussians of the "
            "map's scale are. Likelihoods will be poor: decode with variance_floor=0.01 or more, "
            "or design with a smaller scale.",
            UserWarning,
            stacklevel=3,
        )


def _whole(name: str, value: object, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise DecodeError(f"{name}={value!r}: give a whole number of at least {least}.")
    return int(value)


def _require_enough(sketch: Sketch, n_components: int) -> None:
    """Refuse a mixture with more parameters than the sketch has numbers."""
    d, m = sketch.feature_map.n_features, sketch.feature_map.n_frequencies
    n_parameters = (2 * d + 1) * n_components
    if n_parameters > 2 * m:
        raise DecodeError(
            f"n_components={n_components} with {d} features has {n_parameters} parameters, more "
            f"than the {2 * m} real numbers of a sketch of {m} frequencies. Decode at most "
            f"{2 * m // (2 * d + 1)} components, or sketch with at least {5 * n_parameters} "
            "frequencies."
        )


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
        raise DecodeError(f"bounds={bounds!r} is not an array of numbers.") from error
    if box.shape != (2, d):
        raise DecodeError(
            f"bounds has shape {box.shape}; for n_features={d} give (2, {d}): lowest, highest."
        )
    if not (box[0] < box[1]).all():
        feature = int(np.argmin(box[0] < box[1]))
        raise DecodeError(
            f"bounds of feature {feature} are {box[0, feature]:g} and {box[1, feature]:g}: the "
            "lowest must be below the highest."
        )
    return box
