"""How many frequencies a task needs."""

from __future__ import annotations

import warnings


def default_n_frequencies(n_features: int, n_components: int, task: str = "mixture") -> int:
    """Five times the number of parameters: ``5 (2 d + 1) K`` for mixtures (section 5.5).

    For clustering, ``5 (d + 1) K``.

    Examples
    --------
    >>> default_n_frequencies(n_features=10, n_components=5)
    525
    >>> default_n_frequencies(n_features=10, n_components=5, task="clustering")
    275
    """
    return 5 * ((2 if task == "mixture" else 1) * n_features + 1) * n_components


def warn_if_few(
    n_frequencies: int,
    n_features: int,
    n_components: int,
    task: str = "mixture",
    stacklevel: int = 3,
) -> None:
    """Warn below the number of frequencies under which estimation breaks down (section 5.5)."""
    needed = default_n_frequencies(n_features, n_components, task)
    if n_frequencies < needed:
        rule = "5(2d+1)K" if task == "mixture" else "5(d+1)K"
        warnings.warn(
            f"n_frequencies={n_frequencies} is under {rule} = {needed} for {n_components} "
            f"components of {n_features} features: estimates may fail. Take {needed} or more.",
            UserWarning,
            stacklevel=stacklevel,
        )
