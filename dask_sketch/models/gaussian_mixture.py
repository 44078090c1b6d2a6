"""Mixtures of Gaussians."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from dask_sketch.errors import InputError
from dask_sketch.models.artifact import MIXTURE
from dask_sketch.models.covariances import COVARIANCES, Covariances
from dask_sketch.models.density import RowDensity
from dask_sketch.models.low_rank import covariances_of, require_rank
from dask_sketch.models.missing_values import conditional_means
from dask_sketch.models.mixture import Mixture
from dask_sketch.models.model import SHOWN_FEATURES, in_memory, row_blocks
from dask_sketch.validation.arrays import require_integer, require_number
from dask_sketch.validation.choices import named_type, rank_of, uses_matrices
from dask_sketch.validation.registry import apply_lazily
from dask_sketch.validation.tables import names_of

if TYPE_CHECKING:
    import sklearn.mixture

    from dask_sketch.models.model import Decoding, Polishing, StandardErrors

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False)
class GaussianMixture(Mixture):
    """A mixture of Gaussians.

    Methods return arrays for samples in memory, shape (n_samples, n_features); for lazy input
    (Dask, Zarr, a path, ...) they return a Dask collection, with one task per chunk. Samples may
    have missing values (NaN): the density is then the marginal density of the observed values, and
    one if there are none. :meth:`impute` fills in the missing values.

    Parameters
    ----------
    weights
        Non-negative weights that sum to one, shape (n_components,).
    means
        Means, shape (n_components, n_features).
    covariances
        Covariances, in the shape of ``covariance_type``. By default variances, the diagonals of the
        covariance matrices, shape (n_components, n_features).
    decoding
        Record of the decoding, if the mixture was decoded.
    stderr
        Standard errors of the parameters, if they were estimated (``refine="efficient"``). Loadings
        are determined only up to rotations: mixtures with factors have standard errors of their
        covariance matrices and noise variances.
    polishing
        Record of the passes of :func:`dask_sketch.polish`, if there were any. ``decoding`` is then
        the record of the model before these passes.
    covariance_type
        Type of the covariances, as in scikit-learn: ``"diag"``, variances (n_components,
        n_features); ``"spherical"``, one variance for each component, (n_components,); ``"tied"``,
        one matrix for all components, (n_features, n_features); or ``"full"``, one matrix for each
        component, (n_components, n_features, n_features). ``("low-rank", r)``, or
        ``"low-rank:r"``, is a mixture of factor analysers with the matrices ``diag(psi) + W W^T``:
        noise variances ``psi``, then the ``r`` columns of the loadings ``W``, (n_components,
        n_features, 1 + r).
    feature_names
        Names of the features; by default those in the record of the decoding. Samples with other
        names, or another order of the names, are refused.

    Raises
    ------
    InputError
        If a shape or value is invalid, or a covariance matrix is not positive definite.

    Examples
    --------
    >>> mixture = GaussianMixture([0.5, 0.5], [[-3.0], [3.0]], [[1.0], [1.0]])
    >>> mixture.predict([[-2.0], [4.0]])
    array([0, 1])
    >>> tilted = GaussianMixture([1.0], [[0, 0]], [[[2, 1], [1, 2]]], covariance_type="full")
    >>> tilted.covariance_type, tilted.variances
    ('full', array([[2., 2.]]))
    """

    _arrays = ("weights", "means", "covariances")
    _schema = MIXTURE
    _kind = "mixture"

    weights: Array
    means: Array
    covariances: Array
    decoding: Decoding | None = None
    stderr: StandardErrors | None = None
    polishing: Polishing | None = None
    covariance_type: str = "diag"
    feature_names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "covariance_type", named_type(self.covariance_type))
        shape, means = self.covariances.shape, self.means
        covariances_of(self.covariance_type)
        require_rank(self.covariance_type, means.shape[1])
        if shape != self._family.shape(*means.shape):
            raise InputError(
                f"covariances has shape {shape}, means {means.shape}: with covariance_type="
                f"{self.covariance_type!r} give {self._family.dimensions}."
            )
        _require_positive(self.covariances, self.covariance_type)
        errors = self.stderr
        if errors is None:
            return
        has_factors = rank_of(self.covariance_type) is not None
        if has_factors:  # the errors are those of the matrices
            shape = (*means.shape, means.shape[1])
        if (errors.means.shape, errors.covariances.shape) != (means.shape, shape):
            raise InputError(
                f"stderr has means of shape {errors.means.shape} and covariances of shape "
                f"{errors.covariances.shape}; for covariance_type={self.covariance_type!r} give "
                f"{means.shape} and {shape}.",
                parameter="stderr",
            )
        if has_factors != (errors.noise_variances is not None):
            raise InputError(
                f"stderr with covariance_type={self.covariance_type!r}: give noise_variances "
                "of 'low-rank:r', and of no other type.",
                parameter="stderr",
            )

    @property
    def _family(self) -> Covariances:
        return covariances_of(self.covariance_type)

    @property
    def variances(self) -> Array:
        """Variances of each component in each feature, shape (n_components, n_features)."""
        return self._family.variances(self.covariances, *self.means.shape)

    @property
    def covariance_matrices(self) -> Array:
        """Covariance matrices of the components, shape (n_components, n_features, n_features)."""
        return self._family.matrices(self.covariances, *self.means.shape)

    def _blocks(self, x: Any) -> Iterator[Array]:
        """Blocks of rows in memory, which may have missing values."""
        return row_blocks(x, self.n_features, self.n_components, self.feature_names, missing=True)

    def density(self) -> RowDensity:
        """Joint log-density of rows and components, for repeated use on rows in memory."""
        if self.covariance_type == "tied":
            return RowDensity(self.weights, self.means, self.covariances[None])
        has_matrices = uses_matrices(self.covariance_type)
        shapes = self.covariance_matrices if has_matrices else self.variances
        return RowDensity(self.weights, self.means, shapes)

    @property
    def mean(self) -> Array:
        """Mean of the mixture, shape (n_features,)."""
        return np.asarray(self.weights @ self.means)

    @property
    def variance(self) -> Array:
        """Variance of the mixture in each feature, shape (n_features,)."""
        return np.asarray(self.weights @ (self.variances + (self.means - self.mean) ** 2))

    def characteristic(self, frequencies: ArrayLike) -> NDArray[np.complex128]:
        """Characteristic function ``E exp(-i omega . x)``, eq. (10) and (15).

        Parameters
        ----------
        frequencies
            Frequencies ``omega``, shape (n_features, n_frequencies), in radians per unit of the
            data.

        Returns
        -------
        psi
            Values, shape (n_frequencies,), complex128, at most one in modulus.
        """
        omega = self._omega(frequencies)
        if uses_matrices(self.covariance_type):
            squares = np.stack(
                [np.einsum("im,im->m", omega, each @ omega) for each in self.covariance_matrices]
            )
        else:
            squares = self.variances @ omega**2
        exponent = -1j * (self.means @ omega) - 0.5 * squares
        return np.asarray(self.weights @ np.exp(exponent))

    def interval(self, confidence: float = 0.95) -> dict[str, Array]:
        """Confidence intervals of all parameters, from their standard errors.

        They are valid for large samples of independent rows, and too short for ten thousand samples
        of components that overlap: see the coverage in ``tests/benchmarks/README.md``. Where rows
        repeat or depend on each other, take :func:`dask_sketch.diagnostics.bootstrap`.

        Parameters
        ----------
        confidence
            Probability that an interval contains its parameter, in (0, 1).

        Returns
        -------
        interval
            Lower and upper ends along a last axis of length 2 of ``"weights"``, ``"means"`` and
            ``"covariances"``, after the axes of the parameters. Intervals of weights and variances
            are truncated at zero. For ``"low-rank:r"``, the intervals of ``"covariances"`` are
            intervals of the covariance matrices, and there is also ``"noise_variances"``.

        Raises
        ------
        InputError
            If the mixture has no standard errors, or ``confidence`` is out of range.

        Examples
        --------
        >>> from dask_sketch.models import StandardErrors
        >>> errors = StandardErrors([0.0], [[0.1]], [[0.2]])
        >>> mixture = GaussianMixture([1.0], [[0.0]], [[1.0]], stderr=errors)
        >>> mixture.interval()["means"].round(3)
        array([[[-0.196,  0.196]]])
        """
        if self.stderr is None:
            raise InputError(
                "this mixture has no standard errors: decode it with refine='efficient'."
            )
        confidence = require_number("confidence", confidence, 0.0, 1.0, strict=True)
        reach = float(special.ndtri(0.5 + 0.5 * confidence))
        out, values = {}, {name: getattr(self, name) for name in ("weights", "means")}
        values["covariances"] = self.covariances
        if self.stderr.noise_variances is not None:
            values["covariances"] = self.covariance_matrices
            values["noise_variances"] = self.covariances[..., 0]
        for name, value in values.items():
            error = reach * getattr(self.stderr, name)
            low = value - error
            if name == "covariances" and uses_matrices(self.covariance_type):
                positive = np.broadcast_to(np.eye(self.n_features, dtype=bool), low.shape)
                low = np.where(positive, np.maximum(low, 0.0), low)
            elif name != "means":
                low = np.maximum(low, 0.0)
            out[name] = np.stack([low, value + error], axis=-1)
        return out

    @property
    def n_parameters(self) -> int:
        """Number of free parameters: weights, which sum to one, means and covariances.

        A component that was decoded as ``"isotropic"`` has one variance, and a component of known
        covariance has none.
        """
        kind = "gaussian" if self.decoding is None else self.decoding.model
        k, d = self.means.shape
        family = COVARIANCES["spherical"] if kind == "isotropic" else self._family
        n_covariances = 0 if kind == "known" else family.n_parameters(k, d)
        return k * (1 + d) + n_covariances - 1

    def impute(self, x: Any) -> Any:
        """Replace missing values by their means given the observed values of the sample.

        The conditional mean is the best prediction in mean square, if the mixture is the
        distribution of the samples and values are missing at random. Imputed values vary less than
        observed ones.

        Parameters
        ----------
        x
            Samples with NaN where values are missing, shape (n_samples, n_features), or lazy input.

        Returns
        -------
        x
            Samples without missing values, float64, of the same shape; lazy if ``x`` is. Observed
            values are unchanged.

        Raises
        ------
        InputError
            If the number of features is wrong or a value is infinite.

        References
        ----------
        Ghahramani, Jordan (1994), Supervised learning from incomplete data via an EM approach,
        Advances in Neural Information Processing Systems 6.

        Examples
        --------
        >>> tilted = GaussianMixture([1.0], [[0, 1]], [[[2, 1], [1, 2]]], covariance_type="full")
        >>> tilted.impute([[2.0, np.nan], [np.nan, np.nan]])
        array([[2., 2.],
               [0., 1.]])
        """
        if not in_memory(x):
            return apply_lazily(self, "impute", x)
        density, covariances = self.density(), self.variances
        if self.covariance_type == "tied":
            covariances = self.covariances[None]
        elif uses_matrices(self.covariance_type):
            covariances = self.covariance_matrices
        rows = [
            conditional_means(self.means, covariances, density.posterior(block), block)
            for block in self._blocks(x)
        ]
        return np.concatenate([np.empty((0, self.n_features)), *rows])

    def sample(self, n_samples: int, seed: int = 0) -> Array:
        """Sample from the mixture.

        Parameters
        ----------
        n_samples
            Number of samples, ``>= 0``.
        seed
            Seed, ``>= 0``; the same seed gives the same bits.

        Returns
        -------
        x
            Samples, shape (n_samples, n_features), float64.

        Raises
        ------
        InputError
            If ``n_samples`` or ``seed`` is not a non-negative integer.
        """
        n_samples = require_integer("n_samples", n_samples, 0)
        rng = np.random.default_rng(require_integer("seed", seed, 0))
        component = np.searchsorted(np.cumsum(self.weights)[:-1], rng.random(n_samples), "right")
        x = rng.standard_normal((n_samples, self.n_features))
        has_matrices = uses_matrices(self.covariance_type)
        if has_matrices:
            lower = np.linalg.cholesky(self.covariance_matrices)
        else:
            deviations = np.sqrt(self.variances)
        step = 8192
        for start in range(0, n_samples, step):
            block, k = x[start : start + step], component[start : start + step]
            if has_matrices:
                block[:] = np.einsum("nij,nj->ni", lower[k], block)
            else:
                block *= deviations[k]
            block += self.means[k]
        return x

    def to_sklearn(self) -> sklearn.mixture.GaussianMixture:
        """Convert to a fitted :class:`sklearn.mixture.GaussianMixture`.

        Its predictions are the same. A mixture of type ``"low-rank:r"`` becomes an estimator with
        ``covariance_type="full"``. It has no record of iterations: ``n_iter_`` is 0, and
        ``lower_bound_`` is nan unless the mixture was decoded with a score.

        Returns
        -------
        estimator
            Fitted estimator of scikit-learn.

        Examples
        --------
        >>> mixture = GaussianMixture([0.5, 0.5], [[-3.0], [3.0]], [[1.0], [1.0]])
        >>> mixture.to_sklearn().predict([[-2.0], [4.0]])
        array([0, 1])
        """
        # imported here because the import takes a second, and few callers need it
        from sklearn.mixture import GaussianMixture as Estimator

        kind, covariances = self.covariance_type, self.covariances
        if rank_of(kind) is not None:
            kind, covariances = "full", self.covariance_matrices
        made = Estimator(self.n_components, covariance_type=kind)
        made.weights_, made.means_ = self.weights.copy(), self.means.copy()
        made.covariances_ = covariances.copy()
        if uses_matrices(kind):
            inverse = np.linalg.inv(np.linalg.cholesky(covariances))
            made.precisions_cholesky_ = np.ascontiguousarray(np.swapaxes(inverse, -1, -2))
            made.precisions_ = np.swapaxes(inverse, -1, -2) @ inverse
        else:
            made.precisions_cholesky_ = 1.0 / np.sqrt(covariances)
            made.precisions_ = 1.0 / covariances
        record = self.decoding
        made.converged_ = record is None or record.converged
        made.n_iter_ = 0
        made.lower_bound_ = np.nan if record is None or record.score is None else record.score
        made.n_features_in_ = self.n_features
        if self.feature_names is not None:
            made.feature_names_in_ = np.array(self.feature_names, dtype=object)
        return made

    @classmethod
    def from_sklearn(cls, estimator: sklearn.mixture.GaussianMixture) -> GaussianMixture:
        """Convert a fitted :class:`sklearn.mixture.GaussianMixture`.

        Parameters
        ----------
        estimator
            Fitted estimator, of any ``covariance_type``.

        Returns
        -------
        mixture
            Mixture with the same predictions, and the names of the features if there are some.

        Raises
        ------
        InputError
            If it is not such an estimator, or not fitted.

        Examples
        --------
        >>> from sklearn.mixture import GaussianMixture as Estimator
        >>> x = np.random.default_rng(0).normal(size=(100, 2))
        >>> GaussianMixture.from_sklearn(Estimator(2, random_state=0).fit(x)).covariance_type
        'full'
        """
        names = ("covariance_type", "weights_", "means_", "covariances_")
        missing = [name for name in names if not hasattr(estimator, name)]
        if missing:
            raise InputError(
                f"estimator of type {type(estimator).__name__} has no {missing[0]}: give a fitted "
                "sklearn.mixture.GaussianMixture."
            )
        weights = np.asarray(estimator.weights_, dtype=np.float64)
        covariances = np.asarray(estimator.covariances_, dtype=np.float64)
        if uses_matrices(estimator.covariance_type):  # symmetric up to rounding
            covariances = 0.5 * (covariances + np.swapaxes(covariances, -1, -2))
        return cls(
            weights / weights.sum(),
            np.asarray(estimator.means_),
            covariances,
            covariance_type=estimator.covariance_type,
            feature_names=names_of(getattr(estimator, "feature_names_in_", ())) or None,
        )

    def as_dict(self) -> dict[str, Any]:
        """Sizes, parameters, standard errors, and the records of decoding and polishing."""
        errors = None if self.stderr is None else self.stderr.as_dict()
        return super().as_dict() | {"covariance_type": self.covariance_type, "stderr": errors}

    def _repr_html_(self) -> str:
        rows, errors = [], self.stderr
        for k in range(self.n_components):
            weight = f"{self.weights[k]:.4g}"
            means = [f"{x:.4g}" for x in self.means[k, :SHOWN_FEATURES]]
            if errors is not None:
                weight += f" ± {errors.weights[k]:.2g}"
                pairs = zip(means, errors.means[k, :SHOWN_FEATURES], strict=True)
                means = [f"{mean} ± {error:.2g}" for mean, error in pairs]
            deviations = np.sqrt(self.variances[k, :SHOWN_FEATURES])
            cells = zip(means, deviations, strict=True)
            rows.append([str(k), weight, *(f"{mean} ({width:.3g})" for mean, width in cells)])
        heading = "components: weight, mean (standard deviation)"
        return self._card(heading, ["component", "weight", *self._feature_header()], rows)


def _require_positive(covariances: Array, covariance_type: str) -> None:
    """Raise unless variances are positive, and matrices symmetric and positive definite."""
    if rank_of(covariance_type) is not None:
        if not (covariances[..., 0] > 0).all():
            raise InputError(
                "covariances: the smallest noise variance [..., 0] is "
                f"{covariances[..., 0].min():g}; give positive ones."
            )
        return
    if not uses_matrices(covariance_type):
        if not (covariances > 0).all():
            raise InputError(
                f"covariances: the smallest is {covariances.min():g}; give positive variances."
            )
        return
    matrices = covariances[None] if covariances.ndim == 2 else covariances
    size = np.abs(matrices).max(axis=(1, 2))
    apart = np.abs(matrices - np.swapaxes(matrices, 1, 2)).max(axis=(1, 2))
    if (apart > 1e-8 * size).any():
        k = int(np.argmax(apart))
        raise InputError(
            f"covariances[{k}] is not symmetric: entries differ by up to {apart[k]:g}. Give "
            "symmetric matrices."
        )
    for k, matrix in enumerate(matrices):
        try:
            np.linalg.cholesky(matrix)
        except np.linalg.LinAlgError:
            smallest = np.linalg.eigvalsh(matrix)[0]
            raise InputError(
                f"covariances[{k}] is not positive definite: smallest eigenvalue {smallest:g}. "
                "Give matrices with positive eigenvalues."
            ) from None
