"""Design a feature map for given samples, from a few chunks of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import NDArray

from dask_sketch.errors import InputError
from dask_sketch.features.design import (
    default_n_frequencies,
    default_n_pilot,
    design_from_pilot,
    design_mixed,
    larger_pilot,
    require_design_arguments,
)
from dask_sketch.features.feature_map import FeatureMap
from dask_sketch.features.frequency_distributions import FEW, min_with_marginals
from dask_sketch.features.matrix_pilot import adapted_to_matrices, n_pilot_of_type, with_matrices
from dask_sketch.features.pilot import WARNED_SAMPLING_LOSS, rounded_characteristic
from dask_sketch.features.pilot_fit import filled_pilot, with_further_start
from dask_sketch.graph.pilot_samples import pilot_samples
from dask_sketch.sketching.arguments import require_nan_policy
from dask_sketch.sketching.moment_grid import MAX_FEATURES, MomentGrid, default_n_columns
from dask_sketch.sketching.partial import partial_sketch
from dask_sketch.sources.open import open_samples, require_options
from dask_sketch.validation.arrays import require_integer
from dask_sketch.validation.categories import FROM_DTYPES
from dask_sketch.validation.choices import PCA, Task, named_type
from dask_sketch.validation.warn import collect_warnings, issue_warnings

# Largest number of values, and smallest number of rows, of pilot rows of many features.
_GRID_VALUES, _GRID_ROWS = 2**21, 32


@overload
def design(
    x: Any,
    *,
    task: Literal["pca"],
    n_components: int | None = ...,
    n_columns: int | None = ...,
    seed: int = ...,
    n_pilot: int = ...,
    nan_policy: str = ...,
    progress: bool = ...,
    weights: Any = ...,
    **options: Any,
) -> MomentGrid: ...


@overload
def design(
    x: Any,
    *,
    n_frequencies: int | None = ...,
    n_components: int | None = ...,
    task: Task = ...,
    distribution: str | None = ...,
    scale: float | None = ...,
    covariances: Any = ...,
    covariance_weights: Any = ...,
    whitening: Literal["diagonal", "full"] | None = ...,
    seed: int = ...,
    dtype: str = ...,
    n_pilot: int = ...,
    covariance_type: str | tuple[str, int] | None = ...,
    nan_policy: str = ...,
    normalize: bool = ...,
    categories: Any = ...,
    progress: bool = ...,
    weights: Any = ...,
    **options: Any,
) -> FeatureMap: ...


def design(
    x: Any,
    *,
    n_frequencies: int | None = None,
    n_components: int | None = None,
    n_columns: int | None = None,
    task: Task | Literal["pca"] = "mixture",
    distribution: str | None = None,
    scale: float | None = None,
    covariances: Any = None,
    covariance_weights: Any = None,
    whitening: Literal["diagonal", "full"] | None = None,
    seed: int = 0,
    dtype: str = "float32",
    n_pilot: int | None = None,
    covariance_type: str | tuple[str, int] | None = None,
    nan_policy: str = "omit",
    normalize: bool = False,
    categories: Any = None,
    progress: bool = False,
    weights: Any = None,
    **options: Any,
) -> FeatureMap | MomentGrid:
    """Choose a feature map for ``x``, reading only a few chunks.

    As in Algorithm 3 of Keriven et al. (2018), frequencies are sampled for the variances of the
    components, which are estimated from a few thousand pilot samples. The estimate, which fits a
    mixture with expectation-maximisation, and the default distribution are new in this package.

    Parameters
    ----------
    x
        Samples, shape (n_samples, n_features), in any form that :func:`open_samples` takes.
    n_frequencies
        Number of frequencies ``m``. The default is five for each parameter, ``5 (2 d + 1) K``; more
        with ``covariance_type``, and 5 to 10 for each parameter with categorical columns. There is
        a warning if ``m`` is smaller.
    n_components
        Number of components ``K`` that will be decoded; needed without ``n_frequencies``, except
        for a comparison. For principal components, it is needed only with more than 5,000 features.
    n_columns
        Number of columns of the test matrix, for principal components of many features; see
        :func:`second_moments`. By default, all second moments are summed for up to 5,000 features,
        and ``max(80, 8 n_components)`` columns for more.
    task
        Purpose of the sketch: ``"mixture"``; ``"clustering"`` for centroids (``model="dirac"``),
        with the distribution ``"gaussian"`` and the scale of
        :func:`dask_sketch.features.clustering_scale`, and a mixture of the pilot rows that is
        rougher, though in a fraction of the time; ``"comparison"`` for
        :func:`dask_sketch.distributions.compare`, with 512 frequencies of eight bandwidths, from
        half of the small distances between samples to twice the large ones (up to a quarter of the
        frequencies use single features, as in ``"gaussian-marginals"``, and eight
        ``covariance_weights`` weigh the bandwidths, the smallest one first); or ``"pca"`` for
        principal components. The result of ``"pca"`` is a grid of second moments in place of
        frequencies, for :func:`sketch`, ``second_moments(like=...)`` and ledgers. Its only
        arguments are ``n_components``, ``n_columns``, ``seed``, ``n_pilot``, ``nan_policy``,
        ``progress`` and the arguments of :func:`open_samples`.
    distribution
        Distribution of the frequencies, see :class:`FeatureMap`. The default for mixtures is
        ``"sparse-sums"``, the fastest to sketch; with one feature, or under 20 frequencies for each
        feature, ``"sparse-radius"``; with ``covariance_type="full"`` and at most twelve features,
        ``"dense-sums"``, adapted to the covariance matrices of the pilot rows. For a comparison,
        ``"gaussian-pairs"`` has 64 base frequencies and all of their sums and differences, 4,352
        frequencies in all, so that :func:`~dask_sketch.distributions.compare_rows` needs no random
        rows.
    scale
        Standard deviation of a component, in the units of the data (of the whitened data, with
        ``whitening``), for all features.
    covariances, covariance_weights
        Known variances of the components in place of a scale; see :class:`FeatureMap`. Without
        either, the variances of each feature are estimated: as variances within the components of
        a mixture of ``n_components`` fitted to the pilot samples; without ``n_components``, as the
        variances of the features times a common factor, the square of
        :func:`dask_sketch.features.estimate_scale` of the standardised samples.
    whitening
        Transformation of the samples: ``"diagonal"`` divides each feature by its standard deviation
        in the pilot samples, for a ``scale`` in these units; ``"full"`` also removes their
        correlations. Decoded components are in the axes of the data, and diagonal there unless
        ``decode`` has ``covariance_type="full"`` or ``"tied"``.
    seed
        Seed of the pilot samples and of the frequencies.
    dtype
        Precision of the features, ``"float32"`` or ``"float64"``.
    n_pilot
        Number of pilot samples (``n0`` in the paper). They are rows of about eight chunks, or of
        many more chunks if chunks differ, as in sorted data. The default is 40 for each parameter
        of a mixture, such as ``40 (2 d + 1) K`` with variances, or of centroids: at most 32,000, or
        32 MB, and at least 5,000. For a mixture, four times as many are read, within this limit, if
        fits to their halves differ so much that a loss of over 0.075 nats is expected. Without
        ``n_components``, or where the number of features is not known before blocks of a bag are
        read, it is 5,000. For principal components of more than 420 features, fewer are read.
    covariance_type
        Type of the covariances that will be decoded, as for :func:`decode`. With ``"full"``,
        ``"tied"`` and ``("low-rank", r)``, the default number of frequencies grows with the number
        of parameters up to 4096 parameters, the largest number that can be fitted to a sketch
        without random rows. With ``"full"``, the map also records a mixture with covariance
        matrices of the pilot rows, from which :func:`decode` starts. Any sketch can be decoded with
        any type.
    nan_policy
        Treatment of pilot samples with NaN or infinite values: ``"omit"`` leaves them out,
        ``"raise"`` stops; ``"available"``, for a sketch with this policy, treats such values as
        missing, and draws them from a mixture fitted to the observed values. The default
        distribution is then ``"sparse-sums"`` with three or four features, or for centroids with
        three or more, and ``"gaussian-marginals"`` with two features. Only the pilot samples are
        checked, not all rows; see :func:`dask_sketch.sketch`, where the default is ``"raise"``.
    normalize
        Whether the feature map is for the directions of the rows: each row is divided by its
        Euclidean length in the pass. With ``task="clustering"`` this is spherical k-means:
        centroids have length one, and the predicted centroid has the greatest cosine with the row.
    categories
        Categorical columns and their levels in order, as for :func:`open_samples`: ``{"color":
        ["red", "blue"]}``, with None in place of the levels for a column of a categorical or
        boolean type. The default is all columns of a categorical type of pandas or Arrow; columns
        of text need their levels. The levels are part of the feature map, and :func:`decode`
        returns a :class:`~dask_sketch.models.LatentClassMixture`.
    progress
        Whether to show a bar while chunks are read, in a notebook or on the standard error stream.
    weights, options
        Arguments of :func:`open_samples`.

    Returns
    -------
    feature_map
        Feature map with the pilot mean as its center, and with the names of the features if ``x``
        has names. If the variances were estimated, ``feature_map.scale_fit`` has the fit, in units
        of the standard deviations of the components (of the features, without ``n_components``).
        With ``task="pca"``, a :class:`MomentGrid`, whose moments are pairwise with
        ``nan_policy="available"``.

    Raises
    ------
    InputError
        If neither ``n_frequencies`` nor ``n_components`` is given, there are far too few
        frequencies, or too few rows, or a pilot sample is refused by ``nan_policy``; with
        ``task="pca"``, also if an argument has no meaning for second moments.

    Notes
    -----
    With ``K`` components that overlap, the estimate of the paper
    (:func:`dask_sketch.features.estimate_scale`) is up to 1.8 times their mean variance (d = 10,
    K = 20), and the same for all features; the error of the estimate from the mixture is below a
    tenth.

    References
    ----------
    Keriven, Bourrier, Gribonval, Pérez (2018), Sketching for large-scale learning of mixture
    models, Information and Inference 7(3), section 3.3.

    Examples
    --------
    >>> x = np.random.default_rng(0).normal(scale=3.0, size=(10_000, 2))
    >>> feature_map = design(x, n_components=1)
    >>> feature_map.n_frequencies, np.sqrt(feature_map.mean_variances).round(1)
    (25, array([3., 3.]))
    >>> grid = design(x, task="pca")
    >>> grid.n_features, grid.n_sums
    (2, 6)
    """
    require_options(design, options)
    if task == PCA:
        unused = {
            "n_frequencies": n_frequencies, "distribution": distribution, "scale": scale,
            "covariances": covariances, "covariance_weights": covariance_weights,
            "whitening": whitening, "dtype": None if dtype == "float32" else dtype,
            "normalize": normalize or None, "categories": categories,
            "covariance_type": covariance_type,
        }  # fmt: skip
        return _moment_grid(
            x, unused, n_components, n_columns, seed, n_pilot, nan_policy, progress,
            weights=weights, **options,
        )  # fmt: skip
    kind = named_type(covariance_type)
    require_design_arguments(
        n_frequencies=n_frequencies, n_components=n_components, n_columns=n_columns,
        n_pilot=n_pilot, seed=seed, task=task, whitening=whitening, covariance_type=kind,
        distribution=distribution,
    )  # fmt: skip
    require_nan_policy(nan_policy)
    stated = FROM_DTYPES if categories is None else categories
    samples = open_samples(x, weights=weights, categories=stated, **options)
    if normalize and nan_policy == "available":
        raise InputError(
            "nan_policy='available' with normalize=True: rows with missing values have no known "
            "length. Pass nan_policy='omit'.",
            parameter="nan_policy",
        )
    size = n_pilot or n_pilot_of_type(kind, samples.n_features, n_components, task)
    read = partial(
        pilot_samples, samples, seed=seed, nan_policy=nan_policy, normalize=normalize,
        progress=progress,
    )  # fmt: skip
    pilot = read(size)
    build = design_from_pilot
    if samples.categories is not None:
        build = partial(design_mixed, categories=samples.categories)
    elif nan_policy == "available" and distribution is None and task != "comparison":
        distribution, n_frequencies = _with_missing(
            pilot.shape[1], n_frequencies, n_components, task, kind
        )
    make_map = partial(
        build, n_frequencies=n_frequencies, n_components=n_components, task=task,
        distribution=distribution, scale=scale, covariances=covariances,
        covariance_weights=covariance_weights, whitening=whitening, seed=seed, dtype=dtype,
        feature_names=samples.feature_names, normalize=normalize, covariance_type=kind,
        label=samples.label,
    )  # fmt: skip

    def map_of_rows(rows: NDArray[np.float64]) -> FeatureMap:
        if samples.categories is not None:
            return make_map(rows)
        if np.isnan(rows).any():
            return make_map(filled_pilot(rows, n_components, seed, samples.feature_names))
        return _with_characteristic(make_map(rows), rows)

    may_read = n_pilot is None and n_components is not None and task == "mixture"
    feature_map, pilot = _design_from_enough(map_of_rows, read, pilot, size if may_read else None)
    return _with_likelier_mixtures(feature_map, pilot, seed, task, kind, distribution, nan_policy)


def _design_from_enough(
    map_of_rows: Callable[[NDArray[np.float64]], FeatureMap],
    read: Callable[[int], NDArray[np.float64]],
    pilot: NDArray[np.float64],
    size: int | None,
) -> tuple[FeatureMap, NDArray[np.float64]]:
    """Feature map and its pilot rows: more of them where mixtures of their halves differ much.

    With repeated values, or rare rows far out, a mixture loses more on other rows than the number
    of its parameters says. Without a ``size``, no more rows are read.
    """
    if size is None:
        return map_of_rows(pilot), pilot
    more = larger_pilot(size, pilot.shape[1])
    with collect_warnings() as collected:
        feature_map = map_of_rows(pilot)
    record = feature_map.pilot
    if record is not None and record.sampling_loss > WARNED_SAMPLING_LOSS and more > size:
        rows = read(more)
        if len(rows) > len(pilot):
            return map_of_rows(rows), rows
    issue_warnings(collected)
    return feature_map, pilot


def _with_likelier_mixtures(
    feature_map: FeatureMap,
    rows: NDArray[np.float64],
    seed: int,
    task: str,
    kind: str | None,
    distribution: str | None,
    nan_policy: str,
) -> FeatureMap:
    """Feature map with the likelier mixture of a further start, of rows without missing values.

    With ``kind="full"``, there is a mixture with covariance matrices as well, to which the
    frequencies are adapted if neither the ``distribution`` nor a scale is given. Frequencies of all
    features say nothing about rows with missing values.
    """
    pilot = feature_map.pilot
    if task != "mixture" or pilot is None or feature_map.categories is not None:
        return feature_map
    if np.isnan(rows).any():
        return feature_map
    pilot = with_further_start(pilot, rows, seed)
    if kind == "full":
        pilot = with_matrices(pilot, rows, seed)
    feature_map = feature_map.with_pilot(pilot)
    is_free = distribution is None and feature_map.distribution == "sparse-sums"
    estimated = feature_map.scale_fit is not None and feature_map.whitening is None
    if not (is_free and estimated) or nan_policy == "available":
        return feature_map
    adapted = adapted_to_matrices(feature_map, rows)
    return feature_map if adapted is feature_map else _with_characteristic(adapted, rows)


def _with_characteristic(feature_map: FeatureMap, rows: NDArray[np.float64]) -> FeatureMap:
    """Feature map with the characteristic function of its pilot rows, for decoders."""
    pilot = feature_map.pilot
    if pilot is None or (pilot.mixture is None and pilot.clusters is None):
        return feature_map
    try:
        characteristic = partial_sketch(rows, feature_map.without_records()).centered_characteristic
    except InputError:  # rows too far from the others, which every sketch refuses with a remedy
        return feature_map
    return feature_map.with_pilot(
        replace(pilot, characteristic=rounded_characteristic(characteristic))
    )


def _with_missing(
    n_features: int,
    n_frequencies: int | None,
    n_components: int | None,
    task: str,
    covariance_type: str | None,
) -> tuple[str | None, int | None]:
    """Distribution and number of frequencies for features with missing values.

    Frequencies of the default distribution for mixtures use all features if there are few, and
    those of the default for clustering always. Sums of two features use both.
    """
    if n_features == 1 or (task == "mixture" and n_features > FEW):
        return None, n_frequencies
    if n_features > 2:
        return "sparse-sums", n_frequencies
    if n_frequencies is None and n_components is not None:
        needed = default_n_frequencies(2, n_components, task, covariance_type)
        n_frequencies = max(needed, min_with_marginals(2))
    return "gaussian-marginals", n_frequencies


def _moment_grid(
    x: Any,
    unused: dict[str, Any],
    n_components: int | None,
    n_columns: int | None,
    seed: int,
    n_pilot: int | None,
    nan_policy: str,
    progress: bool,
    **options: Any,
) -> MomentGrid:
    """Grid of second moments, from pilot samples; see :func:`design`."""
    for name, value in unused.items():
        if value is not None:
            raise InputError(
                f"{name}={value!r} with task='pca': second moments have no frequencies and no "
                "levels; leave it out.",
                parameter=name,
            )
    require_integer("seed", seed, 0)
    for name, number, minimum in (
        ("n_pilot", n_pilot, 2), ("n_components", n_components, 1), ("n_columns", n_columns, 1),
    ):  # fmt: skip
        if number is not None:
            require_integer(name, number, minimum)
    n_pilot = default_n_pilot(None) if n_pilot is None else n_pilot
    require_nan_policy(nan_policy)
    samples = open_samples(x, **options)
    n_features = samples.n_features
    if n_features is not None:
        n_columns = columns_of_grid(n_features, n_columns, n_components)
        n_pilot = min(n_pilot, max(_GRID_VALUES // n_features, _GRID_ROWS))
    pilot = pilot_samples(samples, n_pilot, seed, nan_policy=nan_policy, progress=progress)
    n_columns = columns_of_grid(pilot.shape[1], n_columns, n_components)
    pairwise = nan_policy == "available"
    return MomentGrid.of_rows(pilot, n_columns, seed, samples.feature_names, pairwise=pairwise)


def columns_of_grid(n_features: int, n_columns: int | None, n_components: int | None) -> int | None:
    """Number of columns of the test matrix of a design; None for all second moments.

    Parameters
    ----------
    n_features
        Number of features.
    n_columns, n_components
        Arguments of :func:`design`.

    Raises
    ------
    InputError
        If there are fewer columns or features than components, or the number of components is
        needed.

    Examples
    --------
    >>> columns_of_grid(12, None, None), columns_of_grid(20_000, None, 20)
    (None, 160)
    """
    if n_components is not None:
        for name, maximum in (("n_features", n_features), ("n_columns", n_columns)):
            if maximum is not None and n_components > maximum:
                raise InputError(
                    f"n_components={n_components}: give at most {name}={maximum}.",
                    parameter="n_components",
                )
    if n_columns is not None or n_features <= MAX_FEATURES:
        return n_columns
    if n_components is None:
        raise InputError(
            f"n_components=None: give a number of components, or n_columns, for {n_features:,} "
            f"features, more than {MAX_FEATURES:,}.",
            parameter="n_components",
        )
    return default_n_columns(n_features, n_components)
