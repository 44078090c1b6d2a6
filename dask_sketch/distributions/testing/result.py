"""Result of a test of two sets of sketches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from dask_sketch.display.html import card, html_table
from dask_sketch.display.text import describe, fields_text, text_table

_SHOWN = 5  # features in a table
ROUNDING = 1e-7  # discrepancy below which two sketches are equal
LARGEST = 2.0 - 1e-6  # discrepancy of distributions that share nothing


@dataclass(frozen=True)
class FeatureDifference:
    """Difference of two sides in one feature.

    Attributes
    ----------
    name
        Name or number of the feature.
    p_value
        P-value adjusted for the number of features.
    means, deviations
        Means and standard deviations of the feature on the two sides.
    """

    name: str
    p_value: float
    means: tuple[float, float]
    deviations: tuple[float, float]


@dataclass(frozen=True, repr=False)
class TwoSampleTest:
    """Result of :func:`compare`; prints as a sentence and a table.

    Attributes
    ----------
    p_value
        Probability of a difference at least as large if both sides have one distribution.
    smallest_p_value
        Smallest p-value that is possible with these numbers of units and permutations.
    discrepancy
        Maximum mean discrepancy, from 0 to 2: the size of the difference.
    squared
        Unbiased estimate of the squared discrepancy, which may be negative.
    interval
        Confidence interval of the discrepancy.
    level
        Level of the test, and 1 minus the coverage of the interval.
    tolerance
        Largest discrepancy that does not matter.
    tolerance_p_value
        P-value of the hypothesis that the discrepancy is at most the tolerance.
    dim
        Name of a unit.
    n_units
        Numbers of units on the two sides.
    n_strata
        Number of strata within which units were permuted.
    n_permutations
        Number of assignments of units to sides, including the observed one; with
        ``method="cross"``, number of splits of the units.
    is_complete
        Whether all possible assignments or splits were used.
    features
        Differences of the features, the most significant first.
    method
        ``"permutation"`` or ``"cross"``.
    statistic
        Statistic that was chosen on a fold of the units, see ``fold`` of :func:`compare`; None if
        all units were tested by all statistics. The units of the fold are counted in ``n_units``.
    """

    p_value: float
    smallest_p_value: float
    discrepancy: float
    squared: float
    interval: tuple[float, float]
    level: float
    tolerance: float
    tolerance_p_value: float
    dim: str
    n_units: tuple[int, int]
    n_strata: int
    n_permutations: int
    is_complete: bool
    features: tuple[FeatureDifference, ...]
    method: str = "permutation"
    statistic: str | None = None

    @property
    def is_different(self) -> bool:
        """Whether the sides differ at the level, by more than the tolerance."""
        relevant = not self.tolerance or self.tolerance_p_value <= self.level
        return self.p_value <= self.level and relevant

    @property
    def sentence(self) -> str:
        """Result in one sentence."""
        if self.is_different:
            named = [feature.name for feature in self.features if feature.p_value <= self.level][
                :_SHOWN
            ]
            where = f", most clearly in {', '.join(named)}" if named else ""
            low, high = self.interval
            return (
                f"A difference was found (p = {self.p_value:.2g}){where}: the discrepancy is "
                f"{self.discrepancy:.2g}, within [{low:.2g}, {high:.2g}]."
            )
        if self.p_value <= self.level:
            return (
                f"A difference was found (p = {self.p_value:.2g}), but not significantly more than "
                f"the tolerance {self.tolerance:g} (p = {self.tolerance_p_value:.2g})."
            )
        text = f"No difference was found at the level of {self.level:.2g} (p = {self.p_value:.2g})"
        if self.interval[1] < ROUNDING:  # the sketches are equal
            return f"{text}."
        if self.interval[1] >= LARGEST:
            return f"{text}; there are too few units to find any."
        return f"{text}; a discrepancy above {self.interval[1]:.2g} would probably have been."

    def as_dict(self) -> dict[str, Any]:
        """All attributes and the verdict, the nested ones as plain values."""
        return asdict(self) | {"is_different": self.is_different}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TwoSampleTest:
        """Restore a test from the result of :meth:`as_dict`, also after it was stored as JSON."""
        features = tuple(
            FeatureDifference(
                str(feature["name"]),
                feature["p_value"],
                tuple(feature["means"]),
                tuple(feature["deviations"]),
            )
            for feature in values["features"]
        )
        stored = {field.name: values[field.name] for field in fields(cls) if field.name in values}
        pairs = {name: tuple(values[name]) for name in ("interval", "n_units")}
        return cls(**(stored | pairs | {"features": features}))

    def __repr__(self) -> str:
        return "\n\n".join(
            [self.sentence, fields_text(self._fields()), text_table(self._rows(), header=_HEADER)]
        )

    def _repr_html_(self) -> str:
        table = html_table(_HEADER, self._rows())
        return card("TwoSampleTest", self._fields(), summary=self.sentence, below=table)

    def _fields(self) -> dict[str, str]:
        hidden = {"features"}
        if not self.tolerance:  # both p-values would be for the hypothesis of no difference
            hidden |= {"tolerance", "tolerance_p_value"}
        return describe({k: value for k, value in self.as_dict().items() if k not in hidden})

    def _rows(self) -> list[tuple[str, ...]]:
        return [
            (
                feature.name,
                f"{feature.p_value:.2g}",
                *(f"{value:.4g}" for value in (*feature.means, *feature.deviations)),
            )
            for feature in self.features[:_SHOWN]
        ]


_HEADER = ("feature", "p-value", "mean", "other mean", "deviation", "other deviation")
