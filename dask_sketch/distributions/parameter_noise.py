"""First-order noise of the parameters of a mixture: sizes, scores, information and covariance."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import null_space, pinvh

from dask_sketch.errors import InputError
from dask_sketch.models.gaussian_mixture import GaussianMixture
from dask_sketch.validation.choices import rank_of, uses_matrices
from dask_sketch.validation.warn import warn_user

Array = NDArray[np.float64]
# Gain of maximum likelihood over the fit to the sketch from which the data is not such a mixture,
# in nats a sample: it was up to .008 for mixtures, and .024 or more for skewed data.
_MIN_GAIN = 0.01


def scores(mixture: GaussianMixture, x: Array) -> Array:
    """Compute the derivatives of the log-density by the parameters of a mixture.

    Parameters
    ----------
    mixture
        Mixture.
    x
        Points, shape (n, n_features).

    Returns
    -------
    scores
        Derivatives, shape (n, n_parameters), with respect to the weights (their sum stays one), the
        means, and the covariances in the layout of the mixture; for matrices, the lower triangles.

    Examples
    --------
    >>> normal = GaussianMixture([1.0], [[0.0]], [[4.0]])
    >>> scores(normal, np.array([[2.0], [4.0]]))
    array([[0.   , 0.5  , 0.   ],
           [0.   , 1.   , 0.375]])
    """
    posterior = mixture.density().posterior(x)
    heavy = np.maximum(mixture.weights, np.finfo(float).tiny)
    columns = [posterior / heavy - 1.0]
    means, covariances = zip(*_component_scores(mixture, x, posterior), strict=True)
    columns += means
    if mixture.covariance_type == "tied":
        columns.append(np.sum(covariances, axis=0))
    else:
        columns += covariances
    return np.concatenate(columns, axis=1)


def _component_scores(
    mixture: GaussianMixture, x: Array, posterior: Array
) -> Iterator[tuple[Array, Array]]:
    """Scores of the mean and of the covariance of each component."""
    d, kind = mixture.n_features, mixture.covariance_type
    if uses_matrices(kind):
        rows, columns = np.tril_indices(d)
        twice = np.where(rows == columns, 0.5, 1.0)  # the upper triangle repeats the lower one
        precisions = np.linalg.inv(mixture.covariance_matrices)
    for k in range(mixture.n_components):
        responsibility, gap = posterior[:, k, None], x - mixture.means[k]
        if uses_matrices(kind):
            pull = gap @ precisions[k]
            if rank_of(kind) is not None:  # noise variances and loadings, interleaved
                yield (
                    responsibility * pull,
                    responsibility * _factor_scores(mixture.covariances[k], pull, precisions[k]),
                )
                continue
            square = pull[:, rows] * pull[:, columns] - precisions[k][rows, columns]
            yield responsibility * pull, responsibility * twice * square
            continue
        variances = mixture.variances[k]
        pull = gap / variances
        square = 0.5 * (pull**2 - 1.0 / variances)
        if kind == "spherical":
            square = square.sum(axis=1, keepdims=True)
        yield responsibility * pull, responsibility * square


def _factor_scores(factors: Array, pull: Array, precision: Array) -> Array:
    """Scores of noise variances and loadings, by the chain rule from scores of the matrix."""
    loadings = factors[:, 1:]
    by_noise = 0.5 * (pull**2 - np.diagonal(precision))
    by_loading = pull[:, :, None] * (pull @ loadings)[:, None, :] - precision @ loadings
    return np.concatenate([by_noise[:, :, None], by_loading], axis=2).reshape(len(pull), -1)


def n_parameters(mixture: GaussianMixture) -> int:
    """Number of columns of :func:`scores`."""
    k, d = mixture.means.shape
    if mixture.covariance_type in ("full", "tied"):
        return k * (1 + d) + mixture.covariances.size // d * (d + 1) // 2
    return int(k * (1 + d) + mixture.covariances.size)


def standard_errors(mixture: GaussianMixture) -> Array:
    """Standard errors of the parameters of a mixture that has them, in the order of its scores."""
    errors = mixture.stderr
    assert errors is not None
    covariances = errors.covariances
    if uses_matrices(mixture.covariance_type):
        rows, columns = np.tril_indices(mixture.n_features)
        covariances = covariances[..., rows, columns]
    return np.concatenate([errors.weights, errors.means.ravel(), covariances.ravel()])


def likelihood_covariance(information: Array, n_components: int) -> Array:
    """Covariance of the maximum likelihood estimate of the parameters, times the sample size.

    Parameters
    ----------
    information
        Fisher information of one sample in the order of :func:`scores`, shape (n_parameters,
        n_parameters).
    n_components
        Number of weights, which come first and sum to one.

    Returns
    -------
    covariance
        Shape (n_parameters, n_parameters).
    """
    basis = np.eye(len(information))[:, 1:]
    # changes of weights sum to zero
    basis[:n_components, : n_components - 1] = null_space(np.ones((1, n_components)))
    return np.asarray(basis @ pinvh(basis.T @ information @ basis) @ basis.T)


def rescaled(covariance: Array, errors: Array) -> Array:
    """Rescale a covariance to given standard errors, with the same correlations.

    A mixture has standard errors without correlations, which are large between parameters of
    components that overlap.

    Parameters
    ----------
    covariance
        Covariance with these correlations, shape (n_parameters, n_parameters).
    errors
        Standard errors, shape (n_parameters,).
    """
    deviations = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    scale = np.divide(errors, deviations, out=np.zeros_like(errors), where=deviations > 0)
    return np.asarray(scale[:, None] * covariance * scale)


def sample_sizes(
    n_samples: Any, mixtures: tuple[GaussianMixture, GaussianMixture]
) -> tuple[float, float] | None:
    """Validate numbers of samples, and warn of mixtures that do not fit their data.

    Parameters
    ----------
    n_samples
        Numbers of samples that the mixtures were fitted to, or None.
    mixtures
        The mixtures.

    Raises
    ------
    InputError
        If ``n_samples`` does not hold two numbers of at least one.
    """
    if n_samples is None:
        return None
    try:
        sizes = tuple(float(n) for n in n_samples)
    except (TypeError, ValueError):
        sizes = ()
    if len(sizes) != 2 or not min(sizes) >= 1.0:
        raise InputError(f"n_samples={n_samples!r}: give two numbers of samples, each >= 1.")
    for name, mixture, size in zip(("first", "second"), mixtures, sizes, strict=True):
        gain = None if mixture.decoding is None else mixture.decoding.gain
        if gain is not None and gain > max(_MIN_GAIN, n_parameters(mixture) / size):
            warn_user(
                f"the data of {name} is not a mixture of {mixture.n_components} Gaussians, by "
                f"{gain:.2g} nats a sample: fits to samples of one distribution may be different "
                "local maxima of the likelihood, so that the interval may exclude 0. Compare rows, "
                "as in divergence(x, y), or test with compare(), which assume no model."
            )
            break
    return sizes[0], sizes[1]
