"""Standard errors of mixtures, where the weights of the rows depend on their values."""

from __future__ import annotations

import numpy as np

from dask_sketch.decoders.objectives.atoms import Array
from dask_sketch.sketching.row_sample import RowSample

_SMALLEST = 1e-12  # squared influence, over the largest one, below which it is rounding


def noise_factors(influences: Array, sample: RowSample) -> Array:
    """Factors of the standard errors of parameters, by the influence of random rows on them.

    A sketch knows the effective count of all rows, as if the weights did not depend on the values
    of the rows. Survey weights and those of importance sampling do: the rows that determine a
    parameter then have more of the noise than of the mass. The variance of a weighted mean is a sum
    of squares of the influences times squared weights (the sandwich formula of White 1982), and not
    of these times weights.

    Parameters
    ----------
    influences
        Influence of each row on each parameter, in any unit, shape (n_rows, n_parameters).
    sample
        Random rows, the first of which are those of the influences.

    Returns
    -------
    factors
        Shape (n_parameters,); one for rows of equal weights.

    Examples
    --------
    >>> weights, ones = np.array([1.0, 3.0, 1.0, 3.0]), np.ones(4)
    >>> sample = RowSample(np.zeros((4, 1)), weights, ones, ones, np.inf, 4)
    >>> noise_factors(np.array([[0.0, 1.0], [1.0, 0.0], [0.0, -1.0], [-1.0, 0.0]]), sample).round(2)
    array([1.1 , 0.63])
    """
    n = len(influences)
    mass, noise = sample.weights[:n], sample.noise_weights[:n]
    mass, noise = mass / mass.sum(), noise / noise.sum()
    squares = (influences - mass @ influences) ** 2
    expected = mass @ squares
    known = expected > _SMALLEST * expected.max(initial=0.0)
    ratio = np.divide(noise @ squares, expected, out=np.ones_like(expected), where=known)
    return np.asarray(np.sqrt(ratio))
