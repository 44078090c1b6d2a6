"""Design feature maps from pilot samples: size, whitening, scale and variances."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_sketch.errors import InputError
from dask_sketch.features.feature_map import FeatureMap
from dask_sketch.features.frequency_distributions import default_distribution
from dask_sketch.features.frequency_pairs import N_BASES, n_blocks_of_pairs, n_pairs
from dask_sketch.features.pilot import Pilot, PilotMixture
from dask_sketch.features.pilot_fit import (
    record_clusters,
    record_mixed_pilot,
    record_pilot,
    rough_mixture,
)
from dask_sketch.features.scale import (
    BAND_FREQUENCIES,
    N_BANDWIDTHS,
    PILOT_COMPONENTS,
    ScaleFit,
    clustering_scale,
    comparison_covariances,
    estimate_scale,
    observe_scale,
)
from dask_sketch.models.low_rank import covariances_of, require_rank
from dask_sketch.validation.arrays import require_integer
from dask_sketch.validation.categories import Categories
from dask_sketch.validation.choices import (
    MAX_SOLVABLE,
    TASKS,
    WHITENINGS,
    known_type,
    listed_types,
    uses_matrices,
)
from dask_sketch.validation.tables import warn_of_coarse_numbers
from dask_sketch.validation.warn import warn_user

# Up to this number there are ten frequencies for each parameter of latent classes, beyond it five.
# With ten, probabilities are within 2 standard errors of those of EM. Moments of more are not
# weighted.
_WEIGHTED = 2000
# Fraction of the default number for covariance matrices, below which there are too few.
_SMALLEST_FRACTION = 0.4
_COMPARISON_FREQUENCIES = N_BANDWIDTHS * BAND_FREQUENCIES
_UNLIKE = 30.0  # ratio of standard deviations from which features are not in one unit
_HUGE = 1e150  # bound of values, and inverse bound of ranges: squares are float64 numbers
_FEW_ROWS = 0.01  # weight in all of the components that do not decide the scale of the others
_MIXED = 0.1  # ratio of mean variances below which a likelier mixture is believed
_PILOT_ROWS_PER_PARAMETER, _MIN_PILOT, _MAX_PILOT = 40, 5_000, 32_000
# values of all pilot rows together, at most, unless these are fewer than _MIN_PILOT rows
_PILOT_VALUES = 4_000_000


def default_n_frequencies(
    n_features: int, n_components: int, task: str = "mixture", covariance_type: str | None = None
) -> int:
    """Five times the number of parameters: ``5 (2 d + 1) K`` for mixtures (section 5.5).

    For clustering, ``5 (d + 1) K``; for comparisons, a number that does not depend on the features
    or components. With covariance matrices there are more parameters, such as
    ``(1 + d + d (d + 1) / 2) K``. Where these are more than can be fitted to a sketch, random rows
    determine them, and only variances are counted.

    Parameters
    ----------
    n_features
        Number of features ``d``.
    n_components
        Number of components ``K``.
    task
        Purpose of the sketch, ``"mixture"``, ``"clustering"`` or ``"comparison"``.
    covariance_type
        Name of the type of the covariances of a mixture, see :func:`dask_sketch.decode`.

    Examples
    --------
    >>> default_n_frequencies(n_features=10, n_components=5)
    525
    >>> default_n_frequencies(n_features=10, n_components=5, task="clustering")
    275
    >>> default_n_frequencies(n_features=10, n_components=5, covariance_type="full")
    1650
    """
    if task == "comparison":
        return _COMPARISON_FREQUENCIES
    n_frequencies = 5 * ((2 if task == "mixture" else 1) * n_features + 1) * n_components
    if not uses_matrices(covariance_type):
        return n_frequencies
    assert covariance_type is not None  # no name uses no matrices
    sizes = n_components, n_features
    n_parameters, solved = (
        covariances_of(name).n_parameters(*sizes)
        for name in (covariance_type, "full" if covariance_type == "tied" else covariance_type)
    )
    n_others = (1 + n_features) * n_components
    if n_others + solved > MAX_SOLVABLE:
        return n_frequencies
    return max(n_frequencies, 5 * (n_others + n_parameters))


def default_n_pilot(
    n_features: int | None, n_components: int | None = None, task: str = "mixture"
) -> int:
    """Forty rows for each parameter of the mixture of a pilot, and 5,000 at least.

    A mixture with ``p`` parameters, fitted to ``r`` rows, loses about ``p / (2 r)`` nats on other
    rows, which is 0.0125 here.

    Parameters
    ----------
    n_features
        Number of features ``d``; None if it is not known before rows are read.
    n_components
        Number of components ``K`` of the mixture, with ``(2 d + 1) K`` parameters, or of centroids.
    task
        Purpose of the sketch, see :func:`dask_sketch.design`.

    Returns
    -------
    n_pilot
        Number of rows: at most 32,000, or 32 MB, and at least 5,000, as without a number of
        components.

    Examples
    --------
    >>> default_n_pilot(12, 10), default_n_pilot(12, 64), default_n_pilot(12, 500)
    (10000, 32000, 32000)
    """
    if n_features is None or n_components is None:
        return _MIN_PILOT
    n_parameters = ((1 if task == "clustering" else 2) * n_features + 1) * n_components
    max_pilot = min(_MAX_PILOT, _PILOT_VALUES // n_features)
    return max(min(_PILOT_ROWS_PER_PARAMETER * n_parameters, max_pilot), _MIN_PILOT)


def larger_pilot(n_pilot: int, n_features: int) -> int:
    """Four times as many pilot rows, within the limits of :func:`default_n_pilot`.

    Parameters
    ----------
    n_pilot
        Number of pilot rows.
    n_features
        Number of features.

    Examples
    --------
    >>> larger_pilot(5000, 12), larger_pilot(10_000, 12), larger_pilot(5000, 1000)
    (20000, 32000, 5000)
    """
    return max(min(4 * n_pilot, _MAX_PILOT, _PILOT_VALUES // n_features), n_pilot)


def whitening_matrix(
    samples: NDArray[np.float64], kind: str, feature_names: tuple[str, ...] | None = None
) -> NDArray[np.float64]:
    """Matrix ``L`` such that ``L @ x`` has features of unit variance (section 5.4, erratum).

    Parameters
    ----------
    samples
        Pilot samples, shape (n_samples, n_features).
    kind
        ``"diagonal"`` divides each feature by its standard deviation; ``"full"`` is the symmetric
        inverse square root of the covariance, which removes correlations as well.
    feature_names
        Names of the features for messages, if the data has names.

    Returns
    -------
    matrix
        Shape (n_features, n_features).

    Raises
    ------
    InputError
        If a feature does not vary, or features are linearly dependent.

    Examples
    --------
    >>> x = np.random.default_rng(0).normal(size=(1000, 2)) * [1.0, 100.0]
    >>> (x @ whitening_matrix(x, "diagonal").T).std(axis=0)
    array([1., 1.])
    """
    deviation = samples.std(axis=0)
    if not (deviation > 0).all():
        raise InputError(
            f"{_listed_features(deviation == 0, feature_names)} do not vary in the pilot samples, "
            "so they cannot be whitened. Leave them out."
        )
    if kind == "diagonal":
        return np.diag(1.0 / deviation)
    values, vectors = np.linalg.eigh(np.atleast_2d(np.cov(samples.T)))
    if values[0] <= 1e-12 * values[-1]:
        raise InputError(
            "whitening='full': the features are linearly dependent in the pilot samples. Leave "
            "some of them out, or pass whitening='diagonal'."
        )
    return np.asarray((vectors / np.sqrt(values)) @ vectors.T)


def _listed_features(chosen: NDArray[np.bool_], names: tuple[str, ...] | None) -> str:
    """Text such as ``features [1]``, or ``features ['age']`` of data with names."""
    numbers = np.flatnonzero(chosen).tolist()
    return f"features {numbers if names is None else [names[number] for number in numbers]}"


def require_design_arguments(
    *,
    n_frequencies: int | None,
    n_components: int | None,
    n_columns: int | None,
    n_pilot: int | None,
    seed: int,
    task: str,
    whitening: str | None,
    covariance_type: str | None = None,
    distribution: str | None = None,
) -> None:
    """Validate the arguments of a design before any samples are read.

    The covariance type is a name, see :func:`~dask_sketch.validation.choices.named_type`.

    Raises
    ------
    InputError
        If an argument is out of range, or both sizes are None; the message names it.
    """
    for name, value, minimum in (
        ("n_frequencies", n_frequencies, 1),
        ("n_components", n_components, 1),
        ("n_pilot", n_pilot, 2),
        ("seed", seed, 0),
    ):
        if value is not None:
            require_integer(name, value, minimum)
    if n_frequencies is None and n_components is None and task != "comparison":
        raise InputError(
            "n_frequencies=None, n_components=None: give one. With n_components there are 5(2d+1)K "
            "frequencies by default."
        )
    if task not in TASKS:
        raise InputError(f"task={task!r}: choose 'mixture', 'clustering', 'comparison' or 'pca'.")
    if distribution == "gaussian-pairs":
        if task != "comparison":
            raise InputError(
                f"distribution='gaussian-pairs' with task={task!r}: pairs of frequencies are for "
                "task='comparison'; leave one of them out.",
                parameter="distribution",
            )
        if n_frequencies is not None:
            n_blocks_of_pairs(n_frequencies)
    if n_columns is not None:
        raise InputError(
            f"n_columns={n_columns!r} with task={task!r}: only second moments have a test matrix; "
            "pass task='pca', or leave it out."
        )
    if whitening is not None and whitening not in WHITENINGS:
        raise InputError(f"whitening={whitening!r}: choose 'diagonal' or 'full', or leave it out.")
    if covariance_type is None:
        return
    if not known_type(covariance_type):
        raise InputError(f"covariance_type={covariance_type!r}: choose one of {listed_types()}.")
    if task != "mixture":
        raise InputError(
            f"covariance_type={covariance_type!r} with task={task!r}: only mixtures have "
            "covariances; leave it out."
        )


def design_from_pilot(
    pilot: NDArray[np.float64],
    n_frequencies: int | None = None,
    n_components: int | None = None,
    *,
    task: str = "mixture",
    distribution: str | None = None,
    scale: float | None = None,
    covariances: Any = None,
    covariance_weights: Any = None,
    whitening: str | None = None,
    seed: int = 0,
    dtype: str = "float32",
    feature_names: tuple[str, ...] | None = None,
    normalize: bool = False,
    covariance_type: str | None = None,
    label: str = "samples",
) -> FeatureMap:
    """Choose a feature map for pilot samples in memory.

    Parameters
    ----------
    pilot
        Pilot samples, shape (n_samples, n_features), finite.
    n_frequencies, n_components, task, distribution, scale, covariances, covariance_weights, \
whitening, seed, dtype
        Arguments of :func:`dask_sketch.design`, already validated.
    feature_names
        Names of the features, if the data has names.
    normalize
        Whether the map normalizes rows, as the pilot samples are.
    covariance_type
        Name of the type of the covariances that will be decoded.
    label
        Name of the data for messages.

    Returns
    -------
    feature_map
        Feature map, with the mean of the pilot samples as its center.

    Raises
    ------
    InputError
        If there are far too few frequencies, the pilot samples do not vary, or a rank is too large.

    Examples
    --------
    >>> pilot = np.random.default_rng(0).normal(scale=3.0, size=(2000, 2))
    >>> design_from_pilot(pilot, n_components=1).mean_variances.round()
    array([9., 9.])
    """
    _require_magnitudes(pilot, label, feature_names)
    warn_of_coarse_numbers(pilot, pilot.std(axis=0), label, feature_names)
    d = pilot.shape[1]
    require_rank(covariance_type, d)
    if task == "comparison":
        n_components = n_components or PILOT_COMPONENTS
        pairs = distribution == "gaussian-pairs"
        default = n_pairs(N_BASES) if pairs else default_n_frequencies(d, n_components, task)
        m = n_frequencies or default
    else:
        m = _choose_n_frequencies(n_frequencies, d, n_components, task, covariance_type)
    if distribution is None:
        distribution = default_distribution(d, m, task)
    matrix = None if whitening is None else whitening_matrix(pilot, whitening, feature_names)
    fit = rough = None
    if task == "clustering":
        record = record_clusters(pilot, n_components, seed, spherical=normalize)
    else:
        rough = rough_mixture(pilot, n_components, seed)
        record = record_pilot(pilot, rough, seed)
    if scale is None and covariances is None:
        rows = pilot if matrix is None else pilot @ matrix.T
        if task == "clustering":
            if n_components is None:
                raise InputError(
                    "n_components=None with task='clustering': give the number of centroids, or "
                    "the scale."
                )
            if len(rows) < n_components:
                raise InputError(
                    f"{label} has {len(rows):,} rows that can be used: task='clustering' needs at "
                    f"least n_components={n_components} of them.",
                    parameter="n_components",
                )
            _warn_of_unlike_units(rows)
            scale = _rounded(clustering_scale(rows, n_components, seed=seed))
        elif task == "comparison":
            covariances = comparison_covariances(rows, seed)
        else:
            mixtures = [rough, record.mixture]
            if matrix is not None:
                mixtures = [rough_mixture(rows, n_components, seed)]
            covariances, fit = _component_variances(rows, mixtures, seed, feature_names)
    return FeatureMap(
        n_features=d,
        n_frequencies=m,
        scale=scale,
        covariances=covariances,
        covariance_weights=covariance_weights,
        distribution=distribution,
        seed=seed,
        dtype=dtype,
        center=pilot.mean(axis=0),
        whitening=matrix,
        feature_names=feature_names,
        normalize=normalize,
        scale_fit=fit,
        pilot=record,
    )


def design_mixed(
    pilot: NDArray[np.float64],
    n_frequencies: int | None = None,
    n_components: int | None = None,
    *,
    categories: Categories,
    task: str = "mixture",
    distribution: str | None = None,
    scale: float | None = None,
    covariances: Any = None,
    covariance_weights: Any = None,
    whitening: str | None = None,
    seed: int = 0,
    dtype: str = "float32",
    feature_names: tuple[str, ...] | None = None,
    normalize: bool = False,
    covariance_type: str | None = None,
    label: str = "samples",
) -> FeatureMap:
    """Choose a feature map for pilot samples with categorical features.

    Parameters
    ----------
    pilot
        Pilot samples of numbers and codes, shape (n_samples, n_features), NaN where values are
        missing.
    n_frequencies, n_components, task, distribution, scale, covariances, covariance_weights, \
whitening, seed, dtype, feature_names, normalize, covariance_type, label
        Arguments of :func:`design_from_pilot`; the variances of the numeric features are estimated
        within the components of a mixture of products, and without ``n_components`` from all
        samples together.
    categories
        Levels of the categorical features.

    Returns
    -------
    feature_map
        Feature map; the center is the mean in numeric features and a middle code in others.

    Raises
    ------
    InputError
        If an argument has no meaning with categorical features.
    """
    if task != "mixture":
        remedy = "Sketch the numeric columns alone, or decode latent classes with task='mixture'."
        if task == "comparison":
            remedy = "Leave task out: sketches of any feature map with categories can be compared."
        raise InputError(f"task={task!r} with categories: {remedy}")
    if whitening is not None:
        raise InputError(
            f"whitening={whitening!r} with categories: codes of levels have no scale. Leave it "
            "out; each numeric column has a scale of its own."
        )
    if covariance_type not in (None, "diag"):
        raise InputError(
            f"covariance_type={covariance_type!r} with categories: features of latent classes are "
            "independent in each class; leave it out."
        )
    numeric = categories.numeric
    if len(numeric):
        _require_magnitudes(pilot[:, numeric], label, None)
    if n_frequencies is None:
        assert n_components is not None  # the arguments were checked
        each = 1 + 2 * len(numeric) + categories.n_levels - len(categories.sizes)
        n_min, n_max = (times * each * n_components for times in (5, 10))
        n_frequencies = max(n_min, min(n_max, _WEIGHTED))
    record = record_mixed_pilot(pilot, categories, n_components, seed)
    if scale is None and covariances is None:
        covariances = _mixed_variances(record, numeric, feature_names)
    center = np.zeros(pilot.shape[1])
    center[numeric] = np.nanmean(pilot[:, numeric], axis=0)
    center[categories.columns] = np.array(categories.sizes) // 2
    return FeatureMap(
        n_features=pilot.shape[1],
        n_frequencies=n_frequencies,
        scale=scale,
        covariances=covariances,
        covariance_weights=covariance_weights,
        distribution=distribution or "sparse-radius",
        seed=seed,
        dtype=dtype,
        center=center,
        feature_names=feature_names,
        normalize=normalize,
        categories=categories,
        pilot=record,
    )


def _mixed_variances(
    pilot: Pilot, numeric: NDArray[np.intp], feature_names: tuple[str, ...] | None
) -> NDArray[np.float64]:
    """Mean variances of the components; ones for categorical features, where they have no use."""
    constant = np.zeros(len(pilot.variance), dtype=bool)
    constant[numeric] = ~(pilot.variance[numeric] > 0.0)
    if constant.any():
        raise InputError(
            f"{_listed_features(constant, feature_names)} do not vary in the pilot samples: leave "
            "them out."
        )
    out = np.ones(len(pilot.variance))
    mixture = pilot.mixture
    within = pilot.variance if mixture is None else mixture.weights @ mixture.variances
    out[numeric] = [_rounded(value) for value in within[numeric]]
    return out


def _rounded(value: float) -> float:
    """Round to four digits, so that the digest does not depend on the machine.

    The estimates are less accurate than that, and the specification becomes readable.
    """
    return float(f"{value:.4g}")


def _choose_n_frequencies(
    n_frequencies: int | None,
    n_features: int,
    n_components: int | None,
    task: str,
    covariance_type: str | None,
) -> int:
    """Number of frequencies; warn if it is below the number that estimation needs (section 5.5)."""
    if n_components is None:
        assert n_frequencies is not None
        if n_frequencies <= n_features // 2:
            raise InputError(
                f"n_frequencies={n_frequencies} is too small for {n_features} features: a single "
                f"component needs {default_n_frequencies(n_features, 1, task)}. If the number of "
                "components is meant, give n_components."
            )
        return n_frequencies
    needed = default_n_frequencies(n_features, n_components, task, covariance_type)
    if n_frequencies is None:
        return needed
    n_min = default_n_frequencies(n_features, n_components, task)
    rule = "5(2d+1)K" if task == "mixture" else "5(d+1)K"
    if needed > n_min:
        n_min = max(n_min, round(_SMALLEST_FRACTION * needed))
        rule = f"2 for each parameter of covariance_type={covariance_type!r}"
    if n_frequencies < n_min:
        warn_user(
            f"n_frequencies={n_frequencies} is under {rule} = {n_min} for {n_components} "
            f"components of {n_features} features: estimates may fail. Take {needed} or more."
        )
    return n_frequencies


def _require_magnitudes(
    rows: NDArray[np.float64], label: str, feature_names: tuple[str, ...] | None
) -> None:
    """Refuse values whose squares exceed the range of float64."""
    largest = float(np.abs(rows).max())
    if largest >= _HUGE:
        problem = f"holds values up to {largest:g}"
    else:
        ranges = np.ptp(rows, axis=0)
        narrow = np.flatnonzero((ranges > 0) & (ranges < 1.0 / _HUGE))
        if not len(narrow):
            return
        name = narrow[0] if feature_names is None else repr(feature_names[narrow[0]])
        problem = f"varies by {ranges[narrow[0]]:g} in feature {name}"
    raise InputError(f"{label} {problem}: no float64 holds the square. Use another unit.")


def _component_variances(
    rows: NDArray[np.float64],
    mixtures: Sequence[PilotMixture | None],
    seed: int,
    feature_names: tuple[str, ...] | None,
) -> tuple[NDArray[np.float64], ScaleFit]:
    """Mean variance of the components in each feature, and the fit for plots."""
    variances = rows.var(axis=0)
    varies = np.ptp(rows, axis=0) > 0
    if not varies.any():
        raise InputError(
            f"all {len(rows):,} pilot samples are equal, so there is no scale to find. Give the "
            "scale, or more pilot samples by n_pilot."
        )
    if not varies.all():
        warn_user(
            f"{_listed_features(~varies, feature_names)} do not vary in the pilot samples. They "
            "carry no information; leave them out."
        )
    x = rows[:, varies]
    known = [mixture for mixture in mixtures if mixture is not None]
    if not known:
        fit = estimate_scale(x / x.std(axis=0), seed=seed)
        within = x.var(axis=0) * fit.scale**2
    else:
        within = _within(known)[varies]
        fit = observe_scale(x / np.sqrt(within), 1.0, seed=seed)
    variances[varies] = within
    variances[~varies] = within.mean()
    return np.array([_rounded(value) for value in variances]), fit


def _within(mixtures: Sequence[PilotMixture]) -> NDArray[np.float64]:
    """Mean variance of the components of the first mixture in each feature, shape (n_features,).

    Few rows that are far out would hide all others from the frequencies. Components with few rows
    are left out where they add more than all others, and the last mixture, which is likelier, tells
    where the first one has such rows beside others in one component.
    """
    means = []
    for mixture in mixtures:
        order = np.argsort(mixture.weights, kind="stable")
        few = np.empty(len(order), dtype=bool)
        few[order] = np.cumsum(mixture.weights[order]) < _FEW_ROWS
        parts = mixture.weights[:, None] * mixture.variances
        rare, common = parts[few].sum(axis=0), parts[~few].sum(axis=0)
        means.append(np.where(rare > common, common, rare + common))
    return np.asarray(np.where(means[-1] < _MIXED * means[0], means[-1], means[0]))


def _warn_of_unlike_units(rows: NDArray[np.float64]) -> None:
    """Warn if a few features dominate all distances."""
    deviations = rows.std(axis=0)[np.ptp(rows, axis=0) > 0]
    if not len(deviations):
        return
    wide = float(deviations.max())
    if (deviations < wide / _UNLIKE).any():
        warn_user(
            f"the standard deviations of the features range from {deviations.min():.3g} to "
            f"{wide:.3g}: the widest feature dominates distances, and so the centroids. Divide "
            "each feature by its standard deviation before sketching."
        )
