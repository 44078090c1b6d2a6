"""What the sums of a sketch say: averages in float64."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dask_sketch.errors import InputError
from dask_sketch.features import FeatureMap
from dask_sketch.features.fixed_point import (
    FEATURE_FRACTION,
    FRACTION,
    SQUARED_FRACTION,
    WEIGHT_FRACTION,
    FixedPoint,
)
from dask_sketch.features.units import moment_units
from dask_sketch.sketching.privacy import Privacy

if TYPE_CHECKING:
    from dask_sketch.diagnostics.pictures import SketchPictures


class Averages:
    """The part of :class:`~dask_sketch.Sketch` that only reads; its attributes are told there."""

    feature_map: FeatureMap
    moment_steps: FixedPoint
    weight_steps: int
    squared_weight_steps: int
    count: int
    omitted: int
    minimum: NDArray[np.float64]
    maximum: NDArray[np.float64]
    first_steps: FixedPoint
    second_steps: FixedPoint
    privacy: Privacy | None

    # -- the sums, in float64 ----------------------------------------------------------------

    @cached_property
    def moment_sum(self) -> NDArray[np.complex128]:
        """``sum_i w_i exp(-i omega_j . (x_i - center))``, shape (n_frequencies,), complex128.

        With the center of the feature map; :attr:`z` puts the center back.
        """
        real, imaginary = self.moment_steps.to_float(FRACTION)
        return _read_only(real + 1j * imaginary)

    @property
    def total_weight(self) -> float:
        """Sum of the weights."""
        return self.weight_steps / (1 << WEIGHT_FRACTION)

    @property
    def squared_weight(self) -> float:
        """Sum of the squares of the weights."""
        return self.squared_weight_steps / (1 << SQUARED_FRACTION)

    @cached_property
    def first_moment(self) -> NDArray[np.float64]:
        """``sum_i w_i (x_i - center)``, shape (n_features,)."""
        unit = moment_units(self.feature_map)
        return _read_only(self.first_steps.to_float(FEATURE_FRACTION) * unit)

    @cached_property
    def second_moment(self) -> NDArray[np.float64]:
        """``sum_i w_i (x_i - center)**2``, shape (n_features,)."""
        unit = moment_units(self.feature_map)
        return _read_only(self.second_steps.to_float(FEATURE_FRACTION) * unit**2)

    # -- what it says ------------------------------------------------------------------------

    @property
    def z(self) -> NDArray[np.complex128]:
        """The sketch vector of eq. (13), shape (n_frequencies,), complex128.

        ``z_j = 1 / sqrt(m) * sum_i w_i exp(-i omega_j . x_i) / sum_i w_i``, so that ``|z| <= 1``.

        Raises
        ------
        InputError
            If the total weight is zero.
        """
        return self.characteristic / np.sqrt(self.feature_map.n_frequencies)

    @property
    def characteristic(self) -> NDArray[np.complex128]:
        """Empirical characteristic function at the frequencies: :attr:`z` times ``sqrt(m)``."""
        self._require_weight()
        phase = self.feature_map.center @ self.feature_map.frequencies
        return np.asarray(np.exp(-1j * phase) * (self.moment_sum / self.total_weight))

    @property
    def mean(self) -> NDArray[np.float64]:
        """Mean of the data, shape (n_features,).

        Raises
        ------
        InputError
            If the total weight is zero, or the sketch was privatised: it holds no moments then.
        """
        self._require_moments()
        return self.feature_map.center + self.first_moment / self.total_weight

    @property
    def variance(self) -> NDArray[np.float64]:
        """Variance of the data in each feature, shape (n_features,), ``>= 0``; as :attr:`mean`."""
        self._require_moments()
        mean = self.first_moment / self.total_weight
        return np.maximum(self.second_moment / self.total_weight - mean**2, 0.0)

    @property
    def extent(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Where the data lies, for decoders: :attr:`mean` and :attr:`variance`.

        A private sketch holds neither; of it, those of the even law between its bounds.
        """
        if self.privacy is None:
            return self.mean, self.variance
        width = self.maximum - self.minimum
        return self.minimum + width / 2, width**2 / 12

    @property
    def private_variance(self) -> float:
        """What privatising adds to the variance of each real number of :attr:`characteristic`.

        Mean over the entries, their real and imaginary parts; 0 if nothing was added.
        """
        if self.privacy is None:
            return 0.0
        self._require_weight()
        moments = (self.privacy.moment_deviation / self.total_weight) ** 2
        weight = (self.privacy.weight_deviation / self.total_weight) ** 2
        energy = min(float(np.mean(np.abs(self.moment_sum / self.total_weight) ** 2)), 1.0)
        return moments + energy * weight / 2

    @property
    def effective_count(self) -> float:
        """Kish's ``(sum w)**2 / sum w**2``: the count, when all weights are equal."""
        return self.total_weight**2 / self.squared_weight if self.squared_weight else 0.0

    @property
    def noise_level(self) -> float:
        """Expected ``|z_hat - z|**2``: ``(1 - |z|**2) / n`` with the effective count as ``n``.

        Of a private sketch, the noise that was added comes on top.
        """
        self._require_weight()
        added = 2.0 * self.private_variance
        energy = np.vdot(self.z, self.z).real - added
        return float((1.0 - energy) / self.effective_count) + added

    @property
    def noise_modulus(self) -> float:
        """Modulus that :attr:`characteristic` has where that of the samples' law is zero.

        ``1 / sqrt(n)``, with the effective count as ``n``, and what privatising added.

        Raises
        ------
        InputError
            If the total weight is zero.
        """
        self._require_weight()
        return float(np.sqrt(1.0 / self.effective_count + 2.0 * self.private_variance))

    @property
    def plot(self) -> SketchPictures:
        """Pictures (extra ``plot``): ``sketch.plot.moduli()``."""
        from dask_sketch.diagnostics.pictures import SketchPictures

        return SketchPictures(self)

    def _require_weight(self) -> None:
        if not self.total_weight > 0:
            raise InputError(
                f"the sketch is empty: total weight {self.total_weight:g}, {self.count} samples, "
                f"{self.omitted} omitted. Nothing can be averaged."
            )

    def _require_moments(self) -> None:
        self._require_weight()
        if self.privacy is not None:
            raise InputError(
                "a private sketch holds no mean and no variance of the data: decode a model and "
                "take its own."
            )

    def _fields(self) -> dict[str, str]:
        """What a glance should show, in words."""
        out = {
            "samples": f"{self.count:,}",
            "omitted": f"{self.omitted:,}",
            "total weight": f"{self.total_weight:,.6g}",
        }
        if self.total_weight > 0:
            out["|z|"] = f"{np.linalg.norm(self.z):.4f}"
            out["noise of z"] = f"{np.sqrt(max(self.noise_level, 0.0)):.2e}"
        if self.privacy is not None:
            out |= self.privacy._fields()
        out["size"] = f"{self.__sizeof__() / 1e3:,.1f} kB"
        return out

    def __repr__(self) -> str:
        shown = ", ".join(f"{name} {value}" for name, value in self._fields().items())
        return f"<Sketch: {shown}; {self.feature_map!r}>"

    def _repr_html_(self) -> str:
        from dask_sketch.display.sketches import sketch_card

        return sketch_card(self)


def _read_only(view: NDArray[Any]) -> NDArray[Any]:
    view.flags.writeable = False
    return view
