"""How many frequencies a mixture needs."""

from __future__ import annotations

import warnings


def default_n_frequencies(n_features: int, n_components: int) -> int:
    """``5 (2 d + 1) K``, five times the number of free parameters (section 5.5).

    Examples
    --------
    >>> default_n_frequencies(n_features=10, n_components=5)
    525
    """
    return 5 * (2 * n_features + 1) * n_components


def warn_if_few(
    n_frequencies: int, n_features: int, n_components: int, stacklevel: int = 3
) -> None:
    """Warn below the number of frequencies under which estimation breaks down (section 5.5)."""
    needed = default_n_frequencies(n_features, n_components)
    if n_frequencies < needed:
        warnings.warn(
            f"n_frequencies={n_frequencies} is under 5(2d+1)K = {needed} for {n_components} "
            f"components of {n_features} features: estimates may fail. Take {needed} or more.",
            UserWarning,
            stacklevel=stacklevel,
        )
