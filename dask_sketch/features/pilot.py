"""Record of the pilot rows of a feature map, with which decoders compare their models."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_sketch.errors import InputError
from dask_sketch.models.clusters import Clusters
from dask_sketch.models.product_em import ProductMixture
from dask_sketch.models.smallest_variance import MIN_VARIANCE
from dask_sketch.validation.categories import Categories

Array = NDArray[np.float64]
Complex = NDArray[np.complex128]
_STEPS = 127.0  # steps of a characteristic function from 0 to 1
# Estimated loss because of few pilot rows from which more are read, or users are warned, in nats:
# it may really be 0.1.
WARNED_SAMPLING_LOSS = 0.075


@dataclass(frozen=True)
class PilotMixture:
    """Mixture of Gaussians with diagonal covariances.

    Attributes
    ----------
    weights
        Weights of the components, shape (n_components,), summing to one.
    means, variances
        Means and variances of the components, shape (n_components, n_features).
    score
        Mean log-likelihood of the rows, in nats.
    probabilities
        Probabilities of the levels of all categorical features, one after the other, shape
        (n_components, n_levels); None without such features. Means and variances are then also
        those of their codes.
    """

    weights: Array
    means: Array
    variances: Array
    score: float
    probabilities: Array | None = None

    def product_of(self, categories: Categories) -> ProductMixture | None:
        """Mixture of products, if there are probabilities of the levels."""
        if self.probabilities is None:
            return None
        numeric = categories.numeric
        return ProductMixture(
            self.weights, self.means[:, numeric], self.variances[:, numeric], self.probabilities
        )


@dataclass(frozen=True)
class MatrixMixture:
    """Mixture of Gaussians with covariance matrices.

    Attributes
    ----------
    weights
        Weights of the components, shape (n_components,), summing to one.
    means
        Means of the components, shape (n_components, n_features).
    covariances
        Covariance matrices, shape (n_components, n_features, n_features).
    score
        Mean log-likelihood of the rows, in nats.
    sampling_loss
        Estimated loss on other rows, because it was fitted to few, in nats.
    """

    weights: Array
    means: Array
    covariances: Array
    score: float
    sampling_loss: float = 0.0


@dataclass(frozen=True, eq=False)
class Pilot:
    """Record of the rows from which a feature map was designed.

    Decoders start from its mixture, and compare their models with it. It is not part of the
    specification of a feature map: the digest does not depend on it.

    Attributes
    ----------
    n_rows
        Number of pilot rows.
    variance
        Variance of each feature, shape (n_features,).
    gaussian_score
        Mean log-likelihood of the rows under one Gaussian with a diagonal covariance, in nats;
        features that do not vary are left out.
    mixture
        Mixture of large likelihood for the rows, in the units of the data; None if the number of
        components was not known.
    sampling_loss
        Estimated loss of the mixture on other rows, because it was fitted to few, in nats.
    clusters
        Clusters of the rows by k-means, in the units of the data; None unless the map is for
        centroids of a known number.
    characteristic
        Empirical characteristic function of the rows less the center of the map, shape
        (n_frequencies,), complex128, rounded to 127ths: shows data that is unlike the pilot rows.
        None if some rows have missing values, and for maps with categories.
    clusters_excess
        Estimated excess of the mean squared error of the clusters on other rows, as a fraction.
    floor_loss
        Loss of the mixture by clusters that are narrower than the smallest variance, in nats.
    smallest_variances
        Smallest variance of a component in each feature, shape (n_features,); None where it is a
        millionth of the variance of the rows.
    matrix_mixture
        Mixture with covariance matrices of as many components, in the units of the data; None
        unless the map is for such mixtures, and there are enough rows.
    """

    n_rows: int
    variance: Array
    gaussian_score: float
    mixture: PilotMixture | None = None
    sampling_loss: float = 0.0
    clusters: Clusters | None = None
    characteristic: Complex | None = None
    clusters_excess: float = 0.0
    floor_loss: float = 0.0
    smallest_variances: Array | None = None
    matrix_mixture: MatrixMixture | None = None

    def as_dict(self) -> dict[str, Any]:
        """All values, for JSON; clusters and characteristic function only where there are some."""
        fit, parts, mixture = self.mixture, self.clusters, None
        if fit is not None:
            mixture = {
                "weights": fit.weights.tolist(),
                "means": fit.means.tolist(),
                "variances": fit.variances.tolist(),
                "score": fit.score,
            }
            if fit.probabilities is not None:
                mixture["probabilities"] = fit.probabilities.tolist()
        out: dict[str, Any] = {
            "n_rows": self.n_rows,
            "variance": self.variance.tolist(),
            "gaussian_score": self.gaussian_score,
            "sampling_loss": self.sampling_loss,
            "mixture": mixture,
        }
        if parts is not None:
            out["clusters"] = {
                "weights": parts.weights.tolist(),
                "centers": parts.centers.tolist(),
                "inertia": parts.inertia,
            } | ({"excess": self.clusters_excess} if self.clusters_excess else {})
        out |= {"floor_loss": self.floor_loss} if self.floor_loss else {}
        if self.smallest_variances is not None:
            out["smallest_variances"] = self.smallest_variances.tolist()
        if self.matrix_mixture is not None:
            stored = asdict(self.matrix_mixture).items()
            out["matrix_mixture"] = {name: np.asarray(each).tolist() for name, each in stored}
        if self.characteristic is not None:
            steps = np.rint(_STEPS * self.characteristic.view(np.float64)).astype(np.int8)
            out["characteristic"] = base64.b64encode(steps.tobytes()).decode()
        return out

    @property
    def floor(self) -> Array:
        """Smallest variance of a component in each feature, shape (n_features,)."""
        if self.smallest_variances is not None:
            return self.smallest_variances
        return MIN_VARIANCE * self.variance

    @property
    def checksum(self) -> str:
        """SHA-256 of all values, 64 hexadecimal digits."""
        return hashlib.sha256(json.dumps(self.as_dict(), sort_keys=True).encode()).hexdigest()

    @classmethod
    def from_dict(
        cls, values: Mapping[str, Any], n_features: int, n_frequencies: int | None = None
    ) -> Pilot:
        """Read the values of :meth:`as_dict`.

        Parameters
        ----------
        values
            Values of any origin.
        n_features
            Number of features that the arrays must have.
        n_frequencies
            Number of frequencies of the feature map, checked if given.

        Raises
        ------
        InputError
            If a value is missing or impossible.
        """
        try:
            stored, mixture = values["mixture"], None
            parts, clusters, excess = values.get("clusters"), None, 0.0
            if parts is not None:
                excess = float(parts.get("excess", 0.0))
                centers, weights = _numbers(parts["centers"]), _numbers(parts["weights"])
                clusters = Clusters(centers, weights, float(parts["inertia"]))
            if stored is not None:
                mixture = PilotMixture(
                    _numbers(stored["weights"]),
                    _numbers(stored["means"]),
                    _numbers(stored["variances"]),
                    float(stored["score"]),
                    _numbers(stored["probabilities"]) if "probabilities" in stored else None,
                )
            out = cls(
                int(values["n_rows"]),
                _numbers(values["variance"]),
                float(values["gaussian_score"]),
                mixture,
                float(values.get("sampling_loss", 0.0)),
                clusters,
                _characteristic(values.get("characteristic")),
                excess,
                float(values.get("floor_loss", 0.0)),
                _numbers(values["smallest_variances"]) if "smallest_variances" in values else None,
                _matrix_mixture(values.get("matrix_mixture")),
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise InputError(
                f"pilot={str(values)[:60]!r} is not a record of pilot rows: leave it out."
            ) from error
        pilot_mixture = out.mixture
        shapes: list[tuple[Array, tuple[int, ...]]] = [(out.variance, (n_features,))]
        if pilot_mixture is not None:
            k = pilot_mixture.weights.size
            shapes += [(pilot_mixture.weights, (k,)), (pilot_mixture.means, (k, n_features))]
            shapes += [(pilot_mixture.variances, (k, n_features))]
            probabilities = pilot_mixture.probabilities
            if probabilities is not None:
                shapes += [(probabilities, (k, probabilities.size // k))]
                if (probabilities < 0).any():
                    raise InputError("pilot holds probabilities that are negative.")
        if out.matrix_mixture is not None:
            shapes += _shapes_of_matrices(out.matrix_mixture, n_features)
        if out.smallest_variances is not None:
            shapes.append((out.smallest_variances, (n_features,)))
        if out.characteristic is not None:
            values_read = out.characteristic.view(np.float64)
            n_values = values_read.size if n_frequencies is None else 2 * n_frequencies
            shapes.append((values_read, (n_values,)))
        if clusters is not None:
            k = clusters.weights.size
            shapes += [(clusters.weights, (k,)), (clusters.centers, (k, n_features))]
        for array, shape in shapes:
            if array.shape != shape or not np.isfinite(array).all():
                raise InputError(
                    f"pilot has an array of shape {array.shape}: give finite numbers of shape "
                    f"{shape}."
                )
        losses = {"sampling_loss": out.sampling_loss, "excess": out.clusters_excess,
                  "floor_loss": out.floor_loss}  # fmt: skip
        for name, loss in losses.items():
            if not (np.isfinite(loss) and loss >= 0):
                raise InputError(f"pilot has {name}={loss!r}: give a number that is not negative.")
        if (
            (out.variance < 0).any()
            or (out.floor < 0).any()
            or (pilot_mixture is not None and (pilot_mixture.variances <= 0).any())
        ):
            raise InputError("pilot holds variances that are not positive.")
        for each in (pilot_mixture, clusters, out.matrix_mixture):
            if each is not None and not (
                (each.weights >= 0).all() and abs(each.weights.sum() - 1.0) < 1e-8
            ):
                raise InputError("pilot holds weights that are negative, or do not sum to one.")
        return out


def rounded_characteristic(values: Complex) -> Complex:
    """Round real and imaginary parts to 127ths, one byte each when stored.

    Parameters
    ----------
    values
        Values of a characteristic function, shape (n,), complex128.

    Examples
    --------
    >>> rounded_characteristic(np.array([1.0 + 0.5j])) * 127
    array([127.+64.j])
    """
    steps = np.rint(_STEPS * values.view(np.float64))
    return _characteristic_of(steps)


def _characteristic_of(steps: NDArray[Any]) -> Complex:
    out = (np.clip(steps, -_STEPS, _STEPS) / _STEPS).view(np.complex128)
    out.flags.writeable = False
    return out


def _characteristic(text: Any) -> Complex | None:
    """Values from their text; binascii.Error is a ValueError."""
    if text is None:
        return None
    content = base64.b64decode(text, validate=True)
    return _characteristic_of(np.frombuffer(content, np.int8).astype(np.float64))


def _matrix_mixture(stored: Any) -> MatrixMixture | None:
    if stored is None:
        return None
    weights, means, matrices = (
        _numbers(stored[name]) for name in ("weights", "means", "covariances")
    )
    loss = float(stored["sampling_loss"])
    return MatrixMixture(weights, means, matrices, float(stored["score"]), loss)


def _shapes_of_matrices(
    mixture: MatrixMixture, n_features: int
) -> list[tuple[Array, tuple[int, ...]]]:
    """Shapes that the arrays must have; an error for matrices that are not positive definite."""
    k, matrices = mixture.weights.size, mixture.covariances
    shapes: list[tuple[Array, tuple[int, ...]]] = [
        (mixture.weights, (k,)),
        (mixture.means, (k, n_features)),
        (matrices, (k, n_features, n_features)),
    ]
    if any(array.shape != shape or not np.isfinite(array).all() for array, shape in shapes):
        return shapes  # which are compared by the caller
    symmetric = np.array_equal(matrices, matrices.transpose(0, 2, 1))
    if not (symmetric and (np.linalg.eigvalsh(matrices) > 0.0).all()):
        raise InputError("pilot holds matrices that are not positive definite.")
    if not (np.isfinite(mixture.score) and 0.0 <= mixture.sampling_loss < np.inf):
        raise InputError(
            f"pilot has a mixture with score={mixture.score!r} and sampling_loss="
            f"{mixture.sampling_loss!r}: give finite numbers."
        )
    return shapes


def _numbers(values: Any) -> Array:
    out = np.array(values, dtype=np.float64)
    out.flags.writeable = False
    return out
