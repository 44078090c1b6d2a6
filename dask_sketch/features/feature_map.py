"""The feature map: a small specification from which every process draws the same frequencies."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dask_sketch.display.html import card
from dask_sketch.display.plots import FeatureMapPlots
from dask_sketch.errors import ArtifactError, InputError, MergeError
from dask_sketch.features import specification
from dask_sketch.features.distributions import importance_weights
from dask_sketch.features.frequencies import (
    CACHE,
    SampledFrequencies,
    frequencies_of,
    kernel_for,
    stored,
)
from dask_sketch.features.kernels.dense import MomentKernel
from dask_sketch.features.kernels.structured import SumsKernel
from dask_sketch.validation import arrays
from dask_sketch.validation.arrays import frozen
from dask_sketch.validation.choices import DISTRIBUTIONS

if TYPE_CHECKING:
    from dask_sketch.features.scale import ScaleFit

# What a feature map says of itself: in words, in numbers for pictures, in notebooks.


def brief(names: Sequence[str], most: int = 6) -> str:
    """The first few names.

    Examples
    --------
    >>> brief("abcdefgh")
    'a, b, c, d, e, f, ...'
    """
    return ", ".join([*names[:most], *(["..."] if len(names) > most else [])])


class Described:
    """The part of :class:`~dask_sketch.FeatureMap` that only tells; attributes are told there."""

    n_features: int
    n_frequencies: int
    scale: float | None
    covariances: NDArray[np.float64] | None
    covariance_weights: NDArray[np.float64] | None
    distribution: str
    seed: int
    dtype: str
    whitening: NDArray[np.float64] | None
    feature_names: tuple[str, ...] | None
    scale_fit: ScaleFit | None

    if TYPE_CHECKING:

        @property
        def distribution_variances(self) -> NDArray[np.float64]: ...  # noqa: D102
        @property
        def frequencies(self) -> NDArray[np.float64]: ...  # noqa: D102
        @cached_property
        def digest(self) -> str: ...  # noqa: D102

    @property
    def scaled_radii(self) -> NDArray[np.float64]:
        """Radius of each frequency in units of the expected component, shape (n_frequencies,).

        ``sqrt(sum_l omega_l**2 v_l)`` with the distribution's mean variances ``v``, so that the
        modulus of the characteristic function of such a component is ``exp(-radius**2 / 2)`` in any
        direction.
        """
        omega = self.frequencies
        if self.whitening is not None:
            omega = np.asarray(np.linalg.solve(self.whitening.T, omega), dtype=np.float64)
        variances = np.average(self.distribution_variances, axis=0, weights=self.covariance_weights)
        return np.asarray(np.sqrt(variances @ omega**2))

    @property
    def plot(self) -> FeatureMapPlots:
        """Plots (extra ``plot``): ``feature_map.plot.scale_fit()``."""
        return FeatureMapPlots(self.scale_fit)

    def __repr__(self) -> str:
        shape = f"n_features={self.n_features}, n_frequencies={self.n_frequencies}"
        scale = (
            f"scale={self.scale:.6g}" if self.covariances is None else f"scales {self._scales()}"
        )
        white = ", whitened" if self.whitening is not None else ""
        return (
            f"FeatureMap({shape}, distribution={self.distribution!r}, {scale}{white}, "
            f"seed={self.seed}, dtype={self.dtype!r}, digest={self.digest[:12]})"
        )

    def _scales(self) -> str:
        """Range of the standard deviations, in words."""
        low, high = (
            np.sqrt(self.distribution_variances.min()),
            np.sqrt(self.distribution_variances.max()),
        )
        distributions = (
            f" in {len(self.distribution_variances)} distributions"
            if len(self.distribution_variances) > 1
            else ""
        )
        return f"{low:.4g} to {high:.4g}{distributions}"

    def _fields(self) -> dict[str, str]:
        """What a glance should show, in words."""
        scale = f"{self.scale:.6g}" if self.scale is not None else self._scales()
        names = "" if self.feature_names is None else f": {brief(self.feature_names)}"
        return {
            "features": f"{self.n_features}{names}",
            "frequencies": str(self.n_frequencies),
            "distribution": self.distribution,
            "scale": scale,
            "whitened": "yes" if self.whitening is not None else "no",
            "seed": str(self.seed),
            "precision": self.dtype,
            "digest": self.digest[:12],
        }

    def _repr_html_(self) -> str:
        summary = f"{self.n_features:,} features to {self.n_frequencies:,} frequencies"
        return card("FeatureMap", self._fields(), summary=summary)


_DTYPES = ("float32", "float64")
_REAL = (int, float, np.integer, np.floating)


@dataclass(frozen=True, eq=False, repr=False)
class FeatureMap(Described):
    """Random Fourier features ``exp(-i omega·x)``: what to draw, not what was drawn.

    A feature map is a few numbers: the distribution of the frequencies, its covariances, the sizes
    and the seed. The frequencies are drawn on the host when first needed and kept once per process;
    what travels to a worker is the specification and a digest, and a worker that draws anything
    else refuses to go on.

    Parameters
    ----------
    n_features
        Number of features of a sample, ``d >= 1``.
    n_frequencies
        Number of frequencies, ``m >= 1``.
    scale
        Standard deviation of a typical component, in the units of the data; for the distributions
        ``"gaussian"`` and ``"clustering"``, the bandwidth of the features' kernel. One of ``scale``
        and ``covariances`` is needed.
    covariances
        Variances of the components that the distribution is adapted to: shape (n_features,), or
        (n_distributions, n_features) for a mixture of distributions (eq. 18).
    covariance_weights
        Weights of such a mixture, shape (n_distributions,), summing to one; equal when not given.
    distribution
        ``"adapted-radius"`` (eq. 17; the default), ``"sparse-radius"``, ``"sparse-sums"``,
        ``"folded-gaussian"``, ``"gaussian"`` or ``"clustering"`` (Gribonval et al. 2017, eq. 40,
        with :attr:`feature_weights`); see
        :func:`dask_sketch.features.distributions.sample_frequencies`.
    seed
        Seed of the draw, ``>= 0``.
    dtype
        Precision of the features, ``"float32"`` or ``"float64"``. Sums are float64 in both.
    center
        A point near the middle of the data, shape (n_features,). It is removed before phases are
        computed and put back exactly, so it changes the rounding, not the sketch. Zero when not
        given.
    whitening
        Matrix ``L``, shape (n_features, n_features): the distribution is meant for ``L @ x``. The
        frequencies for ``x`` are then ``L.T`` times those drawn, at no cost per sample but with the
        distribution ``"sparse-sums"``, which multiplies the rows (see :attr:`row_whitening`).
    feature_names
        Names of the features, in order, where the data has names. Samples that name their features
        otherwise, or in another order, are refused, and so are sketches of them.

    Raises
    ------
    InputError
        If an argument is out of range; the message names it.

    Notes ----- SampledFrequencies frequencies are rounded so that ``omega / (2 pi)`` is a float32
    number (those for whitened rows, where rows are whitened). The float32 and float64 kernels and a
    sketch stored on disk therefore all hold the same frequencies.

    References
    ----------
    Keriven, Bourrier, Gribonval, Pérez (2018), Sketching for large-scale learning of mixture
    models, Information and Inference 7(3), section 3.3.
    Gribonval, Blanchard, Keriven, Traonmilin (2017), Compressive statistical learning with random
    feature moments, section 4.

    Examples
    --------
    >>> feature_map = FeatureMap(n_features=2, n_frequencies=50, scale=1.5, seed=7)
    >>> feature_map.frequencies.shape
    (2, 50)
    >>> feature_map == FeatureMap(2, 50, scale=1.5, seed=7)
    True
    """

    n_features: int
    n_frequencies: int
    scale: float | None = None
    covariances: NDArray[np.float64] | None = None
    covariance_weights: NDArray[np.float64] | None = None
    distribution: str = "adapted-radius"
    seed: int = 0
    dtype: str = "float32"
    center: NDArray[np.float64] = None  # type: ignore[assignment]  # set below
    whitening: NDArray[np.float64] | None = None
    feature_names: tuple[str, ...] | None = None
    scale_fit: ScaleFit | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name in ("n_features", "n_frequencies"):
            value = arrays.require_integer(name, getattr(self, name), 1)
            object.__setattr__(self, name, value)
        specification.require_drawable(self.n_features, self.n_frequencies)
        object.__setattr__(self, "seed", arrays.require_integer("seed", self.seed, 0))
        if self.distribution not in DISTRIBUTIONS:
            raise InputError(
                f"distribution={self.distribution!r} is unknown; choose one of "
                f"{', '.join(DISTRIBUTIONS)}."
            )
        try:
            dtype = np.dtype(self.dtype).name
        except TypeError:
            dtype = ""
        if dtype not in _DTYPES:
            raise InputError(f"dtype={self.dtype!r}: choose 'float32' or 'float64'.")
        object.__setattr__(self, "dtype", dtype)
        d = self.n_features
        if (self.scale is None) == (self.covariances is None):
            raise InputError(
                f"scale={self.scale!r} and covariances={self.covariances!r}: give exactly one. "
                "design(x, ...) finds a scale from the data."
            )
        if self.scale is not None:
            if not isinstance(self.scale, _REAL) or not 1e-150 < self.scale < 1e150:
                raise InputError(f"scale={self.scale!r}: give a positive standard deviation.")
            object.__setattr__(self, "scale", float(self.scale))
        else:
            object.__setattr__(self, "covariances", specification.variances(self.covariances, d))
        if self.covariance_weights is not None:
            covariance_weights = specification.shares(
                self.covariance_weights, len(self.distribution_variances)
            )
            object.__setattr__(self, "covariance_weights", covariance_weights)
        object.__setattr__(self, "center", specification.point(self.center, d))
        if self.whitening is not None:
            object.__setattr__(self, "whitening", specification.invertible(self.whitening, d))
        if self.feature_names is not None:
            names = specification.distinct_names(self.feature_names, d)
            object.__setattr__(self, "feature_names", names)

    @property
    def distribution_variances(self) -> NDArray[np.float64]:
        """Variances before whitening is undone, shape (n_distributions, n_features)."""
        if self.covariances is None:
            assert self.scale is not None
            return np.full((1, self.n_features), self.scale**2)
        return np.atleast_2d(self.covariances)

    @property
    def mean_variances(self) -> NDArray[np.float64]:
        """Mean variance of the components that the distribution expects, shape (n_features,).

        In squared units of the data; ``scale**2`` in every feature for one isotropic scale.
        """
        mean = np.average(self.distribution_variances, axis=0, weights=self.covariance_weights)
        if self.whitening is None:
            return np.asarray(mean)
        inverse = np.linalg.inv(self.whitening)
        return np.asarray((inverse * mean) @ inverse.T).diagonal().copy()

    @cached_property
    def row_whitening(self) -> NDArray[np.float64] | None:
        """The whitening that every row is multiplied with before its phases are computed, or None.

        Only full whitening with the distribution ``"sparse-sums"``, whose frequencies use few
        features: of whitened rows. With any other distribution it is cheaper to multiply the
        frequencies once.
        """
        white = self.whitening
        if self.distribution != "sparse-sums" or white is None:
            return None
        return None if np.array_equal(white, np.diag(white.diagonal())) else white

    @cached_property
    def spec(self) -> str:
        """The specification as canonical JSON: sorted keys, numbers exact."""
        named = {} if self.feature_names is None else {"feature_names": list(self.feature_names)}
        return json.dumps(
            {
                "n_features": self.n_features,
                "n_frequencies": self.n_frequencies,
                "scale": self.scale,
                "covariances": _as_list(self.covariances),
                "law_weights": _as_list(self.covariance_weights),
                "law": self.distribution,
                "seed": self.seed,
                "dtype": self.dtype,
                "center": _as_list(self.center),
                "whitening": _as_list(self.whitening),
            }
            | named,
            sort_keys=True,
        )

    @cached_property
    def _sampled(self) -> SampledFrequencies:
        return frequencies_of(self)

    @property
    def frequencies(self) -> NDArray[np.float64]:
        """Frequencies ``omega``, shape (n_features, n_frequencies), radians per unit of the data.

        SampledFrequencies when first read; read-only.
        """
        return self._sampled.frequencies

    @cached_property
    def feature_weights(self) -> NDArray[np.float64] | None:
        """Weights that decoders give the features, shape (n_frequencies,); None: all one.

        Only the distribution ``"clustering"`` has them: :func:`importance_weights`. Sketches hold
        plain moments, whatever the distribution.
        """
        if self.distribution != "clustering":
            return None
        omega = self.frequencies
        if (
            self.whitening is not None
        ):  # the distribution is that of the frequencies of whitened samples
            omega = np.linalg.solve(self.whitening.T, omega).astype(np.float64)
        return frozen(
            importance_weights(omega, self.distribution_variances, self.covariance_weights)
        )

    @cached_property
    def digest(self) -> str:
        """SHA-256 over the specification and the drawn frequencies, 64 hexadecimal digits."""
        return self._sampled.digest

    @property
    def kernel(self) -> MomentKernel | SumsKernel:
        """The compiled kernel for this map's distribution, number of features and precision."""
        return kernel_for(self.distribution, self.n_features, self.dtype)

    @property
    def cycles_per_unit(self) -> NDArray[np.float32]:
        """Cycles per unit for the rows that the kernel is given, shape (n_features, n_frequencies).

        ``frequencies / (2 pi)``; for whitened rows, where :attr:`row_whitening` says so.
        """
        return self._sampled.cycles_per_unit

    @property
    def packed(self) -> NDArray[np.floating]:
        """Frequencies as the kernel wants them; kept beside the frequencies."""
        return self._sampled.packed

    def require_same(self, other: FeatureMap) -> None:
        """Raise unless both maps draw the same frequencies by the same conventions.

        Parameters
        ----------
        other
            The map to compare with.

        Raises
        ------
        MergeError
            Naming the first field that differs, with both values.
        """
        if self.digest == other.digest:
            return
        mine, theirs = (specification.specification(each.spec) for each in (self, other))
        # what was chosen before what followed from it: another seed means another scale
        first = ("n_features", "n_frequencies", "seed", "distribution", "dtype")
        for name in (*first, *(f.name for f in fields(self) if f.name not in first)):
            if mine.get(name) != theirs.get(name):
                raise MergeError(
                    f"the feature maps differ in {name}: {_brief(mine.get(name))} and "
                    f"{_brief(theirs.get(name))}. Only sketches of one feature map can be "
                    "combined; sketch both inputs with the same one."
                )
        raise MergeError(
            "the feature maps have one specification but other frequencies (digests "
            f"{self.digest[:12]} and {other.digest[:12]}): they were drawn by different versions "
            "of NumPy. Use one version, or open the stored sketch that holds the frequencies."
        )

    @classmethod
    def from_spec(
        cls, spec: str, digest: str | None = None, frequencies: ArrayLike | None = None
    ) -> FeatureMap:
        """Rebuild a map from :attr:`spec`.

        Parameters
        ----------
        spec
            JSON text.
        digest
            The digest that the frequencies must have.
        frequencies
            Stored frequencies, shape (n_features, n_frequencies). They are used, once they are
            found to match ``digest``, so that a stored sketch outlives a change of generator.

        Raises
        ------
        ArtifactError
            If ``spec`` is not a specification, or ``frequencies`` do not match ``digest``.

        Examples
        --------
        >>> feature_map = FeatureMap(2, 10, scale=1.0)
        >>> FeatureMap.from_spec(feature_map.spec, feature_map.digest) == feature_map
        True
        """
        try:
            feature_map = cls(**specification.specification(spec))
        except (TypeError, ValueError, OverflowError) as error:
            raise ArtifactError(f"not the specification of a feature map: {error}") from error
        if frequencies is not None:
            drawn = stored(feature_map, np.asarray(frequencies, dtype=np.float64), digest)
            CACHE.put(drawn)
            feature_map.__dict__["_sampled"] = drawn  # and as long as this map lives
        if digest is not None:
            feature_map.__dict__["digest"] = digest
        return feature_map

    def to_json(self) -> str:
        """Specification and digest as JSON text, the form that files hold."""
        return json.dumps(
            {"schema": "dask-sketch/feature-map", "version": 1, "digest": self.digest}
            | {"spec": json.loads(self.spec)},
            indent=2,
        )

    @classmethod
    def from_json(cls, text: str) -> FeatureMap:
        """Read :meth:`to_json`'s text; the frequencies are drawn and checked at once.

        Raises
        ------
        ArtifactError
            If the text is not a feature map, was edited, or draws other frequencies here.
        """
        try:
            found = specification.parsed(text)
            if found["schema"] != "dask-sketch/feature-map" or found["version"] != 1:
                raise ArtifactError(
                    f"schema {found['schema']!r} version {found['version']!r} is not a feature "
                    "map that this version reads."
                )
            feature_map = cls.from_spec(json.dumps(found["spec"]), str(found["digest"]))
            _ = feature_map.frequencies
        except (KeyError, InputError) as error:
            raise ArtifactError(f"not a feature map: {error!r}") from error
        return feature_map

    def __reduce__(self) -> tuple[Any, ...]:
        # the digest travels with the specification: it is what a worker's draw is held against
        return _from_spec, (self.spec, self.digest)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FeatureMap):
            return NotImplemented
        return self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __dask_tokenize__(self) -> tuple[str, str]:
        return ("dask_sketch.FeatureMap", self.digest)

    def __sizeof__(self) -> int:
        arrays = (self.covariances, self.covariance_weights, self.center, self.whitening)
        return object.__sizeof__(self) + sum(a.nbytes for a in arrays if a is not None)


def _from_spec(spec: str, digest: str) -> FeatureMap:
    # a function, since cloudpickle takes a class method apart, and its module with it
    return FeatureMap.from_spec(spec, digest)


def _as_list(array: NDArray[np.float64] | None) -> list[Any] | None:
    return None if array is None else array.tolist()


def _brief(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


# The unit of each feature in which a sketch counts its moments, and what float32 can hold.

_EXTREME = 400  # binary exponent: far inside of float64 also when squared


@lru_cache(maxsize=64)
def moment_units(feature_map: FeatureMap) -> NDArray[np.float64]:
    """Powers of two near the scale of the map in each feature, shape (n_features,).

    Within a factor of the square root of two of the standard deviation that the map expects of a
    component, so that whole numbers of them are as fine for every feature.

    Examples
    --------
    >>> moment_units(FeatureMap(2, 20, covariances=[1.0, 100.0]))
    array([1., 8.])
    """
    # 1.41, and not the square root of two: scales that are powers of two are far from an edge
    exponents = np.frexp(1.41 * np.sqrt(feature_map.mean_variances))[1] - 1
    return frozen(np.ldexp(1.0, np.clip(exponents, -_EXTREME, _EXTREME)))


@lru_cache(maxsize=64)
def _largest_cycles(feature_map: FeatureMap) -> NDArray[np.float64]:
    return frozen(np.abs(feature_map.cycles_per_unit).max(axis=1).astype(np.float64))


def has_phases(
    feature_map: FeatureMap, minimum: NDArray[np.float64], maximum: NDArray[np.float64]
) -> bool:
    """Whether the phases of all samples within these bounds fit the precision of the map.

    Parameters
    ----------
    feature_map
        Whose frequencies and precision count.
    minimum, maximum
        Bounds of samples, shape (n_features,); the wrong way round if there are none.

    Examples
    --------
    >>> has_phases(FeatureMap(1, 20, scale=1.0), np.array([-1e39]), np.array([0.0]))
    False
    """
    reach = np.maximum(maximum - feature_map.center, feature_map.center - minimum)
    reach = np.maximum(reach, 0.0)
    if feature_map.row_whitening is not None:
        with np.errstate(over="ignore"):  # infinite is too far
            reach = np.maximum(reach, np.abs(feature_map.row_whitening) @ reach)
    largest = max(float(reach.max()), float(reach @ _largest_cycles(feature_map)))
    return largest < float(np.finfo(feature_map.dtype).max) / 4
