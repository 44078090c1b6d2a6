"""Standard errors of mixtures, where the weights of the rows depend on their values."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dask_sketch.models.gaussian_mixture import GaussianMixture
from dask_sketch.models.model import StandardErrors
from dask_sketch.sketching.row_sample import RowSample


def errors_of_weighted_rows(
    errors: StandardErrors, mixture: GaussianMixture, sample: RowSample | None
) -> StandardErrors:
    """Standard errors with the noise of the rows of each component, from random rows.

    A sketch knows the effective count of all rows, as if the weights did not depend on the values
    of the rows. Survey weights and those of importance sampling do: the rows of one component then
    have more of the noise than of the mass.

    Parameters
    ----------
    errors
        Standard errors for weights that do not depend on the rows.
    mixture
        Mixture of these errors.
    sample
        Random rows of the sketch, if it carries any.

    Returns
    -------
    errors
        The same errors without random rows, or if these have equal weights.

    Examples
    --------
    >>> mixture = GaussianMixture([0.5, 0.5], [[-9.0], [9.0]], [[1.0], [1.0]])
    >>> given = StandardErrors(np.full(2, 0.1), np.full((2, 1), 0.1), np.full((2, 1), 0.1))
    >>> rows = np.repeat([[-9.0], [9.0]], [30, 10], axis=0)
    >>> weights, ones = np.repeat([1.0, 3.0], [30, 10]), np.ones(40)
    >>> sample = RowSample(rows, weights, ones, ones, np.inf, 40)
    >>> errors_of_weighted_rows(given, mixture, sample).means.ravel().round(3)
    array([0.071, 0.122])
    """
    if sample is None or not sample.is_weighted:
        return errors
    responsibilities = mixture.predict_proba(np.asarray(sample.rows, dtype=np.float64))
    mass, noise = sample.weights @ responsibilities, sample.noise_weights @ responsibilities
    if not (mass > 0.0).all():
        return errors
    own = np.sqrt(noise / mass)  # of the deviations within a component
    between = np.ones(len(mass))
    several = mass < 1.0 - 1e-12  # up to rounding
    between[several] = np.sqrt(
        ((1.0 - mass) ** 2 * noise + mass**2 * (1.0 - noise))[several]
        / (mass * (1.0 - mass))[several]
    )
    factors = {
        name: own.reshape(-1, *[1] * (values.ndim - 1)) * values
        for name in ("means", "covariances", "noise_variances")
        if (values := getattr(errors, name)) is not None
    }
    if mixture.covariance_type == "tied":
        del factors["covariances"]  # of all rows together
    return replace(errors, weights=between * errors.weights, **factors)
