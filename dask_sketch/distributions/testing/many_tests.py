"""Test each of many groups of sketches against the others, with few false discoveries."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy import stats

from dask_sketch.display.html import card, html_table
from dask_sketch.display.text import describe, fields_text, text_table
from dask_sketch.distributions.testing.permutations import default_number
from dask_sketch.distributions.testing.result import TwoSampleTest
from dask_sketch.distributions.testing.two_sample import compare
from dask_sketch.distributions.testing.units import unit_labels
from dask_sketch.errors import InputError
from dask_sketch.sketching.group import SketchGroup
from dask_sketch.validation.arrays import require_integer, require_number

_HEADER = ("group", "adjusted p-value", "p-value", "discrepancy", "units")
_SHOWN = 20
_ROUNDS = 4


@dataclass(frozen=True, repr=False)
class ManyTests:
    """Result of :func:`compare_each`; prints as a sentence and a table.

    Attributes
    ----------
    labels
        Labels of the groups, in ascending order of their p-values.
    tests
        Test of each group, in the order of ``labels``, against the units of the other groups that
        were not found different.
    adjusted_p_values
        P-values in the order of ``labels``, adjusted for the false discovery rate.
    rate
        False discovery rate: largest expected share of false discoveries among the groups that are
        found different.
    method
        Procedure of the adjustment, ``"bh"`` or ``"by"``.
    """

    labels: tuple[Any, ...]
    tests: tuple[TwoSampleTest, ...]
    adjusted_p_values: tuple[float, ...]
    rate: float
    method: str

    @property
    def different(self) -> tuple[Any, ...]:
        """Labels of the groups that differ from the others."""
        by_label = zip(self.labels, self.adjusted_p_values, strict=True)
        return tuple(label for label, p in by_label if p <= self.rate)

    @property
    def sentence(self) -> str:
        """Result in one sentence."""
        n, total = len(self.different), len(self.labels)
        verb = "differs" if n == 1 else "differ"
        expected = f"; at most {self.rate:.0%} of these are expected to be false" if n else ""
        return f"{n:,} of {total:,} groups {verb} from the others{expected}."

    def as_dict(self) -> dict[str, Any]:
        """All attributes, the nested ones as plain values, and the groups that differ."""
        return {
            "labels": self.labels,
            "tests": tuple(test.as_dict() for test in self.tests),
            "adjusted_p_values": self.adjusted_p_values,
            "rate": self.rate,
            "method": self.method,
            "different": self.different,
        }

    def _fields(self) -> dict[str, str]:
        values = self.as_dict()
        return describe({name: values[name] for name in ("rate", "method")})

    def _rows(self) -> list[tuple[str, ...]]:
        rows: list[tuple[str, ...]] = []
        for label, p, test in zip(self.labels, self.adjusted_p_values, self.tests, strict=True):
            sizes = f"{test.discrepancy:.3g}", f"{test.n_units[0]:,}"
            rows.append((str(label), f"{p:.2g}", f"{test.p_value:.2g}", *sizes))
        return rows[:_SHOWN]

    def __repr__(self) -> str:
        table = text_table(self._rows(), header=_HEADER)
        return "\n\n".join([self.sentence, fields_text(self._fields()), table])

    def _repr_html_(self) -> str:
        table = html_table(_HEADER, self._rows())
        return card("ManyTests", self._fields(), summary=self.sentence, below=table)


def compare_each(
    units: SketchGroup,
    by: Any,
    *,
    strata: Any = None,
    rate: float = 0.05,
    method: Literal["bh", "by"] = "by",
    tolerance: float = 0.0,
    n_permutations: int | None = None,
    seed: int = 0,
) -> ManyTests:
    """Test each of many groups of units against the units of the other groups.

    Each test is :func:`compare`, with as many permutations as the number of tests needs. The
    p-values are adjusted such that a share of at most ``rate`` of the groups that are found
    different is expected to be false.

    Groups that were found different are not a reference for the other groups. So all tests are
    repeated against the units of the groups that were not found, at least half of all groups, until
    the same groups are found again. The rate is exact for the first round only.

    Parameters
    ----------
    units
        Sketches of units, such as files, of one feature map.
    by
        Group of each unit, such as its speaker or machine: array-like of any labels, shape
        (n_units,). Units with a missing label are left out.
    strata
        Stratum of each unit, as for :func:`compare`, shape (n_units,).
    rate
        False discovery rate, in (0, 1).
    method
        ``"by"`` for tests with any dependence (Benjamini and Yekutieli): these tests share units.
        ``"bh"`` for more power where the groups are many and small (Benjamini and Hochberg).
    tolerance
        Largest discrepancy that does not matter, from 0 to 2. With a tolerance, the p-value of a
        test is the larger one of two hypotheses: no difference, and none above the tolerance.
    n_permutations
        Number of random permutations of each test, ``>= 1``. The default is the number that the
        tests need at the rate.
    seed
        Seed of the permutations, ``>= 0``.

    Returns
    -------
    tests
        Tests of all groups, the most significant first, and their adjusted p-values.

    Raises
    ------
    InputError
        If an argument is out of range, there are fewer than two groups, or a group has too few
        units to be found different among so many groups.

    References
    ----------
    Benjamini, Hochberg (1995), Controlling the false discovery rate, JRSS B 57(1). Benjamini,
    Yekutieli (2001), Annals of Statistics 29(4).

    Examples
    --------
    >>> from dask_sketch import FeatureMap, partial_sketch
    >>> rng, file = np.random.default_rng(0), np.arange(3000) % 60
    >>> x = rng.normal(size=(3000, 2)) + 1.0 * (file % 5 == 3)[:, None]
    >>> files = partial_sketch(x, FeatureMap(2, 50, scale=1.0), groups=file, dim="file")
    >>> compare_each(files, by=np.arange(60) % 5).different
    (3,)
    """
    rate = require_number("rate", rate, 0.0, 1.0, strict=True)
    if method not in ("bh", "by"):
        raise InputError(f"method={method!r}: choose 'bh' or 'by'.")
    labels, codes = unit_labels("by", by, units)
    if len(labels) < 2:
        raise InputError(
            f"by has {len(labels)} labels: give labels of two or more groups.", parameter="by"
        )
    blocks = None if strata is None else unit_labels("strata", strata, units)[1]
    # an adjusted p-value may be so many times the p-value
    factor = len(labels) * (np.sum(1.0 / np.arange(1, len(labels) + 1)) if method == "by" else 1.0)
    requested, n_permutations = n_permutations, _number(n_permutations, rate, factor)
    is_found = np.zeros(len(labels), dtype=bool)
    for _ in range(_ROUNDS):
        before, tests = is_found, []
        for code in range(len(labels)):
            mine = codes == code
            others = (codes >= 0) & ~mine & ~np.append(before, False)[codes]
            try:
                test = compare(
                    units.select(mine),
                    units.select(others),
                    strata=None if blocks is None else [*blocks[mine], *blocks[others]],
                    level=rate,
                    tolerance=tolerance,
                    n_permutations=n_permutations,
                    seed=seed,
                )
            except InputError as error:
                if error.parameter == "n_permutations" and requested is None:
                    raise _too_many_permutations(rate, n_permutations) from error
                if error.parameter == "level":
                    sizes = int(mine.sum()), int(others.sum())
                    raise _too_few_units(rate, labels[code], *sizes) from error
                raise
            tests.append(test)
        p = np.array([max(t.p_value, t.tolerance_p_value if tolerance else 0.0) for t in tests])
        adjusted = stats.false_discovery_control(p, method=method)
        order = np.lexsort((-np.array([test.squared for test in tests]), p, adjusted))
        is_found = np.zeros(len(labels), dtype=bool)
        largest = order[: len(labels) // 2]
        is_found[largest] = adjusted[largest] <= rate
        if (is_found == before).all():
            break
    smallest = min(test.smallest_p_value for test in tests)
    if smallest * factor > rate * len(labels):
        raise InputError(
            f"by has {len(labels):,} groups, too many for rate={rate:g} even if all groups differ, "
            f"since no p-value is under {smallest:.2g}. Give groups of more units.",
            parameter="by",
        )
    return ManyTests(
        labels=tuple(labels[k] for k in order),
        tests=tuple(tests[k] for k in order),
        adjusted_p_values=tuple(float(adjusted[k]) for k in order),
        rate=rate,
        method=method,
    )


def _too_many_permutations(rate: float, n_permutations: int) -> InputError:
    return InputError(
        f"rate={rate:g}: each test needs {n_permutations:,} permutations, so that one group alone "
        "can be found. They do not fit into the free memory. Give a larger rate, or n_permutations."
    )


def _too_few_units(rate: float, label: Any, n_units: int, n_others: int) -> InputError:
    return InputError(
        f"rate={rate:g}: no p-value of group {label!r} is so small, with {n_units:,} units and "
        f"{n_others:,} others. Give groups of more units, a larger rate, or fewer strata."
    )


def _number(n_permutations: int | None, rate: float, factor: float) -> int:
    """Number of permutations of each test: ``n_permutations``, or enough to find one group."""
    if n_permutations is None:
        return default_number(rate / factor)
    if require_integer("n_permutations", n_permutations, 1) + 1 < 1.0 / rate:
        needed = math.ceil(min(float(factor) / rate, 1e18))
        raise InputError(
            f"n_permutations={n_permutations}: no p-value is under the rate {rate:g} with them. "
            f"Take {needed:,} or more, so that one group alone can be found.",
            parameter="n_permutations",
        )
    return n_permutations
