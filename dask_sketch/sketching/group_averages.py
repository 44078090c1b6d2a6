"""What the sums of groups of samples say: averages in float64, and how far groups are apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dask_sketch.features import FeatureMap
from dask_sketch.features.fixed_point import (
    FEATURE_FRACTION,
    FRACTION,
    SQUARED_FRACTION,
    WEIGHT_FRACTION,
)
from dask_sketch.features.stacked_steps import StackedSteps
from dask_sketch.features.units import moment_units
from dask_sketch.storage import Stored

if TYPE_CHECKING:
    import xarray as xr

    from dask_sketch.diagnostics.pictures import GroupPictures


class GroupAverages(Stored):
    """The part of :class:`~dask_sketch.SketchGroup` that only reads; attributes are told there."""

    feature_map: FeatureMap
    labels: NDArray[Any]
    moment_steps: StackedSteps
    weight_steps: StackedSteps
    squared_weight_steps: StackedSteps
    count: NDArray[np.int64]
    omitted: NDArray[np.int64]
    minimum: NDArray[np.float64]
    maximum: NDArray[np.float64]
    first_steps: StackedSteps
    second_steps: StackedSteps
    tight_bounds: NDArray[np.bool_]
    unlabelled: int
    dim: str

    # -- the sums, in float64 ----------------------------------------------------------------

    @property
    def total_weight(self) -> NDArray[np.float64]:
        """Sums of the weights, shape (n_groups,)."""
        return _quotients(self.weight_steps, WEIGHT_FRACTION)

    @property
    def squared_weight(self) -> NDArray[np.float64]:
        """Sums of the squares of the weights, shape (n_groups,)."""
        return _quotients(self.squared_weight_steps, SQUARED_FRACTION)

    @property
    def effective_count(self) -> NDArray[np.float64]:
        """Kish's ``(sum w)**2 / sum w**2``, shape (n_groups,); zero for a group without weight."""
        squared = self.squared_weight
        return self.total_weight**2 / np.where(squared > 0, squared, np.inf)

    def characteristic(self, rows: slice = slice(None)) -> NDArray[np.complex128]:
        """Empirical characteristic functions at the frequencies, shape (n_groups, n_frequencies).

        NaN for a group without weight.

        Parameters
        ----------
        rows
            Of which groups: all of them take 16 bytes for each group and frequency.
        """
        parts = self.moment_steps.fixed_point(rows).to_float(FRACTION)
        weight = self.total_weight[rows]
        with np.errstate(invalid="ignore"):  # nothing over nothing
            means = (parts[:, 0] + 1j * parts[:, 1]) / weight[:, None]
        return np.exp(-1j * (self.feature_map.center @ self.feature_map.frequencies)) * means

    @property
    def z(self) -> NDArray[np.complex128]:
        """The sketch vectors of eq. (13), shape (n_groups, n_frequencies); see :attr:`Sketch.z`."""
        return self.characteristic() / np.sqrt(self.feature_map.n_frequencies)

    @property
    def mean(self) -> NDArray[np.float64]:
        """Mean of each group, shape (n_groups, n_features); NaN for a group without weight."""
        return self.feature_map.center + self._average(self.first_steps)

    @property
    def variance(self) -> NDArray[np.float64]:
        """Variance of each group in each feature, shape (n_groups, n_features); as :attr:`mean`."""
        mean, unit = self._average(self.first_steps), moment_units(self.feature_map)
        return np.maximum(self._average(self.second_steps) * unit - mean**2, 0.0)

    def _average(self, steps: StackedSteps) -> NDArray[np.float64]:
        sums = steps.fixed_point(slice(None)).to_float(FEATURE_FRACTION)
        with np.errstate(invalid="ignore"):  # nothing over nothing
            return sums * moment_units(self.feature_map) / self.total_weight[:, None]

    # -- what it says of pairs ---------------------------------------------------------------

    def mmd(self, *, squared: bool = False) -> xr.DataArray:
        """Maximum mean discrepancy of every two groups, without what noise adds to it.

        The kernel is that of the feature map, with the weights of its features if it has them.

        Parameters
        ----------
        squared
            Give the unbiased estimates of its square, which are below zero now and then where two
            groups have one law; else their root, and 0 for these.

        Returns
        -------
        matrix
            Shape (n_groups, n_groups), dimensions ``dim`` and ``other_`` with its name. NaN for
            groups of less than two samples: of them there is no saying what is noise.

        Raises
        ------
        InputError
            If the matrix needs more memory than there is; ``select`` some groups.

        References
        ----------
        Gretton, Borgwardt, Rasch, Schölkopf, Smola (2012), A kernel two-sample test.

        Examples
        --------
        >>> from dask_sketch import partial_groups
        >>> x = np.random.default_rng(0).normal(size=(3000, 2))
        >>> label = np.arange(3000) % 3
        >>> x[label == 2] += 1.0
        >>> matrix = partial_groups(x, FeatureMap(2, 100, scale=1.0), label).mmd()
        >>> matrix.dims, bool(matrix.sel(group=0, other_group=2) > 5 * matrix[0, 1])
        (('group', 'other_group'), True)
        """
        from dask_sketch.sketching.group_distances import discrepancies

        return discrepancies(self, squared)

    @property
    def plot(self) -> GroupPictures:
        """Pictures (extra ``plot``): ``group.plot.mmd()``."""
        from dask_sketch.diagnostics.pictures import GroupPictures

        return GroupPictures(self)

    # -- the rest ----------------------------------------------------------------------------

    def to_xarray(self) -> xr.Dataset:
        """Sketch vectors, counts, weights, means and bounds as a labelled dataset, in float64."""
        from dask_sketch.sketching.group_artifact import to_dataset

        return to_dataset(self)

    def _artifact(self) -> tuple[xr.Dataset, str, int]:
        from dask_sketch.sketching.group_artifact import SCHEMA, VERSION, stored

        return stored(self), SCHEMA, VERSION

    @property
    def nbytes(self) -> int:
        """Bytes of all sums, bounds, counts and labels."""
        stacks = (
            self.moment_steps,
            self.weight_steps,
            self.squared_weight_steps,
            self.first_steps,
            self.second_steps,
        )
        arrays = (self.labels, self.count, self.omitted, self.minimum, self.maximum)
        return sum(each.nbytes for each in (*stacks, *arrays, self.tight_bounds))

    def __len__(self) -> int:
        return len(self.labels)

    def __sizeof__(self) -> int:
        # what Dask's memory accounting sees
        return object.__sizeof__(self) + self.feature_map.__sizeof__() + self.nbytes

    def _fields(self) -> dict[str, str]:
        return {
            "groups": f"{len(self):,} of {self.dim}",
            "samples": f"{int(self.count.sum()):,}",
        }

    def __repr__(self) -> str:
        shown = ", ".join(f"{name} {value}" for name, value in self._fields().items())
        return f"<SketchGroup: {shown}; {self.feature_map!r}>"

    def _repr_html_(self) -> str:
        from dask_sketch.display.sketches import group_card

        fields = {"rows left out": f"{int(self.omitted.sum()):,}", "rows without a label":
                  f"{self.unlabelled:,}", "size": f"{self.nbytes / 1e3:,.1f} kB"}  # fmt: skip
        return group_card(self.labels, self.count, self.dim, fields, self.feature_map)


def _quotients(steps: StackedSteps, fraction: int) -> NDArray[np.float64]:
    return np.array([number / (1 << fraction) for number in steps.integers()], dtype=np.float64)
