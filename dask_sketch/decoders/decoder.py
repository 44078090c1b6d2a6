"""From a sketch to a model: the one door to all decoders."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike
from threadpoolctl import threadpool_limits

from dask_sketch.decoders import arguments
from dask_sketch.decoders.centroids import CENTROID_METHODS, decode_centroids
from dask_sketch.decoders.clomp import grow_until_explained, matching_pursuit
from dask_sketch.decoders.coarse import coarsened, settle
from dask_sketch.decoders.coincident import merge_coincident
from dask_sketch.decoders.coordinates import VARIANCE_FLOOR
from dask_sketch.decoders.cuda import DeviceObjective
from dask_sketch.decoders.efficient import N_ROUNDS, memory_needed, refine_efficiently
from dask_sketch.decoders.families import MODELS, Array
from dask_sketch.decoders.iht import N_ITERATIONS, hard_thresholding
from dask_sketch.decoders.objective import Objective
from dask_sketch.decoders.reporter import Progress, Reporter
from dask_sketch.decoders.splitting import hierarchical_splitting, n_levels
from dask_sketch.decoders.support import Fit
from dask_sketch.decoders.warm import resume
from dask_sketch.errors import DecodeError
from dask_sketch.features.size import default_n_frequencies
from dask_sketch.models import Centroids, Decoding, GaussianMixture, StandardErrors
from dask_sketch.sketching.sketch import Sketch

Method = Literal["cl-ompr", "cl-omp", "splitting", "iht", "sketch-shift", "density"]
METHODS: tuple[str, ...] = get_args(Method)
MAXIMA = ("shift", "discrete", "ascent")
_RELEASED = 0.1  # of the variance floor, in efficient refinement
_THIN = 1e-5  # of the data's variance: thinner than any component that is meant


def decode(
    sketch: Sketch,
    n_components: int | None = None,
    method: str | None = None,
    model: str | None = None,
    *,
    refine: str | None = None,
    bounds: str | ArrayLike | None = None,
    covariance: ArrayLike | None = None,
    start: GaussianMixture | Centroids | None = None,
    maxima: str = "shift",
    merge: bool = False,
    seed: int = 0,
    replicates: int = 1,
    variance_floor: float = VARIANCE_FLOOR,
    device: str | None = None,
    progress: Progress | None = None,
) -> GaussianMixture | Centroids:
    """Fit a model to a sketch; time and memory do not depend on the number of samples.

    Minimises ``||z - A P||`` over mixtures ``P`` (eq. 9). The problem is not convex: the result is
    a local minimum, in ``decoding.cost`` to be held against ``decoding.noise_level``; see
    :func:`dask_sketch.diagnose`. A cost several times the noise level says that the minimum is a
    poor one (try replicates) or that the data is no such mixture.

    Parameters
    ----------
    sketch
        Of at least one sample, with more numbers than the model has parameters.
    n_components
        Number ``K >= 1`` of components. When not given, CL-OMP adds components until noise explains
        what is left of the sketch (sec. 2.4), up to the number that its frequencies are enough for.
    method
        - ``"cl-ompr"``: Algorithm 1 with replacement, the default for mixtures, the most reliable;
          time grows with ``K**2``.
        - ``"cl-omp"``: without replacement.
        - ``"splitting"``: Algorithm 2, for large ``K`` and smooth densities.
        - ``"density"`` (ours), the default for ``model="dirac"``: a density of several atoms for
          each centroid, divided by k-means. The most precise for clustering. As in k-means,
          distances are Euclidean, in the units of the data.
        - ``"sketch-shift"``: sketch-and-shift, Algorithm 2 of that paper as printed.
        - ``"iht"``: iterative hard thresholding, a baseline.
    model
        ``"gaussian"``, the default but for methods that find centroids: Gaussian components with
        diagonal covariance; ``"isotropic"``: one variance
        for all features; ``"known"``: all of one ``covariance``; ``"dirac"``: points.
    refine
        ``"efficient"``: weight the entries of the sketch by the inverse of their covariance, which
        makes estimates as precise as maximum likelihood on all samples to the extent that the
        frequencies tell, and gives standard errors (``model.stderr``). With ``P`` parameters, time
        grows as ``P m (P + 4096)`` and memory as ``80 P m`` bytes. None: least squares, as in the
        papers.
    bounds
        Where means may lie: anywhere (None, as in Keriven et al.; centroid methods then take the
        data's range), within the range of the data (``"data"``), or an array of shape
        (2, n_features), lowest and highest, in data units.
    covariance
        For ``model="known"``: variances (n_features,) or a matrix (n_features, n_features).
    start
        An earlier model of the same kind of data: descend from its components, then exchange those
        that no longer fit, in place of a method. For a sketch that has grown.
    maxima
        How ``"sketch-shift"`` and ``"density"`` find local maxima: ``"shift"`` (sketched mean
        shift), ``"discrete"`` (the best of many points) or ``"ascent"`` (plain gradient).
    merge
        Make one of components that lie on top of each other, and descend again. There may be fewer
        than ``n_components`` then.
    seed
        Seed of the starting points, ``>= 0``. The same seed gives the same bits.
    replicates
        Number of independent fits ``>= 1``; the one of lowest cost is returned.
    variance_floor
        Smallest variance of a component, as a fraction of the mean variance that the frequency law
        expects, or of the data's where that is less, in (0, 1). Efficient refinement goes down to a
        tenth of it. The paper's is 1e-15; 0.3 suits data without clusters, such as speech.
    device
        ``"cuda"``: sums over frequencies are made on the current GPU, in float64; the model is the
        same up to rounding. For many frequencies, and not for methods that find centroids.
    progress
        Called as ``progress(done, total, cost)`` after each iteration.

    Returns
    -------
    model
        Components by decreasing weight, in the units of the data, with the record ``decoding``: a
        :class:`GaussianMixture`, or :class:`Centroids` for points, for the two methods that find
        centroids, and for a ``covariance`` that is not diagonal.

    Raises
    ------
    DecodeError
        If the sketch is empty or too short for the model, or an argument is out of range; the
        message names it.
    DeviceError
        If a GPU is asked for, and there is none, or no CuPy.

    References
    ----------
    Keriven, Bourrier, Gribonval, Pérez (2018), Sketching for large-scale learning of mixture
    models, Information and Inference 7(3), Algorithms 1 and 2. Sketch and shift: a robust decoder
    for compressive clustering, Algorithm 2.

    Examples
    --------
    >>> from dask_sketch.features import FeatureMap
    >>> from dask_sketch.models import random_mixture
    >>> from dask_sketch.sketching import partial_sketch
    >>> truth = random_mixture(n_components=2, n_features=2, seed=1)
    >>> x = truth.sample(20_000, seed=2)
    >>> sketch = partial_sketch(x, FeatureMap(2, 100, scale=1.0, seed=3))
    >>> mixture = decode(sketch, n_components=2, refine="efficient")
    >>> abs(mixture.score(x) - truth.score(x)) < 0.001
    True
    """
    begun = time.perf_counter()
    arguments.require_content(sketch)
    if n_components is not None:
        n_components = arguments.whole("n_components", n_components, 1)
    replicates = arguments.whole("replicates", replicates, 1)
    seed = arguments.whole("seed", seed, 0)
    if model is None:
        points = method in CENTROID_METHODS or isinstance(start, Centroids)
        model = "dirac" if points else "gaussian"
    arguments.one_of("model", model, MODELS)
    method = _method(method, model, n_components, start)
    arguments.one_of("maxima", maxima, MAXIMA)
    if refine not in (None, "efficient"):
        raise DecodeError(f"refine={refine!r} is unknown; give 'efficient' or leave it out.")
    if not 0.0 < variance_floor < 1.0:
        raise DecodeError(f"variance_floor={variance_floor!r}: give a fraction between 0 and 1.")
    if device not in (None, "cuda"):
        raise DecodeError(f"device={device!r} is unknown; give 'cuda' or leave it out.")
    given: dict[str, Any] = {"box": arguments.box_of(bounds, sketch), "covariance": covariance}
    if method in CENTROID_METHODS and start is None:
        if merge or refine is not None or covariance is not None:
            raise DecodeError(
                f"method={method!r} finds centroids and takes no merge, refine or covariance: "
                "leave them out, or decode model='gaussian' by 'cl-ompr' or 'splitting'."
            )
        if device is not None:
            raise DecodeError(
                f"device={device!r}: method={method!r} runs on the processor only; leave it out."
            )
        return decode_centroids(
            sketch, n_components, method, model, given["box"], maxima, seed, replicates, progress
        )

    kind = Objective if device is None else DeviceObjective
    objective = kind(sketch, model, variance_floor=variance_floor, **given)
    if refine is not None:
        arguments.require_noise_model(objective.family)
        if n_components is not None:
            arguments.require_memory(memory_needed(objective, n_components), n_components)
    arguments.require_enough(sketch, n_components or 1, 1 + objective.n_parameters)
    coarse = objective
    if n_components is not None and method != "iht":
        coarse = coarsened(objective, n_components)
    run, n_iterations = _algorithm(coarse, n_components, method, start)
    total = replicates * (n_iterations + (coarse is not objective))
    total += N_ROUNDS if refine is not None else 0
    reporter = Reporter(progress, total)
    # One BLAS thread: the matrices are small, so that more of them are slower (3 times at 64
    # components, 12 features and 8000 frequencies), and rounding would depend on their number.
    with threadpool_limits(1, user_api="blas"):
        fits = []
        for replicate in range(replicates):
            reporter.begin()
            fit = run(np.random.default_rng((seed, replicate)), reporter)
            if coarse is not objective:
                fit = settle(objective, fit)
                reporter(fit.cost)
            fits.append((fit, reporter.trace))
        fit, trace = min(fits, key=lambda pair: pair[0].cost)
        if not fit.weights.sum() > 0:
            raise DecodeError(
                "no component explains the sketch: all weights are zero. The frequencies do not "
                "see the data; design the feature map on a sample of it."
            )
        if merge:
            fit = merge_coincident(objective, fit)
        errors = None
        if refine is not None:
            released = kind(sketch, model, variance_floor=_RELEASED * variance_floor, **given)
            refined = refine_efficiently(released, fit, reporter)
            fit, errors = refined.fit, refined.standard_errors
    n_evaluations = objective.n_evaluations
    if coarse is not objective:
        n_evaluations += coarse.n_evaluations
    order = np.argsort(-fit.weights, kind="stable")
    theta, weights = fit.theta[order], fit.weights[order] / fit.weights.sum()
    record = Decoding(
        method="start" if start is not None else method,
        model=model,
        cost=objective.cost(weights, theta),
        noise_level=objective.noise_level,
        trace=tuple(trace),
        seconds=time.perf_counter() - begun,
        seed=seed,
        replicates=replicates,
        n_evaluations=n_evaluations,
        converged=fit.converged,
        message=fit.message,
        refine=refine,
        variance_floor=variance_floor if objective.n_shapes else None,
    )
    means, variances = objective.to_data_units(theta)
    if model == "dirac" or not objective.family.diagonal:
        return Centroids(weights, means, decoding=record)
    if objective.n_shapes:
        _warn_of_collapse(variances, sketch.variance)
    stderr = None
    if errors is not None:
        stderr = StandardErrors(*(part[order] for part in errors))
    return GaussianMixture(weights, means, variances, decoding=record, stderr=stderr)


def _method(
    method: str | None,
    model: str,
    n_components: int | None,
    start: GaussianMixture | Centroids | None,
) -> str:
    """The method, chosen if it was not."""
    if method is None:
        if n_components is None and start is None:
            return "cl-omp"
        return "density" if model == "dirac" else "cl-ompr"
    arguments.one_of("method", method, METHODS)
    if start is not None:
        raise DecodeError(f"method={method!r} and start: give one; a start needs no method.")
    if n_components is None and method != "cl-omp":
        raise DecodeError(
            f"n_components=None with method={method!r}: say how many, or let 'cl-omp' find out."
        )
    return method


def _algorithm(
    objective: Objective,
    n_components: int | None,
    method: str,
    start: GaussianMixture | Centroids | None,
) -> tuple[Callable[[np.random.Generator, Callable[[float], None]], Fit], int]:
    """What to run, given a source of starting points and a reporter, and its iterations."""
    if start is not None:
        earlier, places, variances = arguments.start_of(start, objective.n_features)
        theta = objective.from_data_units(places, variances)
        k = n_components or len(earlier)

        def again(rng: np.random.Generator, report: Callable[[float], None]) -> Fit:
            fit = resume(objective, earlier, theta, k, rng)
            report(fit.cost)
            return fit

        return again, 1
    if n_components is None:
        most = objective.n_frequencies // default_n_frequencies(objective.n_features, 1)
        most = max(most, 1)
        return lambda rng, report: grow_until_explained(objective, most, rng, report), most
    k = n_components
    if method == "splitting":
        return lambda rng, report: hierarchical_splitting(objective, k, rng, report), n_levels(k)
    if method == "iht":
        return lambda rng, report: hard_thresholding(objective, k, rng, report), N_ITERATIONS
    n_iterations = 2 * k if method == "cl-ompr" else k
    return lambda rng, report: matching_pursuit(
        objective, k, n_iterations, rng, report
    ), n_iterations


def _warn_of_collapse(variances: Array, data: Array) -> None:
    """Say when a component has all but no width: the sketch hardly sees it, likelihoods do."""
    thin = int((variances < _THIN * data).any(axis=1).sum())
    if thin:
        warnings.warn(
            f"{thin} of {len(variances)} components are thinner than {_THIN:g} of the data's "
            "variance in some feature, as fits to data that is no mixture of Gaussians of the "
            "map's scale are. Likelihoods will be poor: decode with variance_floor=0.1 or more, "
            "or design with a smaller scale.",
            UserWarning,
            stacklevel=3,
        )
