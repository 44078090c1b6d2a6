"""Compare mixtures on held-out data, with scikit-learn's mixture as a reference."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dask_sketch.display.html import card, html_table
from dask_sketch.display.text import text_table
from dask_sketch.errors import InputError, install_command
from dask_sketch.models.gaussian_mixture import GaussianMixture

_HEADER = ("mixture", "held-out", "seconds", "how")


@dataclass(frozen=True)
class Contender:
    """Mixture of a comparison, with its score.

    Attributes
    ----------
    name
        Name of the mixture in tables.
    score
        Mean log-likelihood of the held-out samples, in nats per sample.
    seconds
        Time of the fit; ``None`` if the mixture was not fitted.
    note
        Data and method of the fit.
    """

    name: str
    score: float
    seconds: float | None
    note: str


@dataclass(frozen=True)
class Comparison:
    """Scores of mixtures on the same held-out samples; prints as a table.

    Attributes
    ----------
    contenders
        Mixtures that are compared.
    n_heldout
        Number of held-out samples.
    store_bytes, sketch_bytes
        Bytes of the data and of the sketch, as stored.
    seconds
        Time of each step.
    report
        Path of the HTML report.
    """

    contenders: tuple[Contender, ...]
    n_heldout: int
    store_bytes: int
    sketch_bytes: int
    seconds: Mapping[str, float] = field(default_factory=dict)
    report: str = ""

    def as_dict(self) -> dict[str, Any]:
        """All fields, for JSON."""
        return asdict(self)

    def rows(self) -> list[tuple[str, str, str, str]]:
        """Name, score, seconds and note of each mixture, as text."""
        return [
            (
                entry.name,
                f"{entry.score:.3f}",
                "" if entry.seconds is None else f"{entry.seconds:.1f}",
                entry.note,
            )
            for entry in self.contenders
        ]

    def __str__(self) -> str:
        steps = ", ".join(f"{name} {value:.1f}" for name, value in self.seconds.items())
        ratio = self.store_bytes / max(self.sketch_bytes, 1)
        text = [
            f"log-likelihood per frame of {self.n_heldout:,} held-out frames, in nats",
            "",
            text_table(self.rows(), header=_HEADER),
            "",
            f"bytes    sketch {self.sketch_bytes:,}, store {self.store_bytes:,} "
            f"({ratio:,.0f} times as many)",
            f"seconds  {steps}",
        ]
        return "\n".join([*text, f"report   {self.report}"] if self.report else text)

    def _repr_html_(self) -> str:
        fields = {
            "bytes": f"sketch {self.sketch_bytes:,}, store {self.store_bytes:,}",
            "seconds": ", ".join(f"{name} {value:.1f}" for name, value in self.seconds.items()),
        }
        return card(
            "Comparison",
            fields | ({"report": self.report} if self.report else {}),
            summary=f"log-likelihood per frame of {self.n_heldout:,} held-out frames, in nats",
            below=html_table(_HEADER, self.rows()),
        )


def require_extras() -> None:
    """Raise if the packages for a comparison and a report are not installed.

    Raises
    ------
    InputError
        If matplotlib is missing.
    """
    if find_spec("matplotlib") is None:
        raise InputError(f"the package matplotlib is missing: {install_command('plot')}.")


def fit_reference(
    rows: ArrayLike, n_components: int, seed: int = 0, max_iter: int = 100
) -> tuple[GaussianMixture, float, int]:
    """Fit scikit-learn's diagonal ``GaussianMixture`` by expectation-maximisation.

    Parameters
    ----------
    rows
        Samples in memory, shape (n_samples, n_features).
    n_components
        Number of components.
    seed
        Seed of the k-means initialisation.
    max_iter
        Maximum number of iterations.

    Returns
    -------
    mixture
        Fitted mixture.
    seconds
        Wall time of the fit.
    n_iter
        Number of iterations; ``max_iter`` if the fit did not converge.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import GaussianMixture as Reference

    x = np.asarray(rows, dtype=np.float64)
    fit = Reference(n_components, covariance_type="diag", random_state=seed, max_iter=max_iter)
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # n_iter shows it
        fit.fit(x)
    seconds = time.perf_counter() - start
    weights = fit.weights_ / fit.weights_.sum()
    return GaussianMixture(weights, fit.means_, fit.covariances_), seconds, int(fit.n_iter_)
