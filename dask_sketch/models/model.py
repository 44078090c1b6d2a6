"""Base class of the models, the records of their fit, and their standard errors."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dask_sketch.display.html import card, fields_table, html_table
from dask_sketch.display.plots import ModelPlots
from dask_sketch.display.text import counted, describe, one_line
from dask_sketch.errors import InputError
from dask_sketch.models import artifact
from dask_sketch.storage.artifact import Storable
from dask_sketch.validation.arrays import (
    FrozenDataclass,
    package_of,
    require_unmasked,
    unit_rows,
    weighted_sum,
)
from dask_sketch.validation.choices import uses_matrices
from dask_sketch.validation.tables import (
    common_dtype,
    distinct_names,
    feature_title,
    has_more_names,
    names_of,
    require_names,
    require_numeric,
    require_same_index,
    to_numpy,
)

if TYPE_CHECKING:
    import xarray as xr

Array = NDArray[np.float64]


def finite(name: str, value: Any) -> Array:
    """Return a read-only copy of an array of finite real numbers."""
    try:
        values = np.array(value, dtype=np.float64, order="C")
    except (TypeError, ValueError) as error:
        raise InputError(f"{name}: give an array of real numbers ({error}).") from error
    if not np.isfinite(values).all():
        raise InputError(f"{name} holds NaN or infinity: give finite numbers.")
    values.flags.writeable = False
    return values


def check_means(name: str, means: Array, weights: Array) -> None:
    """Check the shapes of means or centers and of the weights, and the values of the weights.

    Raises
    ------
    InputError
        If a shape or value is invalid; the message names the argument.
    """
    if means.ndim != 2 or not means.size:
        raise InputError(f"{name} has shape {means.shape}; give (n_components, n_features).")
    if weights.shape != means.shape[:1]:
        raise InputError(
            f"weights has shape {weights.shape}; for {len(means)} {name} give ({len(means)},)."
        )
    if (weights < 0).any() or abs(weights.sum() - 1.0) > 1e-8:
        raise InputError(
            f"weights: the smallest is {weights.min():g} and the sum {weights.sum():.10g}; give "
            "weights that are not negative and sum to one."
        )


SHOWN_FEATURES = 8  # columns of a table
# attributes of scikit-learn's estimators, by what a model has instead: it keeps no rows
_INSTEAD = {
    "labels_": "predict(x) gives the components of the rows x",
    "inertia_": "inertia(x) of Centroids gives the mean squared distance of the rows x",
    "cluster_centers_": "Centroids have centers",
    "means_": "a GaussianMixture has means",
    "covariances_": "a GaussianMixture has covariances, the variances of each feature",
    "weights_": "weights has the fractions of the components",
}
LIKELIEST = "maximum likelihood on "  # begins the message of models that rows decided
REGULARIZED = " with a prior of the covariances"  # ends it where there are few rows


class Model(FrozenDataclass, Storable):
    """Base class of the models, which are frozen dataclasses of arrays.

    ``_arrays`` names the arrays; the second holds the means or centers of the components, shape
    (n_components, n_features).
    """

    _arrays: ClassVar[tuple[str, ...]]
    _kind: ClassVar[str]  # as_dict()["kind"]
    _schema: ClassVar[str]  # name of its stored layout
    weights: Array
    decoding: Decoding | None
    polishing: Polishing | None
    feature_names: Any  # a field, or a property of models of categories

    def __post_init__(self) -> None:
        for name in self._arrays:
            object.__setattr__(self, name, finite(name, getattr(self, name)))
        check_means(self._arrays[1], self._locations, self.weights)
        names = self.feature_names
        if names is None and self.decoding is not None:
            names = self.decoding.feature_names
        if names is not None:
            names = distinct_names(names, self.n_features)
        object.__setattr__(self, "feature_names", names)

    if not TYPE_CHECKING:  # misspelled attributes remain errors of the type checker

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}"
                + (f": {_INSTEAD[name]}" if name in _INSTEAD else ""),
                name=name,
                obj=self,
            )

    @property
    def _locations(self) -> Array:
        locations: Array = getattr(self, self._arrays[1])
        return locations

    @property
    def n_components(self) -> int:
        """Number of components ``K``."""
        return int(self._locations.shape[0])

    @property
    def n_features(self) -> int:
        """Number of features ``d``."""
        return int(self._locations.shape[1])

    def _omega(self, frequencies: ArrayLike) -> Array:
        """Validate the argument ``frequencies``."""
        omega = np.asarray(frequencies, dtype=np.float64)
        if omega.ndim != 2 or len(omega) != self.n_features:
            raise InputError(
                f"frequencies has shape {omega.shape}; for this model give ({self.n_features}, m)."
            )
        return omega

    def _stored(self) -> tuple[xr.Dataset, str, int]:
        return artifact.to_dataset(self, self._schema), self._schema, artifact.VERSION

    def __dask_tokenize__(self) -> tuple[str, str]:
        content = b"".join(getattr(self, name).tobytes() for name in self._arrays)
        shape = f"{self._locations.shape}".encode()
        shape += str(getattr(self, "covariance_type", "diag")).removeprefix("diag").encode()
        shape += b"normalize" if getattr(self, "normalize", False) else b""
        return f"dask_sketch.{type(self).__name__}", hashlib.sha256(shape + content).hexdigest()

    def __sizeof__(self) -> int:
        # used by Dask's memory accounting
        return object.__sizeof__(self) + sum(getattr(self, name).nbytes for name in self._arrays)

    @property
    def plot(self) -> ModelPlots:
        """Plots (extra ``plot``): ``model.plot.ellipses(sample)``, ``model.plot.trace()``."""
        kind = getattr(self, "covariance_type", None)  # points have no covariances
        name = "covariance_matrices" if uses_matrices(kind) else "variances"
        covariances = getattr(self, name, None)
        return ModelPlots(self.weights, self._locations, covariances, self.decoding)

    def as_dict(self) -> dict[str, Any]:
        """Sizes, parameters, and the records of the decoding and the polishing."""
        records = {"decoding": self.decoding, "polishing": self.polishing}
        return {
            "kind": self._kind,
            "n_components": self.n_components,
            "n_features": self.n_features,
            **{name: getattr(self, name) for name in self._arrays},
            **{name: None if made is None else made.as_dict() for name, made in records.items()},
        }

    def __repr__(self) -> str:
        sizes: dict[str, Any] = {
            "n_components": self.n_components, "n_features": self.n_features
        }  # fmt: skip
        if getattr(self, "covariance_type", "diag") != "diag":
            sizes["covariance_type"] = self.covariance_type  # type: ignore[attr-defined]
        if getattr(self, "normalize", False):
            sizes["normalize"] = True
        records = [made for made in (self.decoding, self.polishing) if made is not None]
        return f"<{type(self).__name__}: {'; '.join([one_line(sizes), *map(repr, records)])}>"

    def _card(self, heading: str, header: list[str], rows: list[list[str]]) -> str:
        """HTML with a table of the components, which folds out."""
        k, d = self.n_components, self.n_features
        summary = f"{counted(k, 'component')} in {counted(d, 'feature')}"
        notes = []
        if self.decoding is not None:
            notes = self.decoding._notes()
        record = self.decoding if self.polishing is None else self.polishing
        summary += "" if record is None else f", {record._fit()}"
        more = {heading: html_table(header, rows)}
        for name in ("decoding", "polishing"):
            made = getattr(self, name)
            more |= {} if made is None else {name: fields_table(describe(made.as_dict()))}
        sizes = describe({"n_components": k, "n_features": d})
        return card(type(self).__name__, sizes, summary=summary, notes=notes, more=more)

    def _feature_header(self) -> list[str]:
        """Names of the first features, for a table."""
        names = [f"feature {k}" for k in range(min(SHOWN_FEATURES, self.n_features))]
        if self.n_features > SHOWN_FEATURES:
            names[-1] += f" (of {self.n_features:,})"
        return names


@dataclass(frozen=True, repr=False)
class Decoding:
    """Record of the decoding of a model, and its distance from the sketch.

    Attributes
    ----------
    method, model
        Arguments of :func:`dask_sketch.decode`.
    cost
        Squared distance ``||z - A P||**2`` of the model, with weights that sum to one.
    noise_level
        Expected cost at the true distribution of the samples, ``(1 - ||z||**2) / n``. A good fit
        costs less, because parameters absorb part of the noise.
    trace
        Cost after each iteration, before the weights are normalised. For a long sketch, on the
        subset of the frequencies used by the search, and on all of them at the end.
    seconds
        Wall time of all replicates.
    seed, replicates
        Arguments of :func:`dask_sketch.decode`.
    n_evaluations
        Number of evaluations of the correlation or the cost with gradients, in all replicates.
    converged
        Whether the last descent reached its tolerance within its maximum number of iterations.
    message
        Message of the optimiser at the end of the last descent.
    refine
        Argument of :func:`dask_sketch.decode`.
    variance_floor
        Lower bound of the variances in fits to the sketch, as given; none for points. A model of
        maximum likelihood (:attr:`is_likeliest`) is not bounded by it.
    searched
        Noise level at the last search for other components. A fit that started from an earlier
        model without a new search keeps the value of that model; none otherwise.
    score
        Mean log-likelihood of the calibrated rows in nats, or for centroids their negative mean
        squared error. Where the sketch carried no rows, they are simulated from the mixture of the
        pilot rows of the feature map, and calibrated if the sketch is of other data: such scores
        say little about the data. That of one component is of all rows. None for other methods
        than ``"likelihood"``.
    gain
        Excess of the score over that of the rejected candidate: of the fit to the sketch over
        maximum likelihood, or the reverse.
    overidentification, freedom
        Overidentification statistic ``J`` of a fit of covariance matrices, the squared residual in
        units of its noise, and its mean if the data is such a mixture, the degrees of freedom. For
        such data, ``J`` is less than ``freedom + 4 sqrt(2 freedom)``; a larger ``J`` costs about
        ``(J - freedom) / 2n`` nats a sample.
    feature_names
        Names of the features, where the feature map knows them.
    """

    method: str
    model: str
    cost: float
    noise_level: float
    trace: tuple[float, ...]
    seconds: float
    seed: int
    replicates: int
    n_evaluations: int
    converged: bool
    message: str
    refine: str | None = None
    variance_floor: float | None = None
    searched: float | None = None
    score: float | None = None
    gain: float | None = None
    overidentification: float | None = None
    freedom: float | None = None
    feature_names: tuple[str, ...] | None = None

    @property
    def is_likeliest(self) -> bool:
        """Whether maximum likelihood on rows was preferred to the fit to the sketch."""
        return self.message.startswith(LIKELIEST)

    @property
    def steps(self) -> str:
        """Name of the steps of the trace."""
        return f"{'level' if self.method == 'splitting' else 'iteration'} of {self.method}"

    def as_dict(self) -> dict[str, Any]:
        """All attributes but the names of the features; the trace as an array."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        del values["feature_names"]
        return values | {"trace": np.array(self.trace)}

    def __repr__(self) -> str:
        names = ("method", "model", "refine", "cost", "noise_level", "score", "seconds")
        values = self.as_dict()
        return f"<Decoding: {one_line({name: values[name] for name in names})}>"

    def _repr_html_(self) -> str:
        shown = describe(self.as_dict())
        return card("Decoding", shown, summary=self._fit(), notes=self._notes())

    def _fit(self) -> str:
        if not self.noise_level > 0:
            return f"cost {self.cost:.3g}"
        return f"cost {self.cost / self.noise_level:.3g} noise levels"

    def _notes(self) -> list[str]:
        return [] if self.converged else [f"The last descent stopped early: {self.message}"]


@dataclass(frozen=True, repr=False)
class Polishing:
    """Record of the passes of :func:`dask_sketch.polish`.

    Attributes
    ----------
    objective
        Quantity of the trace: ``"log-likelihood"`` of a mixture, in nats for each sample, or
        ``"mean squared error"`` of centroids, in squared units of the data.
    trace
        Its mean over the samples before the step of each pass.
    bound
        Its bound after the last step, computed without a further pass: the log-likelihood is at
        least, the mean squared error at most this number.
    n_samples
        Number of samples of each pass.
    omitted
        Number of rows with NaN or infinite values that were left out.
    seconds
        Wall time of all passes.
    variance_floor
        Smallest variance of a component, as a fraction of the mean variance of the components;
        none for centroids.
    converged
        Whether the gain of the last step was below the tolerance; none for a number of passes.
    """

    objective: str
    trace: tuple[float, ...]
    bound: float
    n_samples: int
    omitted: int
    seconds: float
    variance_floor: float | None = None
    converged: bool | None = None

    @property
    def passes(self) -> int:
        """Number of passes over the samples."""
        return len(self.trace)

    def as_dict(self) -> dict[str, Any]:
        """Number of passes, and all attributes; the trace as an array."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {"passes": self.passes} | values | {"trace": np.array(self.trace)}

    def __repr__(self) -> str:
        names = ("passes", "objective", "bound", "n_samples", "seconds")
        values = self.as_dict()
        return f"<Polishing: {one_line({name: values[name] for name in names})}>"

    def _fit(self) -> str:
        if self.objective == "log-likelihood":
            return f"at least {self.bound:.6g} nats a sample"
        return f"mean squared error at most {self.bound:.4g}"

    def _repr_html_(self) -> str:
        return card("Polishing", describe(self.as_dict()), summary=self._fit())


_BLOCK_SIZE = 131_072  # numbers in a block of samples and components: 1 MiB
_ROUNDING = 1e-6  # rounding error of the lengths of directions
_LARGEST = 1e150  # value whose square is a float64


def in_memory(x: Any) -> bool:
    """Whether samples are an array, a table or nested lists in memory."""
    return isinstance(x, (np.ndarray, list, tuple)) or package_of(x) == "pandas"


def row_blocks(
    x: Any,
    n_features: int,
    n_components: int,
    names: tuple[str, ...] | None = None,
    *,
    missing: bool = False,
) -> Iterator[Array]:
    """Validate samples, which may be a table with column names, and yield float64 blocks of rows.

    Parameters
    ----------
    x
        Samples in memory.
    n_features, n_components, names
        Sizes of the model, and the names of its features.
    missing
        Whether values may be missing (NaN).

    Raises
    ------
    InputError
        If ``x`` is not an array (n_samples, n_features) or a table of finite real numbers.
    """
    require_unmasked(x, "rows", "the values of x")
    named = None
    if package_of(x) == "pandas" and hasattr(x, "dtypes") and hasattr(x, "columns"):
        if has_more_names(x.columns, names):
            x = x[list(names or ())]
        named = names_of(x.columns)
        require_names(named, "x", names, "the model")
        require_numeric(x.dtypes.items(), "x", "Give the numeric ones, as x[[...]].")
        if x.shape[1]:
            x = to_numpy(x, common_dtype(list(x.dtypes)))
    rows = np.asarray(x)
    if rows.dtype.kind not in "fiub":
        raise InputError(f"x has dtype={rows.dtype}: give real numbers.")
    if rows.ndim != 2:
        raise InputError(f"x has shape {rows.shape}; give (n_samples, {n_features}).")
    if rows.shape[1] != n_features:
        given = counted(rows.shape[1], "feature")
        raise InputError(f"x has {given}: give the {n_features} of the model.")
    step = max(_BLOCK_SIZE // (2 * n_features + n_components), 16)
    for start in range(0, len(rows), step):
        block = np.asarray(rows[start : start + step], dtype=np.float64)
        small = np.abs(block) <= _LARGEST
        if missing:
            small |= np.isnan(block)
        usable = small.all(axis=1)
        if not usable.all():
            bad = int(np.argmin(usable))
            feature = int(np.argmin(small[bad]))
            raise InputError(
                f"row {start + bad} of x has {block[bad, feature]} in "
                f"{feature_title(feature, names or named)}; x may have no "
                f"{'' if missing else 'NaN, '}infinite values or values above 1e150, whose squares "
                "no float64 holds. Remove the row."
            )
        yield block


def unit_blocks(
    x: Any, n_features: int, n_components: int, names: tuple[str, ...] | None = None
) -> Iterator[Array]:
    """Blocks of :func:`row_blocks`, whose rows are divided by their Euclidean lengths.

    Parameters
    ----------
    x, n_features, n_components, names
        Arguments of :func:`row_blocks`.

    Raises
    ------
    InputError
        If ``x`` is invalid, or has a row of zeros.
    """
    start = 0
    for block in row_blocks(x, n_features, n_components, names):
        if not block.any(axis=1).all():
            bad = start + int(np.argmin(block.any(axis=1)))
            raise InputError(
                f"row {bad} of x is 0 in all features, and has no direction. Remove the row."
            )
        start += len(block)
        yield unit_rows(block)


def check_directions(name: str, directions: Array) -> None:
    """Check that vectors have length one.

    Parameters
    ----------
    name
        Name of the argument, a plural.
    directions
        Vectors, shape (n_components, n_features).

    Raises
    ------
    InputError
        If the length of one is not.
    """
    lengths = np.linalg.norm(directions, axis=1)
    if (np.abs(lengths - 1.0) > _ROUNDING).any():
        bad = int(np.argmax(np.abs(lengths - 1.0)))
        raise InputError(
            f"{name} have length one, and {name[:-1]} {bad} has length {lengths[bad]:.6g}. Divide "
            f"{name} by their lengths."
        )


def weighted_mean(values: Array, weights: Any, x: Any = None) -> float:
    """Mean of values of the samples, optionally weighted.

    Parameters
    ----------
    values
        Values, shape (n_samples,).
    weights
        Weights of the samples, or None.
    x
        Samples, for their index.

    Raises
    ------
    InputError
        If there are no values, or the weights are invalid or have another index than the samples.
    """
    require_same_index(weights, x, "weights")
    if not len(values):
        raise InputError("x has 0 samples: give at least one to score.")
    if weights is None:
        return float(values.mean())
    total, weight = weighted_sum(values, weights, "x")
    if not weight > 0:
        raise InputError("weights are all zero: give finite weights, some of them positive.")
    return total / weight


@dataclass(frozen=True, eq=False)
class StandardErrors:
    """Standard errors of the parameters of a mixture.

    They are asymptotic: valid for large samples of the mixture itself, and too small if the data
    has another distribution. Without random rows in the sketch, weights of rows are taken as
    independent of their values.

    Parameters
    ----------
    weights
        Standard errors of the weights, shape (n_components,). Weights sum to one, so that their
        errors are correlated.
    means, covariances
        Standard errors of the means, shape (n_components, n_features), and of the covariances, of
        the shape of these, in the units of the means and of the variances. For ``"low-rank:r"``
        they belong to the covariance matrices, shape (n_components, n_features, n_features), since
        loadings are determined only up to rotations. Zero for parameters at a bound.
    noise_variances
        Standard errors of the noise variances of ``"low-rank:r"``, shape (n_components,
        n_features); None for other types.
    """

    weights: Array
    means: Array
    covariances: Array
    noise_variances: Array | None = None

    def as_dict(self) -> dict[str, Any]:
        """All attributes, and the largest value of each."""
        values = {name: getattr(self, name) for name in self._names()}
        return values | {
            "max_weight_error": float(self.weights.max()),
            "max_mean_error": float(self.means.max()),
            "max_covariance_error": float(self.covariances.max()),
        }

    def __post_init__(self) -> None:
        for name in self._names():
            object.__setattr__(self, name, finite(name, getattr(self, name)))
            if (getattr(self, name) < 0.0).any():
                raise InputError(
                    f"{name} holds negative standard errors: give numbers of at least 0."
                )
        shapes = [(*self.means.shape, *self.means.shape[1:])] if self.means.ndim == 2 else []
        shapes += [self.means.shape, self.means.shape[:1], self.means.shape[1:] * 2]
        if self.means.ndim != 2 or self.covariances.shape not in shapes:
            raise InputError(
                f"standard errors of means have shape {self.means.shape}, of covariances "
                f"{self.covariances.shape}: give (n_components, n_features), and the shape of the "
                "covariances."
            )
        if self.weights.shape != self.means.shape[:1]:
            raise InputError(
                f"standard errors of weights have shape {self.weights.shape}; for "
                f"{len(self.means)} components give ({len(self.means)},)."
            )
        noise = self.noise_variances
        if noise is not None and noise.shape != self.means.shape:
            raise InputError(
                f"noise_variances has shape {noise.shape}; give that of the means, "
                f"{self.means.shape}."
            )

    def _names(self) -> list[str]:
        """Names of the arrays that are there."""
        return [field.name for field in fields(self) if getattr(self, field.name) is not None]
