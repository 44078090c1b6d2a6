"""What a feature map says of itself: in words, in numbers for pictures, in notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from dask_sketch.diagnostics.pictures import FeatureMapPictures
    from dask_sketch.features.scale import ScaleFit


def brief(names: Sequence[str], most: int = 6) -> str:
    """The first few names.

    Examples
    --------
    >>> brief("abcdefgh")
    'a, b, c, d, e, f, ...'
    """
    return ", ".join([*names[:most], *(["..."] if len(names) > most else [])])


class Described:
    """The part of :class:`~dask_sketch.FeatureMap` that only tells; attributes are told there."""

    n_features: int
    n_frequencies: int
    scale: float | None
    covariances: NDArray[np.float64] | None
    law_weights: NDArray[np.float64] | None
    law: str
    seed: int
    dtype: str
    whitening: NDArray[np.float64] | None
    feature_names: tuple[str, ...] | None
    scale_fit: ScaleFit | None

    if TYPE_CHECKING:

        @property
        def law_variances(self) -> NDArray[np.float64]: ...  # noqa: D102
        @property
        def frequencies(self) -> NDArray[np.float64]: ...  # noqa: D102
        @cached_property
        def digest(self) -> str: ...  # noqa: D102

    @property
    def scaled_radii(self) -> NDArray[np.float64]:
        """Radius of each frequency in units of the component that the law expects, shape (m,).

        ``sqrt(sum_l omega_l**2 v_l)`` with the law's mean variances ``v``, so that the modulus of
        the characteristic function of such a component is ``exp(-radius**2 / 2)`` in any direction.
        """
        omega = self.frequencies
        if self.whitening is not None:
            omega = np.asarray(np.linalg.solve(self.whitening.T, omega), dtype=np.float64)
        variances = np.average(self.law_variances, axis=0, weights=self.law_weights)
        return np.asarray(np.sqrt(variances @ omega**2))

    @property
    def plot(self) -> FeatureMapPictures:
        """Pictures (extra ``plot``): ``feature_map.plot.scale_fit()``."""
        from dask_sketch.diagnostics.pictures import FeatureMapPictures

        return FeatureMapPictures(self)

    def __repr__(self) -> str:
        shape = f"n_features={self.n_features}, n_frequencies={self.n_frequencies}"
        scale = (
            f"scale={self.scale:.6g}" if self.covariances is None else f"scales {self._scales()}"
        )
        white = ", whitened" if self.whitening is not None else ""
        return (
            f"FeatureMap({shape}, law={self.law!r}, {scale}{white}, seed={self.seed}, "
            f"dtype={self.dtype!r}, digest={self.digest[:12]})"
        )

    def _scales(self) -> str:
        """Range of the standard deviations, in words."""
        low, high = np.sqrt(self.law_variances.min()), np.sqrt(self.law_variances.max())
        laws = f" in {len(self.law_variances)} laws" if len(self.law_variances) > 1 else ""
        return f"{low:.4g} to {high:.4g}{laws}"

    def _fields(self) -> dict[str, str]:
        """What a glance should show, in words."""
        scale = f"{self.scale:.6g}" if self.scale is not None else self._scales()
        names = "" if self.feature_names is None else f": {brief(self.feature_names)}"
        return {
            "features": f"{self.n_features}{names}",
            "frequencies": str(self.n_frequencies),
            "law": self.law,
            "scale": scale,
            "whitened": "yes" if self.whitening is not None else "no",
            "seed": str(self.seed),
            "precision": self.dtype,
            "digest": self.digest[:12],
        }

    def _repr_html_(self) -> str:
        from dask_sketch.display.sketches import feature_map_card

        return feature_map_card(self)
