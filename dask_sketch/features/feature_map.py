"""The feature map: a specification from which every process samples the same frequencies."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dask_sketch.display.html import card
from dask_sketch.display.plots import FeatureMapPlots
from dask_sketch.display.text import describe
from dask_sketch.errors import ArtifactError, InputError, MergeError
from dask_sketch.features import specification
from dask_sketch.features.frequencies import (
    FrequencySampling,
    SampledFrequencies,
    sampled_frequencies,
    stored_frequencies,
)
from dask_sketch.features.frequency_distributions import WINDOW, importance_weights
from dask_sketch.features.frequency_pairs import n_blocks_of_pairs
from dask_sketch.features.pilot import Pilot
from dask_sketch.features.scale import ScaleFit
from dask_sketch.validation.arrays import frozen, require_integer
from dask_sketch.validation.categories import Categories, stated_categories
from dask_sketch.validation.choices import DISTRIBUTIONS, STRUCTURED
from dask_sketch.validation.tables import distinct_names, shorten

# Of maps of several scales: ratio of two scales at most, and fraction of the frequencies that
# resolve the smallest components.
_SCALE_STEP, _SMALLEST_WEIGHT = 4.0, 0.4


@dataclass(frozen=True, eq=False, repr=False)
class FeatureMap:
    """Random Fourier features ``exp(-i omega·x)``, by the specification of their frequencies.

    A feature map is a few numbers: the distribution of the frequencies, its covariances, the sizes
    and the seed. Every process samples the frequencies when it first needs them, and keeps them.
    Workers receive the specification and a digest, and refuse to work if their frequencies have
    another digest.

    Parameters
    ----------
    n_features
        Number of features of a sample, ``d >= 1``.
    n_frequencies
        Number of frequencies, ``m >= 1``.
    scale
        Standard deviation of a typical component, in the units of the data; for the distributions
        ``"gaussian"`` and ``"clustering"``, the bandwidth of the kernel of the features. Give
        either ``scale`` or ``covariances``. Clusters many ``scale`` apart are found by maps of
        :func:`~dask_sketch.design`, or without data by :meth:`from_scales`.
    covariances
        Variances of the components that the distribution is adapted to: shape (n_features,), or
        (n_distributions, n_features) for a mixture of distributions (eq. 18).
    covariance_weights
        Weights of such a mixture, shape (n_distributions,); divided by their sum. Equal by default.
    distribution
        Frequency distribution: ``"adapted-radius"`` (eq. 17; the default), ``"sparse-radius"``,
        ``"sparse-windows"``, ``"sparse-sums"``, ``"dense-sums"``, ``"folded-gaussian"``,
        ``"gaussian"``, ``"gaussian-marginals"``, ``"gaussian-pairs"`` or ``"clustering"``
        (Gribonval et al. 2017, eq. 40, with :attr:`feature_weights`); see
        :func:`dask_sketch.features.frequency_distributions.sample_frequencies`.
    seed
        Seed of the random frequencies, ``>= 0``.
    dtype
        Precision of the features, ``"float32"`` or ``"float64"``. Sums are exact in both.
    center
        Point near the middle of the data, shape (n_features,); the origin by default. It is
        subtracted before phases are computed and restored exactly, so it changes the rounding, not
        the sketch.
    whitening
        Matrix ``L``, shape (n_features, n_features): frequencies are sampled for ``L @ x``. The
        frequencies for ``x`` are ``L.T`` times the sampled ones, which costs nothing per sample,
        except for distributions of sums, such as ``"sparse-sums"``, which multiply the rows (see
        :attr:`row_whitening`).
    feature_names
        Names of the features, in order, if the data has names. Samples with other names, or with
        the same names in another order, are refused, and so are sketches of them.
    normalize
        Whether the pass divides each row by its Euclidean length first, so that the sketch is that
        of the directions of the rows, which are points on the unit sphere. All other arguments are
        then in the units of these points. Rows of zeros have no direction, and are refused or left
        out like rows with NaN (``nan_policy``).
    categories
        Levels of categorical features, in order: by the name of the feature, or by its number in
        data without names. Rows hold the codes of the levels, ``0`` to ``L - 1``; frames hold the
        levels. The frequencies of such a feature are multiples of ``2 pi / L``, so that the
        features are its characters ``exp(-2 pi i h c / L)``. Only with the distributions
        ``"sparse-radius"`` and ``"gaussian"``, without whitening and without ``normalize``. The
        ``scale`` and the ``covariances`` have no effect on these features.
    axes
        Matrices of the distribution ``"dense-sums"``, shape (n_axes, n_features, n_features): each
        base frequency is the product of one of them and of a random direction times an adapted
        radius, so that the ``covariances`` have no effect on it. The transposed inverse Cholesky
        factors of covariance matrices adapt the frequencies to these.
    scale_fit
        Fit from which :func:`~dask_sketch.design` took the scale, for plots. It is not part of the
        specification.
    pilot
        Record of the pilot rows of :func:`~dask_sketch.design`, from which decoders start. It is
        not part of the specification either.

    Raises
    ------
    InputError
        If an argument is out of range; the message names it.

    Notes
    -----
    Sampled frequencies are rounded so that ``omega / (2 pi)`` is a float32 number (for whitened
    rows, if rows are whitened). The float32 and float64 kernels and a sketch stored on disk
    therefore all hold the same frequencies.

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
    normalize: bool = False
    categories: Categories | None = None
    axes: NDArray[np.float64] | None = None
    scale_fit: ScaleFit | None = field(default=None, repr=False)
    pilot: Pilot | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        d = require_integer("n_features", self.n_features, 1)
        m = require_integer("n_frequencies", self.n_frequencies, 1)
        specification.require_size(d, m)
        if self.distribution not in DISTRIBUTIONS:
            raise InputError(
                f"distribution={self.distribution!r} is unknown; choose one of "
                f"{', '.join(DISTRIBUTIONS)}."
            )
        if self.distribution == "gaussian-pairs":
            n_blocks_of_pairs(m)
        if (self.scale is None) == (self.covariances is None):
            raise InputError(
                f"scale={self.scale!r} and covariances={self.covariances!r}: give exactly one. "
                "design(x, ...) finds a scale from the data."
            )
        checked: dict[str, Any] = {
            "n_features": d,
            "n_frequencies": m,
            "seed": require_integer("seed", self.seed, 0),
            "dtype": specification.precision(self.dtype),
            "center": specification.finite_point(self.center, d),
            "normalize": specification.boolean("normalize", self.normalize),
        }
        if self.scale is not None:
            checked["scale"] = specification.positive_scale(self.scale)
        else:
            checked["covariances"] = specification.positive_variances(self.covariances, d)
        if self.axes is not None:
            checked["axes"] = specification.matrices_of_axes(self.axes, self.distribution, d)
        if self.covariance_weights is not None:
            n = len(np.atleast_2d(checked["covariances"])) if self.scale is None else 1
            weights = specification.normalised_weights(self.covariance_weights, n)
            checked["covariance_weights"] = weights
        if self.whitening is not None:
            checked["whitening"] = specification.invertible_matrix(self.whitening, d)
        if self.feature_names is not None:
            checked["feature_names"] = distinct_names(self.feature_names, d)
        if self.categories is not None:
            names = checked.get("feature_names")
            checked["categories"] = stated_categories(self.categories, d, names)
            specification.require_suited_to_categories(
                self.distribution, self.whitening, checked["normalize"]
            )
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @property
    def distribution_variances(self) -> NDArray[np.float64]:
        """Variances before whitening is undone, shape (n_distributions, n_features)."""
        if self.covariances is None:
            assert self.scale is not None
            variances = np.full((1, self.n_features), self.scale**2)
        else:
            variances = np.atleast_2d(self.covariances)
        if self.categories is None:
            return variances
        variances = variances.copy()
        sizes = np.array(self.categories.sizes)
        variances[:, self.categories.columns] = (sizes**2 - 1) / 12  # variances of uniform codes
        return variances

    @property
    def mean_variances(self) -> NDArray[np.float64]:
        """Mean variances of the expected components, shape (n_features,).

        In squared units of the data; ``scale**2`` in every feature for one isotropic scale.
        """
        mean = np.average(self.distribution_variances, axis=0, weights=self.covariance_weights)
        if self.whitening is None:
            return np.asarray(mean)
        inverse = np.linalg.inv(self.whitening)
        return np.asarray((inverse * mean) @ inverse.T).diagonal().copy()

    @property
    def min_variances(self) -> NDArray[np.float64]:
        """Variances of the narrowest expected components, shape (n_features,).

        In squared units of the data; with one covariance, :attr:`mean_variances`.
        """
        if len(self.distribution_variances) == 1 or self.whitening is not None:
            return self.mean_variances
        return self.distribution_variances.min(axis=0)

    @cached_property
    def row_whitening(self) -> NDArray[np.float64] | None:
        """Matrix by which rows are multiplied before their phases are computed, or None.

        Only full whitening with structured frequencies: those of ``"sparse-sums"`` use few features
        of the whitened rows, and all have base frequencies on a grid.
        With any other distribution it is cheaper to multiply the frequencies once.
        """
        white = self.whitening
        if self.distribution not in STRUCTURED or white is None:
            return None
        return None if np.array_equal(white, np.diag(white.diagonal())) else white

    @cached_property
    def spec(self) -> str:
        """Specification as canonical JSON text: sorted keys, exact numbers."""
        values = {key: getattr(self, name) for name, key in specification.STORED_NAMES.items()}
        optional = {"feature_names": None, "normalize": False, "categories": None, "axes": None}
        for name, default in optional.items():
            if values[name] is default:  # digests of maps without them are older
                del values[name]
        if self.categories is not None:
            values["categories"] = self.categories.levels
        return json.dumps(
            {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in values.items()},
            sort_keys=True,
        )

    @property
    def _sampling(self) -> FrequencySampling:
        return FrequencySampling(
            spec=self.spec,
            distribution=self.distribution,
            variances=self.distribution_variances,
            weights=self.covariance_weights,
            n_frequencies=self.n_frequencies,
            seed=self.seed,
            whitening=self.whitening,
            row_whitening=self.row_whitening,
            categories=self.categories,
            axes=self.axes,
        )

    @cached_property
    def _sampled(self) -> SampledFrequencies:
        return sampled_frequencies(self._sampling, self.__dict__.get("digest"))

    @property
    def frequencies(self) -> NDArray[np.float64]:
        """Frequencies ``omega``, shape (n_features, n_frequencies), radians per unit of the data.

        They are sampled at the first access, and read-only.
        """
        return self._sampled.frequencies

    @property
    def cycles_per_unit(self) -> NDArray[np.float32]:
        """``frequencies / (2 pi)``, shape (n_features, n_frequencies).

        For whitened rows, if there is a :attr:`row_whitening`.
        """
        return self._sampled.cycles_per_unit

    @cached_property
    def feature_weights(self) -> NDArray[np.float64] | None:
        """Weights of the features in decoders, shape (n_frequencies,); None: all one.

        Only the distribution ``"clustering"`` has them: :func:`importance_weights`. Sketches hold
        unweighted moments for every distribution.
        """
        if self.distribution != "clustering":
            return None
        omega = self._whitened_frequencies
        return frozen(
            importance_weights(omega, self.distribution_variances, self.covariance_weights)
        )

    @property
    def _whitened_frequencies(self) -> NDArray[np.float64]:
        """Frequencies for whitened samples, which are those that the distribution describes."""
        if self.whitening is None:
            return self.frequencies
        return np.linalg.solve(self.whitening.T, self.frequencies).astype(np.float64)

    @property
    def scaled_radii(self) -> NDArray[np.float64]:
        """Radius of each frequency in units of the expected component, shape (n_frequencies,).

        ``sqrt(sum_l omega_l**2 v_l)`` with the mean variances ``v`` of the distribution, so that
        the modulus of the characteristic function of such a component is ``exp(-radius**2 / 2)``
        in any direction.
        """
        variances = np.average(self.distribution_variances, axis=0, weights=self.covariance_weights)
        return np.asarray(np.sqrt(variances @ self._whitened_frequencies**2))

    @cached_property
    def digest(self) -> str:
        """SHA-256 over the specification and the frequencies, 64 hexadecimal digits."""
        return self._sampled.digest

    @property
    def plot(self) -> FeatureMapPlots:
        """Plots (extra ``plot``): ``feature_map.plot.scale_fit()``."""
        return FeatureMapPlots(self.scale_fit)

    def require_same(self, other: FeatureMap) -> None:
        """Raise unless both maps have the same frequencies and conventions.

        Digests may differ by signs of zeros among the frequencies.

        Parameters
        ----------
        other
            Feature map to compare with.

        Raises
        ------
        MergeError
            Naming the first field that differs, with both values.
        ArtifactError
            If specifications are the same and this process cannot sample the frequencies of a
            digest.
        """
        if self.digest == other.digest:
            return
        mine, theirs = (specification.parse_specification(each.spec) for each in (self, other))
        # choices before their consequences: another seed leads to another scale
        first = ("n_features", "n_frequencies", "seed", "distribution", "dtype")
        for name in (*first, *(f.name for f in fields(self) if f.name not in first)):
            if mine.get(name) != theirs.get(name):
                one, two = (shorten(json.dumps(each.get(name))) for each in (mine, theirs))
                raise MergeError(
                    f"the feature maps differ in {name}: {one} and {two}. Only sketches of one "
                    "feature map can be combined; sketch both inputs with the same one."
                )
        if np.array_equal(self.cycles_per_unit, other.cycles_per_unit):
            return  # their zeros have other signs, see dask_sketch.features.frequencies
        raise MergeError(
            "the feature maps have one specification but other frequencies (digests "
            f"{self.digest[:12]} and {other.digest[:12]}): they were drawn by different versions "
            "of NumPy. Use one version, or open the stored sketch that holds the frequencies."
        )

    @classmethod
    def from_scales(
        cls,
        n_features: int,
        n_frequencies: int,
        smallest: ArrayLike,
        largest: ArrayLike,
        *,
        seed: int = 0,
        dtype: str = "float32",
        feature_names: Sequence[str] | None = None,
    ) -> FeatureMap:
        """Make a map without data, for clusters at any distance.

        Components of the smallest scale have 40 % of the frequencies. The others are divided among
        scales up to the largest one, each about four times the one before, by which
        :func:`~dask_sketch.decode` finds the means, from the widest scale to the narrowest, and
        then the variances. Many components of more than twelve features are found in the first
        twelve of them, and then in the others: begin with features in which components differ.
        Where rows are at hand, :func:`~dask_sketch.design` is better.

        Parameters
        ----------
        n_features, n_frequencies
            Numbers of features and of frequencies.
        smallest
            Standard deviation of the narrowest components, in the units of the data: a number, or
            one for each feature, shape (n_features,).
        largest
            Greatest distance of two components, or more, in the same form.
        seed
            Seed of the random frequencies, ``>= 0``.
        dtype
            Precision of the features, ``"float32"`` or ``"float64"``.
        feature_names
            Names of the features, if the data has names.

        Raises
        ------
        InputError
            If a scale is not a positive number, or ``largest`` is less than ``smallest``.

        Examples
        --------
        >>> feature_map = FeatureMap.from_scales(2, 200, smallest=1.0, largest=50.0)
        >>> np.sqrt(feature_map.distribution_variances[:, 0]).round(1).tolist()
        [1.0, 3.7, 13.6, 50.0]
        """
        d = require_integer("n_features", n_features, 1)
        low = specification.positive_scales("smallest", smallest, d)
        high = specification.positive_scales("largest", largest, d)
        if (high < low).any():
            raise InputError(
                f"smallest={smallest!r} and largest={largest!r}: give a largest distance of "
                "components that is no less than the standard deviation of the narrowest one."
            )
        steps = math.ceil(np.log(high / low).max() / math.log(_SCALE_STEP) - 1e-9)
        fractions = np.linspace(0.0, 1.0, steps + 1)[:, None]
        scales = low * (high / low) ** fractions
        scale_weights = np.full(steps + 1, (1.0 - _SMALLEST_WEIGHT) / max(steps, 1))
        scale_weights[0] = _SMALLEST_WEIGHT
        return cls(
            d,
            n_frequencies,
            covariances=scales**2,
            covariance_weights=scale_weights,
            distribution="sparse-radius" if d <= WINDOW else "sparse-windows",
            seed=seed,
            dtype=dtype,
            feature_names=None if feature_names is None else tuple(feature_names),
        )

    @classmethod
    def from_spec(
        cls,
        spec: str,
        digest: str | None = None,
        frequencies: ArrayLike | None = None,
        pilot: Pilot | None = None,
    ) -> FeatureMap:
        """Rebuild a map from :attr:`spec`.

        Parameters
        ----------
        spec
            Specification as JSON text.
        digest
            Digest that the frequencies must have.
        frequencies
            Stored frequencies, shape (n_features, n_frequencies). They are used if they
            match ``digest``, so that a stored sketch outlives a change of the random generator.
        pilot
            Record of pilot rows.

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
            feature_map = cls(**specification.parse_specification(spec), pilot=pilot)
        except (TypeError, ValueError, OverflowError) as error:
            raise ArtifactError(f"not the specification of a feature map: {error}") from error
        if frequencies is not None:
            values = np.asarray(frequencies, dtype=np.float64)
            # kept as long as this map exists, and in the cache of the process
            feature_map.__dict__["_sampled"] = stored_frequencies(
                feature_map._sampling, values, digest
            )
        if digest is not None:
            feature_map.__dict__["digest"] = digest
        return feature_map

    def with_pilot(self, pilot: Pilot | None) -> FeatureMap:
        """The same map with another record of pilot rows."""
        return self._with(pilot=pilot)

    def without_records(self) -> FeatureMap:
        """The same map without what :func:`~dask_sketch.design` recorded of the data."""
        return self._with(pilot=None, scale_fit=None)

    def _with(self, **records: Any) -> FeatureMap:
        out = replace(self, **records)
        for name in ("_sampled", "digest"):
            if name in self.__dict__:
                out.__dict__[name] = self.__dict__[name]
        return out

    def to_json(self) -> str:
        """Specification and digest as JSON text, the content of a feature map's file.

        The record of pilot rows, if there is one, has a checksum of its own.
        """
        document = {"schema": "dask-sketch/feature-map", "version": 1, "digest": self.digest}
        document["spec"] = json.loads(self.spec)
        if self.pilot is not None:
            document |= {"pilot": self.pilot.as_dict(), "pilot_checksum": self.pilot.checksum}
        return json.dumps(document, indent=2)

    @classmethod
    def from_json(cls, text: str) -> FeatureMap:
        """Read the text of :meth:`to_json`; sample the frequencies and check them at once.

        Raises
        ------
        ArtifactError
            If the text is not a feature map, was edited, or leads to other frequencies here.
        """
        try:
            document = specification.parse_object(text)
            if document["schema"] != "dask-sketch/feature-map" or document["version"] != 1:
                raise ArtifactError(
                    f"schema {document['schema']!r} version {document['version']!r} is not a "
                    "feature map that this version reads: give the file of a feature map, or "
                    "upgrade."
                )
            feature_map = cls.from_spec(json.dumps(document["spec"]), str(document["digest"]))
            if document.get("pilot") is not None:
                pilot = Pilot.from_dict(
                    document["pilot"], feature_map.n_features, feature_map.n_frequencies
                )
                if document.get("pilot_checksum") != pilot.checksum:
                    raise ArtifactError(
                        "pilot does not match pilot_checksum: the file was edited. Restore it, or "
                        "write it again with `dask-sketch design`."
                    )
                object.__setattr__(feature_map, "pilot", pilot)
            _ = feature_map.frequencies
        except (KeyError, InputError) as error:
            reason = f"it has no key {error}" if isinstance(error, KeyError) else error
            raise ArtifactError(
                f"not a feature map: {reason}. Make one with `dask-sketch design`."
            ) from error
        return feature_map

    def __repr__(self) -> str:
        shape = f"n_features={self.n_features}, n_frequencies={self.n_frequencies}"
        scale = (
            f"scale={self.scale:.6g}" if self.covariances is None else f"scales {self._scales()}"
        )
        white = ", whitened" if self.whitening is not None else ""
        white += ", normalize=True" if self.normalize else ""
        if self.categories is not None:
            white += f", {len(self.categories.sizes)} categorical features"
        return (
            f"FeatureMap({shape}, distribution={self.distribution!r}, {scale}{white}, "
            f"seed={self.seed}, dtype={self.dtype!r}, digest={self.digest[:12]})"
        )

    def _scale_range(self) -> tuple[float, float]:
        """Smallest and largest standard deviation of the distributions."""
        variances = self.distribution_variances
        return float(np.sqrt(variances.min())), float(np.sqrt(variances.max()))

    def _scales(self) -> str:
        """Range of the standard deviations as text."""
        low, high = self._scale_range()
        distributions = (
            f" in {len(self.distribution_variances)} distributions"
            if len(self.distribution_variances) > 1
            else ""
        )
        return f"{low:.4g} to {high:.4g}{distributions}"

    def as_dict(self) -> dict[str, object]:
        """Sizes, distribution and scale of the frequencies, seed, precision and digest."""
        return {
            "kind": "feature map",
            "n_features": self.n_features,
            "n_frequencies": self.n_frequencies,
            "feature_names": self.feature_names,
            "distribution": self.distribution,
            "scale": self.scale,
            "scale_range": None if self.covariances is None else self._scale_range(),
            "mean_variances": self.mean_variances,
            "whitened": self.whitening is not None,
            "normalize": self.normalize,
            "categories": self.categories and self.categories.as_dict(),
            "seed": self.seed,
            "dtype": self.dtype,
            "digest": self.digest,
        }

    def _repr_html_(self) -> str:
        summary = f"{self.n_features:,} features to {self.n_frequencies:,} frequencies"
        return card("FeatureMap", describe(self.as_dict() | {"kind": None}), summary=summary)

    def __reduce__(self) -> tuple[Any, ...]:
        # the digest is sent along, so that a worker compares its own frequencies with it
        return _from_spec, (self.spec, self.digest, self.pilot)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FeatureMap):
            return NotImplemented
        return self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __dask_tokenize__(self) -> tuple[str, str]:
        return ("dask_sketch.FeatureMap", self.digest)

    def __sizeof__(self) -> int:
        arrays = (self.covariances, self.covariance_weights, self.center, self.whitening, self.axes)
        return object.__sizeof__(self) + sum(a.nbytes for a in arrays if a is not None)


def _from_spec(spec: str, digest: str, pilot: Pilot | None) -> FeatureMap:
    # a function, because cloudpickle serialises a class method together with its module
    return FeatureMap.from_spec(spec, digest, pilot=pilot)


_MAX_EXPONENT = 400  # largest exponent of a unit: its square is far inside of the range of float64


@lru_cache(maxsize=64)
def moment_units(feature_map: FeatureMap) -> NDArray[np.float64]:
    """Units in which sketches count the moments of each feature, shape (n_features,).

    Powers of two, within a factor of the square root of two of the standard deviation that the map
    expects of a component, so that a quantum is equally fine for every feature.

    Examples
    --------
    >>> moment_units(FeatureMap(2, 20, covariances=[1.0, 100.0]))
    array([1., 8.])
    """
    # 1.41 rather than the square root of two, so that no power of two is at the edge of an interval
    exponents = np.frexp(1.41 * np.sqrt(feature_map.mean_variances))[1] - 1
    return frozen(np.ldexp(1.0, np.clip(exponents, -_MAX_EXPONENT, _MAX_EXPONENT)))


@lru_cache(maxsize=64)
def _largest_cycles(feature_map: FeatureMap) -> NDArray[np.float64]:
    """Largest frequency of each feature in cycles per unit."""
    return frozen(np.abs(feature_map.cycles_per_unit).max(axis=1).astype(np.float64))


def has_phases(
    feature_map: FeatureMap, minimum: NDArray[np.float64], maximum: NDArray[np.float64]
) -> bool:
    """Whether the phases of all samples within bounds are in the range of the map's precision.

    Parameters
    ----------
    feature_map
        Feature map with the frequencies and the precision.
    minimum, maximum
        Bounds of the samples, shape (n_features,); ``inf`` and ``-inf`` if there are no samples.

    Examples
    --------
    >>> has_phases(FeatureMap(1, 20, scale=1.0), np.array([-1e39]), np.array([0.0]))
    False
    """
    reach = np.maximum(maximum - feature_map.center, feature_map.center - minimum)
    reach = np.maximum(reach, 0.0)
    if feature_map.row_whitening is not None:
        with np.errstate(over="ignore"):  # infinity exceeds the range
            reach = np.maximum(reach, np.abs(feature_map.row_whitening) @ reach)
    largest = max(float(reach.max()), float(reach @ _largest_cycles(feature_map)))
    return largest < float(np.finfo(feature_map.dtype).max) / 4
