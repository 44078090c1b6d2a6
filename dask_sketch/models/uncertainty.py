"""Standard errors of the parameters of a mixture, and the intervals they give."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from dask_sketch.errors import InputError
from dask_sketch.models.parameters import finite

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class StandardErrors:
    """How far off each parameter of a mixture is, one standard deviation.

    They are those of an infinitely large sample of the mixture itself, divided by the root of the
    number of samples: right when the data is such a mixture, and too small when it is none.

    Parameters
    ----------
    weights
        Shape (n_components,). Weights sum to one, so that their errors are correlated.
    means, covariances
        Shape (n_components, n_features), in the units of the means and of the variances. Zero for
        parameters that were held on a bound.
    """

    weights: Array
    means: Array
    covariances: Array

    def __post_init__(self) -> None:
        for field in fields(self):
            object.__setattr__(self, field.name, finite(field.name, getattr(self, field.name)))
            if (getattr(self, field.name) < 0.0).any():
                raise InputError(f"{field.name} holds negative standard errors.")
        if self.means.ndim != 2 or self.covariances.shape != self.means.shape:
            raise InputError(
                f"standard errors of means have shape {self.means.shape}, of covariances "
                f"{self.covariances.shape}: give (n_components, n_features) for both."
            )
        if self.weights.shape != self.means.shape[:1]:
            raise InputError(
                f"standard errors of weights have shape {self.weights.shape}; for "
                f"{len(self.means)} components give ({len(self.means)},)."
            )
