"""Bootstrap a decoded model over partial sketches, for errors that hold for dependent rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.optimize import linear_sum_assignment

from dask_sketch.decoders.decode import decode
from dask_sketch.display.progress import progress_bar
from dask_sketch.display.text import one_line
from dask_sketch.errors import InputError
from dask_sketch.models.alpha_stable import AlphaStableMixture
from dask_sketch.models.centroids import Centroids
from dask_sketch.models.gaussian_mixture import GaussianMixture
from dask_sketch.models.latent_class_mixture import LatentClassMixture
from dask_sketch.models.open import AnyModel
from dask_sketch.models.von_mises_fisher import VonMisesFisherMixture
from dask_sketch.sketching.group import SketchGroup
from dask_sketch.sketching.merge import merge
from dask_sketch.sketching.sketch import Sketch
from dask_sketch.validation.arrays import require_integer, require_number
from dask_sketch.validation.choices import rank_of, uses_matrices
from dask_sketch.validation.warn import collect_warnings, warn_user

Array = NDArray[np.float64]
_FEW = 20  # units; with fewer, intervals are too short
_MAX_REPLICATES = 100_000
# Parameters with intervals on the logit scale, and on the logarithmic scale (diagonals of matrices)
_FRACTIONS = ("weights", "probabilities")
_POSITIVE = ("covariances", "covariance_matrices", "variances", "scales", "concentrations")


@dataclass(frozen=True, eq=False, repr=False)
class Bootstrap:
    """Models decoded from resampled partial sketches, and the errors of their parameters.

    Attributes
    ----------
    model
        Model decoded from all partial sketches together. The components of the replicates are
        matched to its components.
    replicates
        Parameters of the replicates by name, such as ``"means"``, each with a first axis of length
        n_replicates before the axes of the parameter. With ``covariance_type="low-rank:r"``, where
        factors may be rotated, there are ``"covariance_matrices"`` in place of factors.
    n_units
        Number of partial sketches.
    """

    model: AnyModel
    replicates: dict[str, Array]
    n_units: int

    @property
    def n_replicates(self) -> int:
        """Number of replicates."""
        return len(self.replicates["weights"])

    @property
    def stderr(self) -> dict[str, Array]:
        """Standard errors by the name of the parameter, each of the shape of the parameter.

        They are standard deviations of the replicates, times ``sqrt(n / (n - 1))`` with ``n``
        units.
        """
        factor = np.sqrt(self.n_units / (self.n_units - 1.0))
        return {name: factor * x.std(axis=0, ddof=1) for name, x in self.replicates.items()}

    def interval(self, confidence: float = 0.95) -> dict[str, Array]:
        """Confidence intervals of all parameters.

        They are Student's intervals with ``n - 1`` degrees of freedom for ``n`` units: on the logit
        scale for weights and probabilities, on the logarithmic scale for variances, scales and
        concentrations, and on the original scale for all other parameters.

        Parameters
        ----------
        confidence
            Probability that an interval contains its parameter, in (0, 1).

        Returns
        -------
        interval
            Lower and upper ends along a last axis of length 2, by the name of the parameter.

        Raises
        ------
        InputError
            If ``confidence`` is out of range.
        """
        confidence = require_number("confidence", confidence, 0.0, 1.0, strict=True)
        reach = float(stats.t.ppf(0.5 + 0.5 * confidence, self.n_units - 1))
        out = {}
        for name, errors in self.stderr.items():
            value, error = getattr(self.model, name), reach * errors
            low, high = value - error, value + error
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                if name in _FRACTIONS:
                    odds, spread = value / (1.0 - value), np.exp(error / (value * (1.0 - value)))
                    ends = [1.0 / (1.0 + spread / odds), 1.0 / (1.0 + 1.0 / (odds * spread))]
                else:
                    ends = [value * np.exp(-error / value), value * np.exp(error / value)]
            inside = self._is_transformed(name, value)
            low, high = np.where(inside, ends[0], low), np.where(inside, ends[1], high)
            out[name] = np.stack([low, high], axis=-1)
        return out

    def _is_transformed(self, name: str, value: Array) -> NDArray[np.bool_]:
        """Whether each interval is on the logit or logarithmic scale."""
        if name not in (*_FRACTIONS, *_POSITIVE):
            return np.zeros(value.shape, dtype=bool)
        inside = value > 0.0
        if name in _FRACTIONS:
            return np.asarray(inside & (value < 1.0))
        kind = getattr(self.model, "covariance_type", "diag")
        if name == "covariance_matrices" or (name == "covariances" and uses_matrices(kind)):
            inside = np.broadcast_to(np.eye(value.shape[-1], dtype=bool), value.shape)
        return np.asarray(inside)

    def as_dict(self) -> dict[str, Any]:
        """Sizes, and the standard errors of all parameters."""
        return {
            "kind": "bootstrap",
            "n_units": self.n_units,
            "n_replicates": self.n_replicates,
            "stderr": self.stderr,
        }

    def __repr__(self) -> str:
        sizes = {"n_units": self.n_units, "n_replicates": self.n_replicates}
        return f"<Bootstrap: {one_line(sizes)}; {self.model!r}>"


def bootstrap(
    model: AnyModel,
    sketches: SketchGroup | Mapping[Any, Sketch] | Iterable[Sketch],
    *,
    n_replicates: int = 200,
    refine: str | None = "efficient",
    seed: int = 0,
    executor: Executor | None = None,
    progress: bool = False,
    **options: Any,
) -> Bootstrap:
    """Estimate standard errors and intervals of a decoded model, by resampling partial sketches.

    Each replicate is the exact sum of ``n`` of the ``n`` partial sketches, drawn with replacement.
    It is decoded with a start at the components of the model. Rows within a partial sketch may
    depend on one another, such as the frames of one speaker; the partial sketches must be
    independent. In contrast, ``model.stderr`` only holds for independent rows of a true model.

    Parameters
    ----------
    model
        Model of any family, decoded from the sum of the sketches. It is decoded again with the
        arguments of this call, with a start at its own components; this is the ``model`` of the
        result.
    sketches
        Partial sketches: a group such as ``sketch(x, feature_map, groups=speaker)``, sketches by
        any key, such as ``dict(ledger.sketches(ledger.entries))``, or a list. Their random rows are
        not used.
    n_replicates
        Number of replicates, from 2 to 100,000.
    refine
        Argument of :func:`dask_sketch.decode`, for Gaussians and latent classes; it has no effect
        on other families.
    seed
        Seed of the draws, ``>= 0``.
    executor
        Executor of the replicates, such as ``client.get_executor()`` of a Dask cluster.
    progress
        Whether to show a bar, in a notebook or on the standard error stream.
    options
        Further arguments of :func:`dask_sketch.decode`, such as ``variance_floor``.

    Returns
    -------
    bootstrap
        Replicates, with ``stderr`` and ``interval()``.

    Raises
    ------
    InputError
        If there are fewer than two sketches, or an argument is invalid.
    MergeError
        If the sketches have several feature maps.

    Warns
    -----
    UserWarning
        If there are fewer than 20 sketches, with which intervals are often too short.

    References
    ----------
    Efron, Tibshirani (1993), An introduction to the bootstrap, chapters 8 and 12.

    Examples
    --------
    >>> from dask_sketch import FeatureMap, partial_sketch
    >>> day = np.repeat(np.arange(30), 100)
    >>> x = np.random.default_rng(0).normal(size=(3000, 1)) + 0.5 * np.sin(17.0 * day)[:, None]
    >>> group = partial_sketch(x, FeatureMap(1, 20, scale=1.0), groups=day)
    >>> found = bootstrap(decode(group.merged(), 1), group, n_replicates=10)
    >>> bool(0.04 < found.stderr["means"][0, 0] < 0.1)
    True
    """
    if not isinstance(model, get_args(AnyModel)):
        raise InputError(
            f"model of type {type(model).__name__}: give a model, as returned by decode or open.",
            parameter="model",
        )
    n_replicates = require_integer("n_replicates", n_replicates, 2)
    if n_replicates > _MAX_REPLICATES:
        raise InputError(f"n_replicates={n_replicates}: give 2 to {_MAX_REPLICATES:,}.")
    require_integer("seed", seed, 0)
    if executor is not None and not callable(getattr(executor, "submit", None)):
        raise InputError(
            f"executor={executor!r}: give an Executor of concurrent.futures, or of a client by "
            "client.get_executor().",
            parameter="executor",
        )
    units = _units(sketches)
    if len(units) < _FEW:
        warn_user(
            f"sketches has {len(units)} units with samples: intervals from fewer than {_FEW} are "
            "often too short. Divide the data into more independent parts."
        )
    settings = {"refine": refine, "seed": seed, "threads": 1, **options}
    if isinstance(model, GaussianMixture):
        settings.setdefault("covariance_type", model.covariance_type)
        if rank_of(settings["covariance_type"]) is not None:
            settings["refine"] = None  # the fit of factors is efficient already
    elif not isinstance(model, LatentClassMixture):
        settings["refine"] = None
        if isinstance(model, Centroids):
            settings["model"] = "dirac"
    total = merge(units)
    center = _decoded(total, model, settings)
    assert center.decoding is not None
    # with this record no replicate searches for other components, as for a sketch of new data
    record = replace(center.decoding, cost=1.0, noise_level=0.0, searched=None)
    start = replace(center, decoding=record)
    rng = np.random.default_rng(seed)
    probabilities = np.full(len(units), 1.0 / len(units))
    draws = [rng.multinomial(len(units), probabilities) for _ in range(n_replicates)]
    models = []
    with progress_bar(progress) as show:
        for each in _replicates(units, draws, start, settings, executor):
            models.append(_matched(each, center))
            show(len(models), n_replicates, "bootstrap")
    stacked = {name: np.stack([each[name] for each in models]) for name in models[0]}
    return Bootstrap(center, stacked, len(units))


def _units(sketches: Any) -> list[Sketch]:
    """Sketches with samples, without their random rows."""
    if isinstance(sketches, SketchGroup):
        parts: list[Any] = [sketch for _, sketch in sketches.items()]
    elif isinstance(sketches, Mapping):
        parts = list(sketches.values())
    elif isinstance(sketches, Iterable) and not isinstance(sketches, (str, Sketch)):
        parts = list(sketches)
    else:
        parts = [None]
    for each in parts:
        if not isinstance(each, Sketch):
            raise InputError(
                f"sketches of type {type(sketches).__name__}: give a SketchGroup, or partial "
                "sketches of independent parts of the data, at least two.",
                parameter="sketches",
            )
        if each.privacy is not None:
            raise InputError(
                "sketches are private: the noise that was added would be redrawn with the data. "
                "Bootstrap the sketches before privatise().",
                parameter="sketches",
            )
    # the mixture of pilot rows would be the same rival in all replicates
    units = [_without_rows(each) for each in parts if each.total_weight > 0]
    if len(units) < 2:
        raise InputError(
            f"sketches has {len(units)} units with samples: give at least two.",
            parameter="sketches",
        )
    return units


def _without_rows(sketch: Sketch) -> Sketch:
    """Sketch without random rows, and without the mixture of pilot rows."""
    return replace(sketch.without_sample(), feature_map=sketch.feature_map.with_pilot(None))


def _replicates(
    units: list[Sketch],
    draws: list[NDArray[np.int64]],
    start: AnyModel,
    options: dict[str, Any],
    executor: Executor | None,
) -> Iterable[AnyModel]:
    """Models of all draws, in their order."""
    totals = (
        merge([unit for unit, n in zip(units, draw, strict=True) for _ in range(n)])
        for draw in draws
    )
    if executor is None:
        yield from (_decoded(total, start, options) for total in totals)
        return
    running = [executor.submit(_decoded, total, start, options) for total in totals]
    try:
        yield from (future.result() for future in running)
    finally:
        for future in running:
            future.cancel()


def _decoded(sketch: Sketch, start: AnyModel, options: dict[str, Any]) -> AnyModel:
    """Decode from a start, without warnings of the fit, which dependent rows cause as well."""
    with collect_warnings():
        return decode(sketch, start=start, **options)


def _matched(model: AnyModel, center: AnyModel) -> dict[str, Array]:
    """Parameters of a replicate, in the order of the matched components of the model."""
    order = linear_sum_assignment(_distances(center, model))[1]
    kind = getattr(center, "covariance_type", None)
    names = type(center)._arrays
    if rank_of(kind) is not None:
        names = ("weights", "means", "covariance_matrices")
    arrays = {name: getattr(model, name) for name in names}
    return {
        name: value if kind == "tied" and name == "covariances" else value[order]
        for name, value in arrays.items()
    }


def _distances(first: AnyModel, second: AnyModel) -> Array:
    """Squared distances (K, K) of the components of two models of the same family."""
    name = type(first)._arrays[1]  # means, centers, locations or directions
    mine, theirs = getattr(first, name), getattr(second, name)
    if isinstance(first, Centroids):
        spread = mine.var(axis=0)
    elif isinstance(first, AlphaStableMixture):
        spread = (first.scales**2).mean(axis=0)
    elif isinstance(first, VonMisesFisherMixture):
        spread = np.ones(mine.shape[1])
    else:
        spread = first.variances.mean(axis=0)
    scale = np.sqrt(np.where(spread > 0.0, spread, 1.0))
    mine, theirs = mine / scale, theirs / scale
    if isinstance(first, LatentClassMixture) and isinstance(second, LatentClassMixture):
        mine = np.concatenate([mine, first.probabilities], axis=1)
        theirs = np.concatenate([theirs, second.probabilities], axis=1)
    return np.asarray(((mine[:, None] - theirs[None]) ** 2).sum(axis=2))
