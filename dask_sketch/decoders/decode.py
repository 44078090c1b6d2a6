"""Decode sketches to models: check arguments, pick a method, fit replicates, wrap the solution."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Executor
from dataclasses import replace
from numbers import Integral
from typing import Any, overload

from numpy.typing import ArrayLike

from dask_sketch.decoders.arguments import (
    check_problem,
    non_default_arguments,
    without_few_rows,
)
from dask_sketch.decoders.checks.matrices import warn_of_matrices
from dask_sketch.decoders.checks.misfit import (
    warn_of_misfit,
    warn_of_overidentification,
)
from dask_sketch.decoders.checks.poor_centroids import warn_of_poor_centroids
from dask_sketch.decoders.checks.poor_start import is_poor_start
from dask_sketch.decoders.checks.private_fit import (
    in_smaller_ranges,
    is_poor_minimum,
    warn_of_private_fit,
)
from dask_sketch.decoders.checks.unseen_pairs import warn_of_unseen_pairs
from dask_sketch.decoders.checks.unusual_rows import warn_of_few_samples
from dask_sketch.decoders.constant_features import with_constants
from dask_sketch.decoders.efficient import N_ROUNDS
from dask_sketch.decoders.factor_descent import warn_of_lost_width
from dask_sketch.decoders.latent_classes import decode_latent_classes
from dask_sketch.decoders.methods import Method
from dask_sketch.decoders.names import TRANSFORMS
from dask_sketch.decoders.objectives.atoms import VARIANCE_FLOOR, Array, count_shapes
from dask_sketch.decoders.problem import Problem, Solution
from dask_sketch.decoders.replicates import (
    Progress,
    Reporter,
    fit_replicates,
    require_callables,
    shown,
)
from dask_sketch.decoders.search import expected_seconds
from dask_sketch.decoders.simulated_centroids import nearer_on_simulated_rows
from dask_sketch.decoders.simulated_rows import OF_PILOT, SIMULATED, likelier_on_simulated_rows
from dask_sketch.decoders.starts import FAMILIES, type_of_start
from dask_sketch.errors import DecodeError
from dask_sketch.models.centroids import Centroids
from dask_sketch.models.clusters import unit_centers
from dask_sketch.models.gaussian_mixture import GaussianMixture
from dask_sketch.models.model import REGULARIZED, Decoding, StandardErrors
from dask_sketch.models.open import AnyModel
from dask_sketch.sketching.group import SketchGroup
from dask_sketch.sketching.sketch import Sketch
from dask_sketch.validation.arrays import require_integer
from dask_sketch.validation.choices import named_type, uses_matrices
from dask_sketch.validation.tables import first_few
from dask_sketch.validation.threads import Threads, default_n_threads, one_blas_thread
from dask_sketch.validation.warn import collect_warnings, issue_warnings

_SEARCHES = ("cl-ompr", "cl-omp", "splitting")  # methods whose time is known beforehand
_LONG = 30.0  # expected seconds of CPU time that are logged
_TIMED_GROUP = 2  # the group whose time predicts the others: the first one may compile code
logger = logging.getLogger(__name__)


@overload
def decode(
    sketch: Sketch,
    n_components: int | None = ...,
    method: str | None = ...,
    model: str | None = ...,
    *,
    covariance_type: str | tuple[str, int] | None = ...,
    refine: str | None = ...,
    bounds: str | ArrayLike | None = ...,
    covariance: ArrayLike | None = ...,
    start: AnyModel | None = ...,
    maxima: str = ...,
    merge: bool = ...,
    seed: int = ...,
    replicates: int = ...,
    variance_floor: float = ...,
    device: str | None = ...,
    shared_alpha: bool = ...,
    threads: int | None = ...,
    executor: Executor | None = ...,
    progress: Progress | bool | None = ...,
) -> AnyModel: ...


@overload
def decode(
    sketch: SketchGroup,
    n_components: int | None = ...,
    method: str | None = ...,
    model: str | None = ...,
    *,
    covariance_type: str | tuple[str, int] | None = ...,
    refine: str | None = ...,
    bounds: str | ArrayLike | None = ...,
    covariance: ArrayLike | None = ...,
    start: AnyModel | None = ...,
    maxima: str = ...,
    merge: bool = ...,
    seed: int = ...,
    replicates: int = ...,
    variance_floor: float = ...,
    device: str | None = ...,
    shared_alpha: bool = ...,
    threads: int | None = ...,
    executor: Executor | None = ...,
    progress: Progress | bool | None = ...,
) -> dict[Any, AnyModel]: ...


def decode(
    sketch: Sketch | SketchGroup,
    n_components: int | None = None,
    method: str | None = None,
    model: str | None = None,
    *,
    covariance_type: str | tuple[str, int] | None = None,
    refine: str | None = None,
    bounds: str | ArrayLike | None = None,
    covariance: ArrayLike | None = None,
    start: AnyModel | None = None,
    maxima: str = "shift",
    merge: bool = False,
    seed: int = 0,
    replicates: int = 1,
    variance_floor: float = VARIANCE_FLOOR,
    device: str | None = None,
    shared_alpha: bool = False,
    threads: int | None = None,
    executor: Executor | None = None,
    progress: Progress | bool | None = None,
) -> AnyModel | dict[Any, AnyModel]:
    """Fit a model to a sketch, or to each sketch of a group.

    Time and memory do not depend on the number of samples. The model minimises the distance between
    the sketch and the sketch of a mixture (Keriven et al. 2018, eq. 9). The problem is not convex,
    so that the result is a local minimum. Compare ``model.decoding.cost`` with
    ``model.decoding.noise_level``; see :func:`dask_sketch.diagnose`. A cost of several noise levels
    means that the minimum is poor (give ``replicates``), or that the data is not such a mixture.

    A sketch with categorical features is decoded to latent classes: products of Gaussians with
    diagonal covariances and of categorical distributions. Only the arguments ``n_components``,
    ``start``, ``seed``, ``replicates``, ``variance_floor`` and ``refine`` apply to them. Up to 2000
    frequencies, moments are weighted by the inverse of their covariance even without ``refine``.

    Parameters
    ----------
    sketch
        Sketch of at least one sample, with more numbers than the model has parameters; or group of
        such sketches. For some of its groups, pass ``group.select(labels)``.
    n_components
        Number ``K >= 1`` of components. By default, components are added by ``"cl-omp"`` until the
        remaining error is no larger than sampling noise (sec. 2.4), up to the number for which
        there are enough frequencies. This search does not use random rows. For real data, decode
        again with the number that it finds, or compare several numbers with
        :func:`dask_sketch.select_model`.
    method
        Two methods are not from the papers, ``"likelihood"`` and ``"density"``:

        - ``"likelihood"``, the default for mixtures if the sketch carries random rows, or if
          :func:`dask_sketch.design` made its feature map: maximum likelihood on rows whose weights
          are calibrated to the sketch (:func:`dask_sketch.calibrate`), or the fit to the sketch if
          it is as likely. The rows are part of the sketch. A fit to a sketch without rows is
          compared with the mixture of the pilot rows that ``design`` read. If the sketch is of
          other data than the pilot rows, such as a group or later data, that mixture is moved to
          the scale of the sketch if this explains the sketch, and rows simulated from it are
          calibrated to the sketch. If the data is not a mixture of so few Gaussians, rows simulated
          from the fit to the sketch take part as well. If the sketch holds all rows, and these are
          few for the number of parameters, held-out rows decide whether a prior of the covariances
          is used, and a warning states by how much their likelihood is lower. It is also the
          default for ``model="dirac"``: k-means on the calibrated rows. Without rows, the result is
          the centroids of the pilot rows, if the map was designed for the same number of them
          (``task="clustering"``) and the sketch is of the same data.
        - ``"cl-ompr"``: Algorithm 1 with replacement, the default for all other mixtures: for a
          feature map without pilot rows, or with pilot rows of very different data; for a private
          sketch; and with ``bounds``, ``covariance``, ``device`` or ``merge``. Time grows with
          ``K**2``. For maps of :meth:`FeatureMap.from_scales` the search finds the means first,
          from the widest scale to the narrowest, and then the variances; it finds clusters far
          apart. By default, without a pilot and with at most 500 parameters and 2500 frequencies,
          its fit is refined as by ``refine="efficient"``, and the search is repeated as long as the
          overidentification statistic is too large. Larger fits by maps of several scales are
          refined once, if that takes at most about 20 CPU seconds.
        - ``"cl-omp"``: Algorithm 1 without replacement, the default without ``n_components``.
        - ``"splitting"``: hierarchical splitting, Algorithm 2 of Keriven et al., for large ``K``
          and smooth densities.
        - ``"density"``, the default for other centroids without rows: a density of several atoms
          for each centroid, partitioned by k-means; the most precise search for clustering. As in
          k-means, distances are Euclidean, in the units of the data. If noise does not explain the
          density, k-means on simulated rows, whose weights agree with the sketch, may take its
          place. With ``model="gaussian"``: a density of as many atoms as explain the sketch,
          reduced to the components of greatest likelihood, for data that no mixture of
          ``n_components`` Gaussians fits, such as speech.
        - ``"sketch-shift"``: mean shift on the sketch (see the second reference). With
          ``model="gaussian"`` it needs a feature map with ``distribution="gaussian"``.
        - ``"iht"``: iterative hard thresholding, a baseline.
    model
        ``"gaussian"``: Gaussian components with diagonal covariance, the default except for methods
        that find centroids; ``"isotropic"``: one variance for all features; ``"known"``: one
        ``covariance`` for all components; ``"dirac"``: points.

        Two models are not Gaussian. They need ``n_components``, do not take the arguments that
        describe Gaussians, and are fitted with the entries of the sketch weighted by their noise.
        ``"von-mises-fisher"``: directions, from a feature map with ``normalize=True``; by
        ``"likelihood"`` (the default where the sketch carries random rows: the fit to the sketch,
        or maximum likelihood on the calibrated rows if that is likelier) or ``"density"``, which
        starts from centroids. ``"alpha-stable"``: elliptical stable distributions with heavy tails,
        by ``"cl-ompr"``, which starts from Gaussians. For heavy tails, design the feature map from
        rows that are clipped to quantiles of each feature, since a few rows far away mislead the
        estimate of its scale.
    covariance_type
        Type of the covariances of a mixture, as in scikit-learn and :class:`GaussianMixture`:
        ``"diag"``, the default (a ``start`` keeps its own type); ``"spherical"``, as
        ``model="isotropic"``; ``"tied"``, one matrix for all components; ``"full"``, one for each;
        or ``("low-rank", r)``, also ``"low-rank:r"``, for factor analysers, whose matrices are the
        sum of a diagonal matrix and a matrix of rank ``r``, for data of many features. If the
        sketch has random rows, matrices are fitted by maximum likelihood on these rows, and to the
        sketch itself. Without rows, they are fitted to the sketch alone, starting from diagonal
        mixtures of the same sketch (``"cl-ompr"`` or ``"splitting"``), and first from the matrices
        of the pilot rows that ``design(covariance_type="full")`` records. If the data is clearly
        not a mixture of so few Gaussians, the matrices of the pilot rows are returned, or, with
        other maps, matrices fitted to simulated rows that are calibrated to the sketch. They need
        ``n_components``, at most 4096 parameters, and five frequencies for each parameter, or two
        with ``"low-rank:r"``. Each component has ``1 + d + d (d + 1) / 2`` parameters with
        ``"full"``, and ``1 + d + d (1 + r)`` with ``"low-rank:r"``. The fit is always refined as by
        ``refine="efficient"``.
    refine
        ``"efficient"``: weight the entries of the sketch by the inverse of their covariance, which
        makes estimates as precise as maximum likelihood on all samples to the extent that the
        frequencies allow, and gives standard errors (``model.stderr``). If ``"likelihood"`` finds a
        mixture that is likelier than the refined one by more than noise explains, it returns the
        likelier one, without standard errors, and warns. With ``p`` parameters, time grows as ``p m
        (p + 4096)`` and memory as ``48 p m`` bytes. None: least squares, as in the papers.
    bounds
        Bounds of the means: None for no bounds, as in Keriven et al. (centroid methods then use the
        range of the data); ``"data"`` for the range of the data; or an array of shape
        (2, n_features) of lowest and highest means, in data units. A private sketch has bounds in
        place of the range of the data; an array here replaces them.
    covariance
        Variances (n_features,) or covariance matrix (n_features, n_features), for
        ``model="known"``.
    start
        Earlier model of the same kind of data, for a sketch that has grown: the decoder descends
        from its components, and ``method`` is left out. Components that no longer fit are replaced
        if the number of samples has grown by 20 % since replacement was last tried, or if the fit
        is worse. Components that are not Gaussians or points are not replaced. The start is left
        out if maximum likelihood on the random rows of the sketch is over 0.02 nats a sample
        likelier than the Gaussians found from it, or k-means 2 % nearer than the centroids.
    maxima
        Search for local maxima by ``"sketch-shift"`` and ``"density"``: ``"shift"`` (sketched mean
        shift), ``"discrete"`` (the best of many points) or ``"ascent"`` (plain gradient).
    merge
        Whether to merge components that coincide, and descend again. The model may then have fewer
        than ``n_components``.
    seed
        Seed of the starting points, ``>= 0``. The same seed gives the same bits.
    replicates
        Number of independent fits ``>= 1``; the fit of lowest cost is returned. The densities that
        ``"density"`` reduces to a mixture are pooled instead. If noise does not explain a single
        fit to a private sketch, up to four further fits start in ranges smaller than its bounds.
    variance_floor
        Smallest variance of a component in a fit to the sketch, in (0, 1), as a fraction of the
        mean variance that the frequency distribution expects, or of the mean variance of the data
        if it is smaller. Efficient refinement allows a tenth of this floor, and eigenvalues of
        covariance matrices may be a hundredth of either. The paper has 1e-15; 0.3 suits data
        without clusters, such as speech. For mixtures of maximum likelihood, which ``"likelihood"``
        mostly returns for real data, the floor is a millionth of the variance of the rows instead.
    device
        ``"cuda"``: sums over frequencies are computed on the current GPU, in float64; the model is
        the same up to rounding. Useful for many frequencies; not available for methods that find
        centroids.
    shared_alpha
        Whether all components of ``model="alpha-stable"`` have the same ``alpha``.
    threads
        Number of threads ``>= 1`` that share the work. The bits of the result do not depend on it.
        By default the cores that this process may use, at most 16 and at most ``OMP_NUM_THREADS``,
        and 1 outside the main thread, such as in a Dask task.
    executor
        Executor of the replicates, or of the groups, each in one thread: any
        :class:`concurrent.futures.Executor`, such as ``client.get_executor()`` of a Dask cluster. A
        task carries the sketch, and samples the frequencies again. The result is the same as
        without an executor.
    progress
        True shows a bar, in a notebook or on the standard error stream. A function is called as
        ``progress(done, total, cost)`` after each iteration.

    Returns
    -------
    model
        Components by decreasing weight, in the units of the data, with the record ``decoding``: a
        :class:`GaussianMixture`; with categorical features
        :class:`~dask_sketch.models.LatentClassMixture`; by the name of the model
        :class:`~dask_sketch.models.VonMisesFisherMixture` or
        :class:`~dask_sketch.models.AlphaStableMixture`; or :class:`Centroids` for ``model="dirac"``
        and for a ``covariance`` that is not diagonal. For a group, a dictionary of models by label,
        in the order of the labels.

    Raises
    ------
    DecodeError
        If the sketch is empty or too short for the model, or an argument is out of range. The
        message states the argument; in a group, also the label.
    DeviceError
        If a GPU is requested, and there is no GPU, or CuPy is not installed.

    References
    ----------
    Keriven, Bourrier, Gribonval, Pérez (2018), Sketching for large-scale learning of mixture
    models, Information and Inference 7(3). Belhadji, Gribonval (2024), Sketch and shift: a robust
    decoder for compressive clustering, TMLR.

    Examples
    --------
    >>> from dask_sketch import FeatureMap, partial_sketch
    >>> from dask_sketch.models import random_mixture
    >>> truth = random_mixture(n_components=2, n_features=2, seed=1)
    >>> x = truth.sample(20_000, seed=2)
    >>> sketch = partial_sketch(x, FeatureMap(2, 100, scale=1.0, seed=3))
    >>> mixture = decode(sketch, n_components=2, refine="efficient")
    >>> abs(mixture.score(x) - truth.score(x)) < 0.001
    True
    """
    covariance_type = type_of_start(start, named_type(covariance_type), model)
    options: dict[str, Any] = {
        "method": method, "model": model, "refine": refine, "bounds": bounds,
        "covariance": covariance, "start": start, "maxima": maxima, "merge": merge, "seed": seed,
        "replicates": replicates, "variance_floor": variance_floor, "device": device,
        "covariance_type": covariance_type, "shared_alpha": shared_alpha,
    }  # fmt: skip
    require_callables(executor, progress)
    if isinstance(sketch, SketchGroup):
        return _decode_group(sketch, n_components, options, threads, executor, progress)
    return _decode_sketch(sketch, n_components, options, threads, executor, progress)


def _decode_sketch(
    sketch: Sketch,
    n_components: int | None,
    options: dict[str, Any],
    threads: int | None,
    executor: Executor | None,
    progress: Progress | bool | None,
) -> AnyModel:
    """Check arguments, pick a method, fit replicates, wrap the solution."""
    start_time = time.perf_counter()
    if isinstance(sketch, Sketch) and sketch.feature_map.categories is not None:
        classes = decode_latent_classes(sketch, n_components, **options)
        warn_of_unseen_pairs(sketch, classes.n_components)
        return classes
    if not isinstance(n_components, (str, float)):  # such numbers are refused below
        sketch = without_few_rows(sketch, n_components, options["covariance_type"])
    problem, method = check_problem(sketch, n_components, **options)
    warn_of_unseen_pairs(sketch, problem.n_components)
    non_default = non_default_arguments(n_components, options)
    problem = replace(problem, is_default=not non_default)
    untested = problem.sketch.sample is None or method.name != "likelihood"
    if untested and problem.n_components is not None and problem.model not in TRANSFORMS:
        warn_of_few_samples(sketch, problem.n_components, problem.count_parameters())
    n_threads = default_n_threads()
    if threads is not None:
        n_threads = require_integer("threads", threads, 1, DecodeError)
    _log_long_search(problem)
    with collect_warnings() as collected:  # about a fit whose place the pilot rows may take
        solution, trace = _fitted(problem, method, n_threads, executor, progress)
    if problem.replicates == 1 and is_poor_minimum(problem, solution):
        for smaller in in_smaller_ranges(problem):
            other, its_trace = _fitted(smaller, method, n_threads, executor, progress)
            if other.cost < solution.cost:
                solution, trace = other, its_trace
            if not is_poor_minimum(problem, solution):
                break
    if is_poor_start(problem, solution):
        arguments = options | {"start": None, "model": problem.model}
        if problem.model == "gaussian":
            arguments["covariance_type"] = problem.covariance_type
        return _decode_sketch(sketch, problem.size, arguments, threads, executor, progress)
    solution = _likelier(problem, solution, n_threads)
    issue_warnings([] if problem.has_matrices and solution.message == OF_PILOT else collected)
    solution = with_constants(problem, solution)
    # noise never explains points, since clusters have a width, which the density method fits too
    is_fit = problem.model != "dirac" or method.name == "density"
    if sketch.privacy is None or not (is_fit and warn_of_private_fit(sketch, solution)):
        _warn_of_fit(problem, solution, non_default)
    return _wrapped(problem, solution, trace, time.perf_counter() - start_time)


def _fitted(
    problem: Problem,
    method: Method,
    n_threads: int,
    executor: Executor | None,
    progress: Progress | bool | None,
) -> tuple[Solution, list[float]]:
    """Best solution of the replicates, with its trace."""
    n_reports = problem.replicates * method.count_reports(problem)
    n_reports += 0 if problem.refine is None else N_ROUNDS
    # One BLAS thread: the matrices are small, so that more threads are slower (3 times at 64
    # components, 12 features and 8000 frequencies), and rounding would depend on their number.
    with (
        one_blas_thread(),
        Threads(n_threads) as pool,
        shown(progress) as show,
    ):
        reporter = Reporter(show, n_reports)
        fits = fit_replicates(method.fit, problem, pool, reporter, executor)
        _, reporter.trace = min(fits, key=lambda each: each[0].cost)
        solution = method.conclude(problem, [result for result, _ in fits], pool, reporter)
    return solution, reporter.trace


def _likelier(problem: Problem, solution: Solution, n_threads: int) -> Solution:
    """Likelier mixture, or nearer centroids, on simulated rows; or the same solution."""
    with one_blas_thread(), Threads(n_threads) as pool:
        if problem.model == "dirac":
            return nearer_on_simulated_rows(problem, solution)
        return likelier_on_simulated_rows(problem, solution, pool)


def _warn_of_fit(problem: Problem, solution: Solution, non_default: Collection[str]) -> None:
    """Warn of a solution that simple rivals beat, or that noise does not explain."""
    sketch, test = problem.sketch, solution.overidentification
    if problem.model in TRANSFORMS:  # the methods of these models compare with rivals themselves
        return
    # users are warned of simulated rows, and pilot rows are enough for their mixture
    if problem.has_matrices and solution.message in (SIMULATED, OF_PILOT):
        return
    if solution.factors is not None and (solution.score is None or problem.refine is not None):
        warn_of_lost_width(solution.factors, has_rows=solution.score is not None)
    if test is not None and solution.score is None:  # it says more than the rivals
        if sketch.sample is None and solution.matrices is not None:
            warn_of_matrices(problem, solution)
            return
        warn_of_overidentification(sketch, *test, searched=problem.method != "likelihood")
        if sketch.sample is None and sketch.feature_map.pilot is not None:
            return
    if solution.shapes is None:
        is_density = problem.method == "density" and solution.noise_level > 0.0
        misfit = solution.cost / solution.noise_level if is_density else None
        warn_of_poor_centroids(sketch, solution.means, non_default, misfit)
        return
    warn_of_misfit(
        sketch, solution.weights, solution.means, solution.shapes, solution.cost,
        solution.noise_level, non_default,
        compared=solution.score is not None, tested=test is not None,
        regularized=solution.message.endswith(REGULARIZED),
        restricted=_restricted(problem) if solution.score is not None else None,
        is_diagonal=solution.matrices is None and _restricted(problem) is None,
    )  # fmt: skip


def _restricted(problem: Problem) -> str | None:
    """Type of covariances, where components have no variances of their own in each feature."""
    if problem.model == "isotropic":
        return "spherical"
    return "tied" if problem.covariance_type == "tied" else None


def _log_long_search(problem: Problem) -> None:
    """Log the expected time of a search on the processor before it begins, if it is long."""
    if (
        problem.device is not None
        or problem.method not in _SEARCHES
        or problem.n_components is None
        or (problem.model in TRANSFORMS)
    ):
        return
    seconds = expected_seconds(problem)
    if seconds > _LONG:
        quicker = "A feature map of design() with the default method"
        if problem.sketch.feature_map.pilot is not None:
            quicker = "covariance_type='diag'" if problem.has_matrices else "The default method"
        logger.warning(
            "decode with method=%r, n_components=%d, %d features and %d frequencies takes about "
            "%.0f seconds of CPU time. %s, fewer components or frequencies, %s, take less.",
            problem.method,
            problem.n_components,
            problem.n_features,
            problem.n_frequencies,
            seconds,
            quicker,
            "or random rows" if problem.has_matrices else "random rows, or device='cuda'",
        )


def _log_long_group(group: SketchGroup, seconds: float) -> None:
    """Log the expected time of the other groups, if it is long, by the seconds of one."""
    left = (len(group) - _TIMED_GROUP) * seconds
    if left > _LONG:
        logger.warning(
            "decode of %d groups takes about %.0f seconds more: %.2g seconds each. With "
            "executor=ThreadPoolExecutor(n), or that of a Dask cluster, groups are decoded side by "
            "side.",
            len(group),
            left,
            seconds,
        )


def _decode_group(
    group: SketchGroup,
    n_components: int | None,
    options: dict[str, Any],
    threads: int | None,
    executor: Executor | None,
    progress: Progress | bool | None,
) -> dict[Any, AnyModel]:
    """Models by label: one after the other here, or one task for each group in an executor."""
    names = {label: f"{group.dim} {label!s}" for label in group}
    _require_samples(group, n_components, names)
    if executor is None:
        models: dict[Any, AnyModel] = {}
        for label, sketch in group.items():
            start_time = time.perf_counter()
            decoded = _decode_named(names[label], sketch, n_components, options, threads, progress)
            models[label] = _model_of(*decoded)
            if len(models) == _TIMED_GROUP:
                _log_long_group(group, time.perf_counter() - start_time)
        return models
    threads = 1 if threads is None else threads
    tasks = {
        label: executor.submit(
            _decode_named, names[label], sketch, n_components, options, threads, progress
        )
        for label, sketch in group.items()
    }
    return {label: _model_of(*task.result()) for label, task in tasks.items()}


def _require_samples(
    group: SketchGroup, n_components: int | None, names: Mapping[Any, str]
) -> None:
    """Raise DecodeError for groups of few samples, before the work on others would be lost."""
    least = n_components if isinstance(n_components, Integral) else 1
    weightless = group.total_weight <= 0.0
    few = (group.count < least) | weightless
    if few.any():
        kept = f"group.count >= {least}"
        if weightless.any():
            kept = f"({kept}) & (group.total_weight > 0)"
        small = [name for name, is_small in zip(names.values(), few, strict=True) if is_small]
        raise DecodeError(
            f"{first_few(small)}: fewer samples than n_components={n_components}, or a total "
            "weight 0. Decode fewer components, or leave these groups out, as in "
            f"group.select({kept})."
        )


def _decode_named(
    name: str,
    sketch: Sketch,
    n_components: int | None,
    options: dict[str, Any],
    threads: int | None,
    progress: Progress | bool | None,
) -> tuple[AnyModel, list[Warning]]:
    """Model of one group and the warnings, with its name in their messages and in an error's."""
    try:
        with collect_warnings() as collected:
            model = _decode_sketch(sketch, n_components, options, threads, None, progress)
    except DecodeError as error:
        raise DecodeError(f"{name}: {error}") from error
    return model, [type(warning)(f"{name}: {warning}") for warning in collected]


def _model_of(model: AnyModel, collected: list[Warning]) -> AnyModel:
    """Model of a group, whose warnings are issued."""
    issue_warnings(collected)
    return model


def _wrapped(problem: Problem, solution: Solution, trace: list[float], seconds: float) -> AnyModel:
    """Model of a solution, with the record of its decoding."""
    has_floor = solution.variances is not None and count_shapes(problem.model, 1) > 0
    test = solution.overidentification
    record = Decoding(
        method=problem.method,
        model=problem.model,
        cost=solution.cost,
        noise_level=solution.noise_level,
        trace=tuple(trace),
        seconds=seconds,
        seed=problem.seed,
        replicates=problem.replicates,
        n_evaluations=solution.n_evaluations,
        converged=solution.converged,
        message=solution.message,
        refine=problem.refine,
        variance_floor=problem.variance_floor if has_floor else None,
        searched=solution.searched,
        score=solution.score,
        gain=solution.gain,
        overidentification=test and test[0],
        freedom=test and test[1],
        feature_names=problem.sketch.feature_map.feature_names,
    )
    if problem.model in TRANSFORMS:
        family: Callable[..., AnyModel] = FAMILIES[problem.model]
        return family(
            solution.weights, solution.means, **solution.parameters or {}, decoding=record
        )
    if solution.variances is None:
        spherical = problem.sketch.feature_map.normalize
        centers = unit_centers(solution.means) if spherical else solution.means
        return Centroids(solution.weights, centers, decoding=record, normalize=spherical)
    errors = solution.standard_errors
    kind = problem.covariance_type
    covariances = solution.factors
    if covariances is None:
        covariances = _of_type(kind, solution.variances, solution.matrices)
    return GaussianMixture(
        solution.weights,
        solution.means,
        covariances,
        decoding=record,
        covariance_type=kind,
        stderr=None if errors is None else _standard_errors(kind, *errors),
    )


def _standard_errors(
    covariance_type: str, weights: Array, means: Array, shapes: Array, noise: Array | None = None
) -> StandardErrors:
    """Standard errors of a solution, in the layout of a covariance type."""
    return StandardErrors(weights, means, _of_type(covariance_type, shapes, shapes), noise)


def _of_type(covariance_type: str, variances: Array, matrices: Array | None) -> Array:
    """Array of a covariance type, from variances or matrices that fulfil it."""
    if matrices is not None and uses_matrices(covariance_type):
        return matrices[0] if covariance_type == "tied" else matrices
    return variances[:, 0] if covariance_type == "spherical" else variances
