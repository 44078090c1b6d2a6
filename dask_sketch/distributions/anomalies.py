"""Anomaly scores of rows by whitened features, and the rows of extreme scores."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from dask_sketch.diagnostics.mmd import halves
from dask_sketch.display.html import card, html_table
from dask_sketch.display.text import one_line
from dask_sketch.distributions.control_variates import WeightedRows
from dask_sketch.errors import InputError
from dask_sketch.graph.lazy import LazyResult
from dask_sketch.graph.reduction import Reduction
from dask_sketch.sketching.sketch import Sketch
from dask_sketch.sources.samples import Samples
from dask_sketch.validation.arrays import FrozenDataclass, require_unmasked, unit_rows
from dask_sketch.validation.device import on_host
from dask_sketch.validation.tables import feature_labels
from dask_sketch.validation.threads import one_blas_thread

Array = NDArray[np.float64]
_MAX_FREQUENCIES = 128
_MIN_ROWS = 40
_ROWS_PER_COLUMN = 8
_RIDGE = 1e-2  # ridge, relative to the mean variance of the features
_BLOCK = 256  # rows of a block, padded if there are fewer: rounding may depend on the number


class AnomalyScores(NamedTuple):
    """Anomaly scores of rows; the result of ``EmpiricalDistribution.anomaly_scores``.

    Attributes
    ----------
    score
        Scores, about one on average over the data, shape (n_samples,).
    p_value
        Shares of the data with a score at least as large, in (0, 1], shape (n_samples,).
    """

    score: Any
    p_value: Any


@dataclass(frozen=True, eq=False)
class WhitenedFeatures:
    """Whitened random Fourier features, and the distribution of their squared lengths.

    The anomaly score of a row is the squared length of its whitened features, a Mahalanobis
    distance in the space of the features.

    Attributes
    ----------
    normalize
        Whether rows are divided by their lengths first.
    cycles
        Frequencies over ``2 pi``, shape (n_features, m).
    center, mean
        Center of the rows, shape (n_features,), and mean of the features, shape (2 m,).
    matrix
        Whitening matrix by which centered features are multiplied, shape (2 m, 2 m).
    sorted_scores
        Scores of the rows that were not used for whitening, in ascending order, shape (n_rows,).
    tail_fractions
        Share of the data at or above each of these scores, and above all of them, shape
        (n_rows + 1,).
    """

    normalize: bool
    cycles: Array
    center: Array
    mean: Array
    matrix: Array
    sorted_scores: Array
    tail_fractions: Array

    @classmethod
    def fit(cls, weighted: WeightedRows, sketch: Sketch, seed: int) -> WhitenedFeatures:
        """Whiten with one half of the rows, and score the other half.

        Parameters
        ----------
        weighted
            Rows that represent the data.
        sketch
            Sketch of the data.
        seed
            Seed of the choice of frequencies and of the halves.

        Raises
        ------
        InputError
            If there are too few rows.
        """
        n_rows, feature_map = len(weighted.rows), sketch.feature_map
        if n_rows < _MIN_ROWS:
            raise InputError(
                f"sketch has {n_rows} random rows: with fewer than {_MIN_ROWS} there are no "
                "scores. Sketch more data, or give a model."
            )
        rng = np.random.default_rng(seed)
        order, half = rng.permutation(n_rows), n_rows // 2
        m = feature_map.n_frequencies
        used = min(m, _MAX_FREQUENCIES, half // (2 * _ROWS_PER_COLUMN))
        chosen = np.sort(rng.permutation(m)[:used])
        frequencies, center = feature_map.frequencies[:, chosen], feature_map.center
        plain = cls(
            normalize=feature_map.normalize,
            cycles=frequencies / (2.0 * np.pi),
            center=center,
            mean=halves(sketch.centered_characteristic[chosen]),
            matrix=np.eye(2 * used),
            sorted_scores=np.empty(0),
            tail_fractions=np.ones(1),
        )
        fitted, scored = order[:half], order[half:]
        with one_blas_thread():
            features = plain.transform(weighted.rows[fitted])
            fractions = weighted.weights[fitted] / weighted.weights[fitted].sum()
            covariance = (features * fractions[:, None]).T @ features
            ridged = covariance.copy()
            ridge = _RIDGE * max(float(np.mean(covariance.diagonal())), np.finfo(float).tiny)
            ridged[np.diag_indices_from(ridged)] += ridge
            inverse = np.asarray(linalg.inv(linalg.cholesky(ridged, lower=True)), dtype=np.float64)
        unscaled = replace(plain, matrix=inverse.T)
        scores, weights = unscaled.scores(weighted.rows[scored])[:, 0], weighted.weights[scored]
        mean_score = max(float(weights @ scores / weights.sum()), np.finfo(float).tiny)
        ascending = np.argsort(scores, kind="stable")
        weights = weights[ascending]
        # the row that is scored counts as well, with a mean weight
        above = np.append(np.cumsum(weights[::-1])[::-1], 0.0) + weights.mean()
        return replace(
            plain,
            matrix=np.asarray(inverse.T / math.sqrt(mean_score)),
            sorted_scores=scores[ascending] / mean_score,
            tail_fractions=above / above[0],
        )

    def transform(self, rows: Array) -> Array:
        """Whitened features of rows, shape (n_rows, 2 m)."""
        cycles = (rows - self.center) @ self.cycles
        angles = 2.0 * np.pi * (cycles - np.rint(cycles))
        features = np.concatenate([np.cos(angles), -np.sin(angles)], axis=1) - self.mean
        return np.asarray(features @ self.matrix)

    def p_values(self, scores: Array) -> Array:
        """Shares of the data with scores at least as large, shape (n_rows,)."""
        return self.tail_fractions[np.searchsorted(self.sorted_scores, scores, side="left")]

    def scores(self, rows: Array) -> Array:
        """Scores and p-values of rows, shape (n_rows, 2); NaN for rows that are not finite."""
        rows = np.asarray(rows, dtype=np.float64)
        if self.normalize:
            rows = unit_rows(rows)
        out = np.empty((len(rows), 2))
        padded = np.zeros((_BLOCK, rows.shape[1]))
        with one_blas_thread(), np.errstate(invalid="ignore"):
            for start in range(0, len(rows), _BLOCK):
                block = rows[start : start + _BLOCK]
                padded[: len(block)] = block
                distances = np.sum(self.transform(padded) ** 2, axis=1)[: len(block)]
                out[start : start + _BLOCK, 0] = distances
        out[:, 1] = self.p_values(out[:, 0])
        out[~np.isfinite(out[:, 0])] = np.nan
        return out


@dataclass(frozen=True, eq=False, repr=False)
class RankedRows(FrozenDataclass):
    """Rows of extreme anomaly scores; the result of ``EmpiricalDistribution.ranked_rows``.

    Attributes
    ----------
    typical, surprising
        Rows with the lowest scores in ascending order, and with the highest scores in descending
        order, shape (n_rows, n_features).
    typical_scores, surprising_scores
        Scores of these rows, shape (n_rows,).
    surprising_p_values
        Shares of the data with scores at least as large as those of ``surprising``, shape
        (n_rows,).
    count
        Number of rows that were scored.
    """

    typical: Array
    typical_scores: Array
    surprising: Array
    surprising_scores: Array
    surprising_p_values: Array
    count: int

    def as_dict(self) -> dict[str, Any]:
        """Number of rows scored, and the extreme scores."""
        return {
            "n_scored": self.count,
            "lowest_scores": self.typical_scores,
            "highest_scores": self.surprising_scores,
        }

    def __repr__(self) -> str:
        return f"<RankedRows: {one_line(self.as_dict())}>"

    def _repr_html_(self) -> str:
        header = ["score", *feature_labels(self.typical.shape[1], None)]
        more = {}
        for name, rows, scores in (
            ("typical", self.typical, self.typical_scores),
            ("surprising", self.surprising, self.surprising_scores),
        ):
            cells = np.column_stack([scores, rows])
            more[name] = html_table(header, [[f"{v:.4g}" for v in row] for row in cells])
        return card("RankedRows", {"rows scored": f"{self.count:,}"}, more=more)


def rank_rows(features: WhitenedFeatures, samples: Samples, n_rows: int) -> LazyResult:
    """Find the rows with the lowest and the highest scores, lazily.

    Parameters
    ----------
    features
        Whitened features.
    samples
        Rows to score.
    n_rows
        Number of rows of each kind.

    Returns
    -------
    rows
        Lazy :class:`RankedRows`.
    """
    return LazyResult(
        samples,
        Reduction(
            "ranked rows",
            partial(_extremes_of_chunk, features=features, n_rows=n_rows),
            partial(_combine, n_rows=n_rows),
            partial(_finalize, features=features),
        ),
    )


_Extremes = tuple[Array, Array, int]  # lowest and highest scores beside their rows; rows scored


def _extremes_of_chunk(
    rows: Any, weights: Any, label: str, features: WhitenedFeatures, n_rows: int
) -> _Extremes:
    require_unmasked(rows, "rows", f"the values of {label}")
    values = on_host(rows).astype(np.float64).reshape(-1, rows.shape[-1])
    scored = np.column_stack([features.scores(values)[:, 0], values])
    scored = scored[np.isfinite(scored).all(axis=1)]
    return *_lowest_and_highest(scored, n_rows), len(scored)


def _lowest_and_highest(scored: Array, n_rows: int) -> tuple[Array, Array]:
    """Rows with the lowest and highest scores; equal scores are ordered by the values."""
    order = np.lexsort(scored.T[::-1])
    return scored[order[:n_rows]], scored[order[::-1][:n_rows]]


def _combine(parts: list[_Extremes], n_rows: int) -> _Extremes:
    low, high = (np.concatenate([part[k] for part in parts]) for k in (0, 1))
    lowest, highest = _lowest_and_highest(low, n_rows)[0], _lowest_and_highest(high, n_rows)[1]
    return lowest, highest, sum(part[2] for part in parts)


def _finalize(total: _Extremes | None, features: WhitenedFeatures) -> RankedRows:
    if total is None or not total[2]:
        raise InputError("x has no finite rows to rank: give rows without NaN.", parameter="x")
    low, high, count = total
    return RankedRows(
        typical=low[:, 1:],
        typical_scores=low[:, 0],
        surprising=high[:, 1:],
        surprising_scores=high[:, 0],
        surprising_p_values=features.p_values(high[:, 0]),
        count=count,
    )
