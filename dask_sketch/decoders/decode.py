"""From a sketch to a model: the one door to all decoders."""

from __future__ import annotations

import time
import warnings
from concurrent.futures import Executor
from dataclasses import replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike
from threadpoolctl import threadpool_limits

from dask_sketch.decoders import arguments
from dask_sketch.decoders.atoms import MODELS, VARIANCE_FLOOR, Array
from dask_sketch.decoders.cuda import DeviceObjective
from dask_sketch.decoders.density_clustering import CENTROID_METHODS, decode_centroids
from dask_sketch.decoders.efficient import N_ROUNDS, memory_needed, refine_efficiently
from dask_sketch.decoders.exchange import merge_coincident
from dask_sketch.decoders.mixture_reduction import decode_density
from dask_sketch.decoders.objective import Objective
from dask_sketch.decoders.replicates import (
    Progress,
    Reporter,
    Search,
    fit_all,
    watched,
    worth_keeping,
)
from dask_sketch.decoders.threads import Threads, default_n_threads
from dask_sketch.errors import DecodeError
from dask_sketch.models.centroids import Centroids
from dask_sketch.models.gaussian_mixture import GaussianMixture
from dask_sketch.models.model import Decoding, StandardErrors
from dask_sketch.sketching.group import SketchGroup
from dask_sketch.sketching.sketch import Sketch
from dask_sketch.validation.arrays import require_integer

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
    threads: int | None = None,
    executor: Executor | None = None,
    progress: Progress | bool | None = None,
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
          distances are Euclidean, in the units of the data. With ``model="gaussian"``: a density
          of as many atoms as explain the sketch, reduced to the components of greatest likelihood,
          for data that is no mixture of so few, such as speech.
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
        (2, n_features), lowest and highest, in data units. A private sketch has no range of the
        data, but bounds that it was given, of which an array here takes the place.
    covariance
        For ``model="known"``: variances (n_features,) or a matrix (n_features, n_features).
    start
        An earlier model of the same kind of data, for a sketch that has grown: descend from its
        components, in place of a method. Then exchange those that no longer fit, if the sketch has
        grown by a fifth since that was last tried or the model fits worse than it did.
    maxima
        How ``"sketch-shift"`` and ``"density"`` find local maxima: ``"shift"`` (sketched mean
        shift), ``"discrete"`` (the best of many points) or ``"ascent"`` (plain gradient).
    merge
        Make one of components that lie on top of each other, and descend again. There may be fewer
        than ``n_components`` then.
    seed
        Seed of the starting points, ``>= 0``. The same seed gives the same bits.
    replicates
        Number of independent fits ``>= 1``; the one of lowest cost is returned. The densities that
        ``"density"`` reduces to a mixture are put together instead.
    variance_floor
        Smallest variance of a component, as a fraction of the mean variance that the frequency
        distribution expects, or of the data's where that is less, in (0, 1). Efficient refinement
        goes down to a tenth of it. The paper's is 1e-15; 0.3 suits data without clusters, such as
        speech.
    device
        ``"cuda"``: sums over frequencies are made on the current GPU, in float64; the model is the
        same up to rounding. For many frequencies, and not for methods that find centroids.
    threads
        Number of threads ``>= 1`` that share the work; it changes no bit of the result. By default
        the cores that this process may use, at most 16 and at most ``OMP_NUM_THREADS``, and one
        outside of the main thread, as in a task of Dask.
    executor
        Where replicates run, each in one thread: any :class:`concurrent.futures.Executor`, such as
        that of a Dask cluster, ``client.get_executor()``. A task takes the sketch along, and draws
        the frequencies for itself. The result is the one without.
    progress
        True shows a bar, in a notebook or on the standard error stream. A function is called as
        ``progress(done, total, cost)`` after each iteration.

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
    >>> from dask_sketch import partial_sketch
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
        n_components = require_integer("n_components", n_components, 1, DecodeError)
    replicates = require_integer("replicates", replicates, 1, DecodeError)
    seed = require_integer("seed", seed, 0, DecodeError)
    if model is None:
        points = method in CENTROID_METHODS or isinstance(start, Centroids)
        model = "dirac" if points else "gaussian"
    arguments.one_of("model", model, MODELS)
    method = _method(method, model, n_components, start)
    arguments.one_of("maxima", maxima, MAXIMA)
    if refine not in (None, "efficient"):
        raise DecodeError(f"refine={refine!r} is unknown; give 'efficient' or leave it out.")
    if not isinstance(variance_floor, (float, np.floating)) or not 0.0 < variance_floor < 1.0:
        raise DecodeError(f"variance_floor={variance_floor!r}: give a fraction between 0 and 1.")
    n_threads = (
        default_n_threads()
        if threads is None
        else require_integer("threads", threads, 1, DecodeError)
    )
    arguments.require_callables(executor, progress)
    if device not in (None, "cuda"):
        raise DecodeError(f"device={device!r} is unknown; give 'cuda' or leave it out.")
    box = arguments.box_of(bounds, sketch)
    if (
        sketch.privacy is not None and box is not None
    ):  # it has no other bounds than what it is told
        sketch = replace(sketch, minimum=box[0], maximum=box[1])
    given: dict[str, Any] = {"box": box, "covariance": covariance}
    if method in CENTROID_METHODS and start is None:
        if merge or refine is not None or covariance is not None:
            raise DecodeError(
                f"method={method!r} takes no merge, refine or covariance: "
                "leave them out, or decode model='gaussian' by 'cl-ompr' or 'splitting'."
            )
        if device is not None:
            raise DecodeError(
                f"device={device!r}: method={method!r} runs on the processor only; leave it out."
            )
        if method == "density" and model == "gaussian":
            assert n_components is not None  # only cl-omp does without
            return decode_density(
                sketch,
                n_components,
                box,
                variance_floor,
                seed,
                replicates,
                progress,
                n_threads,
                executor,
            )
        return decode_centroids(
            sketch,
            n_components,
            method,
            model,
            given["box"],
            maxima,
            seed,
            replicates,
            progress,
            n_threads,
            executor,
        )

    kind = Objective if device is None else DeviceObjective
    # One BLAS thread: the matrices are small, so that more of them are slower (3 times at 64
    # components, 12 features and 8000 frequencies), and rounding would depend on their number.
    with (
        threadpool_limits(1, user_api="blas"),
        Threads(n_threads) as pool,
        watched(progress) as show,
    ):
        objective = kind(sketch, model, variance_floor=variance_floor, threads=pool, **given)
        if refine is not None:
            arguments.require_noise_model(objective.family)
            if n_components is not None:
                arguments.require_memory(memory_needed(objective, n_components), n_components)
        arguments.require_enough(sketch, n_components or 1, 1 + objective.n_parameters)
        same = start if n_components in (None, getattr(start, "n_components", None)) else None
        excess, searched = worth_keeping(same, objective.noise_level)
        search = Search(
            sketch=sketch,
            kind=kind,
            options={"model": model, "variance_floor": variance_floor, **given},
            n_components=n_components,
            method=method,
            start=None if start is None else arguments.start_of(start, objective.n_features),
            seed=seed,
            excess=excess,
        )
        total = replicates * search.n_iterations(objective)
        reporter = Reporter(show, total + (N_ROUNDS if refine is not None else 0))
        found = fit_all(search, replicates, executor, pool, reporter)
        (fit, _), trace = min(found, key=lambda each: each[0][0].cost)
        n_evaluations = sum(spent for (_, spent), _ in found)
        if not fit.weights.sum() > 0:
            raise DecodeError(
                "no component explains the sketch: all weights are zero. The frequencies do not "
                "see the data; design the feature map on a sample of it."
            )
        if merge:
            fit = merge_coincident(objective, fit)
        errors = None
        if refine is not None:
            floor = _RELEASED * variance_floor
            released = kind(sketch, model, variance_floor=floor, threads=pool, **given)
            refined = refine_efficiently(released, fit, reporter)
            fit, errors = refined.fit, refined.standard_errors
        order = np.argsort(-fit.weights, kind="stable")
        theta, weights = fit.theta[order], fit.weights[order] / fit.weights.sum()
        cost = objective.cost(weights, theta)
    record = Decoding(
        method="start" if start is not None else method,
        model=model,
        cost=cost,
        noise_level=objective.noise_level,
        trace=tuple(trace),
        seconds=time.perf_counter() - begun,
        seed=seed,
        replicates=replicates,
        n_evaluations=n_evaluations + objective.n_evaluations,
        converged=fit.converged,
        message=fit.message,
        refine=refine,
        variance_floor=variance_floor if objective.n_shapes else None,
        searched=searched,
        feature_names=sketch.feature_map.feature_names,
    )
    means, variances = objective.to_data_units(theta)
    if model == "dirac" or not objective.family.diagonal:
        return Centroids(weights, means, decoding=record)
    if objective.n_shapes:
        _warn_of_collapse(variances, sketch.extent[1])
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


# From sketches of groups to a model of each group.


def decode_groups(
    group: SketchGroup,
    n_components: int | None = None,
    *,
    executor: Executor | None = None,
    **options: Any,
) -> dict[Any, GaussianMixture | Centroids]:
    """Fit a model to every group; of some groups, to ``group.select(labels)``.

    Parameters
    ----------
    group
        Sketches of groups, each of at least one sample.
    n_components, options
        As for :func:`dask_sketch.decode`.
    executor
        Where groups are decoded, each in one task: any :class:`concurrent.futures.Executor`, such
        as that of a Dask cluster, ``client.get_executor()``. Here, one after the other, by default.

    Returns
    -------
    models
        By label, in the order of the labels.

    Raises
    ------
    DecodeError
        If it is no group of sketches; or as :func:`dask_sketch.decode`, naming the group.

    Examples
    --------
    >>> import numpy as np
    >>> from dask_sketch import FeatureMap, partial_sketch
    >>> x = np.random.default_rng(0).normal(size=(4000, 2))
    >>> label = np.arange(4000) % 2
    >>> group = partial_sketch(x + 5 * label[:, None], FeatureMap(2, 50, scale=1.0), groups=label)
    >>> models = decode_groups(group, n_components=1)
    >>> [float(model.means[0, 0].round()) for model in models.values()]
    [0.0, 5.0]
    """
    if not isinstance(group, SketchGroup):
        raise DecodeError(
            f"group of type {type(group).__name__}: give a SketchGroup; call .compute() on a lazy "
            "one, and decode() for a Sketch."
        )
    tasks: dict[Any, Any] = {}
    for label, sketch in group.items():
        if executor is None:
            tasks[label] = _decoded(group.dim, label, sketch, n_components, options)
        else:
            given = (group.dim, label, sketch, n_components, {"threads": 1} | options)
            tasks[label] = executor.submit(_decoded, *given)
    if executor is None:
        return tasks
    return {label: task.result() for label, task in tasks.items()}


def _decoded(
    dim: str, label: Any, sketch: Any, n_components: int | None, options: dict[str, Any]
) -> GaussianMixture | Centroids:
    try:
        return decode(sketch, n_components, **options)
    except DecodeError as error:
        raise DecodeError(f"{dim} {label!s}: {error}") from error
