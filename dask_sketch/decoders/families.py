"""Families of atoms: what a component may look like, and how its parameters say so.

An atom has the sketch (eq. 15 of Keriven et al. 2018)

    a_j = exp(g_j - i w_j.mean - w_j.diag(variances) w_j / 2) / sqrt(m),

and a family is an affine map from ``q`` shape parameters to variances, ``variances = shape @
spread``, beside an envelope ``g`` that all its atoms share:

- ``"gaussian"``: diagonal covariance; ``q = n_features``;
- ``"isotropic"``: one variance for all features, in the units of the data; ``q = 1``;
- ``"known"``: Gaussians of one fixed covariance, which is the envelope; ``q = 0``;
- ``"dirac"``: points; ``q = 0`` and no envelope;
- ``"scaled"``: a multiple of the variances that the frequency law expects, feature by feature;
  ``q = 1``. It is isotropic where the law is, and no model of :func:`dask_sketch.decode`: the
  density that centroids divide is made of it, so that the units of features do not matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from dask_sketch.errors import DecodeError

Array = npt.NDArray[np.float64]
Model = Literal["gaussian", "isotropic", "known", "dirac"]
MODELS: tuple[str, ...] = get_args(Model)
FAMILIES = (*MODELS, "scaled")


@dataclass(frozen=True)
class Family:
    """One family, in coordinates where each feature is divided by a scale of its own.

    Attributes
    ----------
    name
        One of ``FAMILIES``.
    diagonal
        Whether covariances are diagonal.
    spread
        Variances of a shape, shape (q, n_features), in normalised coordinates; all one-entries of
        a shape make the frequency law's mean component variance, or its mean over features.
    log_envelope
        Natural logarithm ``g`` of what all atoms share, shape (n_frequencies,).
    fixed
        The part of each component's variances that no parameter changes, shape (n_features,), in
        data units.
    """

    name: str
    diagonal: bool
    spread: Array
    log_envelope: Array
    fixed: Array

    def nearest(self, variances: Array) -> Array:
        """Shapes (..., q) nearest to variances (..., n_features) in normalised coordinates.

        A parameter is the mean, over the features it spans, of variances in units of its spread.
        """
        spans = self.spread > 0.0
        each = np.divide(spans, self.spread, out=np.zeros_like(self.spread), where=spans)
        return np.asarray(variances @ (each / spans.sum(axis=1, keepdims=True)).T)


def family(model: str, scale: Array, frequencies: Array, covariance: Array | None) -> Family:
    """Build a family.

    Parameters
    ----------
    model
        One of ``FAMILIES``.
    scale
        Unit of each feature, in data units, shape (n_features,).
    frequencies
        In inverse data units, shape (n_features, n_frequencies).
    covariance
        For ``"known"`` alone, in data units: variances (n_features,) or a symmetric positive
        semidefinite matrix (n_features, n_features).

    Raises
    ------
    DecodeError
        If the model is unknown, or the covariance is missing, superfluous, or none.
    """
    if model not in FAMILIES:
        raise DecodeError(f"model={model!r} is unknown; choose one of {', '.join(MODELS)}.")
    if (covariance is not None) != (model == "known"):
        raise DecodeError(
            'model="known" needs covariance, the variances or the covariance matrix of every '
            "component."
            if covariance is None
            else f'covariance is given, but model={model!r} has no use for it: give model="known".'
        )
    d, m = frequencies.shape
    fixed, log_envelope, diagonal = np.zeros(d), np.zeros(m), True
    if covariance is not None:
        matrix = _covariance_matrix(covariance, d)
        fixed = np.diagonal(matrix).copy()
        diagonal = bool((matrix == np.diag(fixed)).all())
        log_envelope = -0.5 * np.einsum("ij,ij->j", frequencies, matrix @ frequencies)
    spread = {
        "gaussian": np.eye(d),
        "isotropic": (scale @ scale / d / scale**2)[None, :],
        "scaled": np.ones((1, d)),
    }.get(model, np.empty((0, d)))
    return Family(model, diagonal, spread, log_envelope, fixed)


def _covariance_matrix(covariance: Array, d: int) -> Array:
    """The known covariance as a matrix (n_features, n_features), checked."""
    try:
        given = np.asarray(covariance, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DecodeError(f"covariance={covariance!r} is not an array of numbers.") from error
    if given.shape not in ((d,), (d, d)):
        raise DecodeError(
            f"covariance has shape {given.shape}; for n_features={d} give ({d},) or ({d}, {d})."
        )
    matrix = np.diag(given) if given.ndim == 1 else given
    if not np.isfinite(matrix).all():
        raise DecodeError("covariance holds NaN or infinity; give finite variances.")
    if not np.allclose(matrix, matrix.T):
        raise DecodeError("covariance is not symmetric.")
    lowest = np.linalg.eigvalsh(matrix)[0]
    if lowest < -1e-10 * np.abs(matrix).max():
        raise DecodeError(
            f"covariance has the eigenvalue {lowest:g}; give one without negative eigenvalues."
        )
    return matrix
