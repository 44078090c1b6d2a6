"""Random mixtures to test decoders with (Keriven et al. 2018, sections 5.1 and 5.4)."""

from __future__ import annotations

import numpy as np

from dask_sketch.errors import InputError
from dask_sketch.features.arguments import whole_number
from dask_sketch.models.mixture import GaussianMixture


def random_mixture(
    n_components: int,
    n_features: int,
    seed: int = 0,
    weights: str = "uniform",
    anisotropy: float = 1.0,
) -> GaussianMixture:
    """Draw a mixture whose components overlap a little, whatever the sizes.

    Variances are ``U(0.25, 1.75)``, one on average, and means ``N(0, K**(2 / d) I)``: as much
    volume as ``K`` components of variance one.

    Parameters
    ----------
    n_components, n_features
        Sizes ``K`` and ``d``, ``>= 1``.
    seed
        Seed of the draw.
    weights
        ``"uniform"``, or ``"dirichlet"`` for a uniform draw from the simplex. (The paper does not
        say how weights are drawn.)
    anisotropy
        Factor ``A > 0`` of section 5.4: the first half of the features is divided by it, so that
        features have different ranges.

    Returns
    -------
    mixture

    Raises
    ------
    InputError
        If an argument is out of range.

    Examples
    --------
    >>> random_mixture(3, 2, seed=0).means.shape
    (3, 2)
    """
    for name, value in (("n_components", n_components), ("n_features", n_features)):
        whole_number(name, value, 1)
    if weights not in ("uniform", "dirichlet"):
        raise InputError(f"weights={weights!r} is unknown; choose 'uniform' or 'dirichlet'.")
    if not (np.isfinite(anisotropy) and anisotropy > 0):
        raise InputError(f"anisotropy={anisotropy!r}: give a positive factor.")
    rng = np.random.default_rng(whole_number("seed", seed, 0))
    shape = (n_components, n_features)
    means = rng.standard_normal(shape) * n_components ** (1.0 / n_features)
    variances = rng.uniform(0.25, 1.75, shape)
    share = np.full(n_components, 1.0 / n_components)
    if weights == "dirichlet":
        share = rng.dirichlet(np.ones(n_components))
    half = n_features // 2
    means[:, :half] /= anisotropy
    variances[:, :half] /= anisotropy**2
    return GaussianMixture(share, means, variances)
