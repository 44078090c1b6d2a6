"""Models of a run: decoded from its total, beginning at those of the run before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dask_sketch.decoders import decode
from dask_sketch.diagnostics.discrepancy import discrepancy
from dask_sketch.models import Centroids, GaussianMixture

if TYPE_CHECKING:
    from dask_sketch.jobs.job_file import Job
    from dask_sketch.jobs.settings import DecodeTable
    from dask_sketch.sketching import Sketch

Model = GaussianMixture | Centroids

_GROWN = 1.1  # times the excess cost of the last model, from which a warm start is suspect,
_DEVIATIONS = 3.0  # and deviations of the noise above that


@dataclass(frozen=True)
class Found:
    """A model of this run.

    Attributes
    ----------
    model
        What was decoded.
    start
        ``"warm"`` from the last model, ``"cold"``, ``"cold, better than warm"``, or ``"kept"``
        where nothing had changed.
    """

    model: Model
    start: str

    def as_dict(self) -> dict[str, Any]:
        """What is told of it, for JSON."""
        how = self.model.decoding
        assert how is not None  # of all that is decoded
        return {
            "kind": "mixture" if isinstance(self.model, GaussianMixture) else "centroids",
            "n_components": self.model.n_components,
            "start": self.start,
            "cost": how.cost,
            "noise_level": how.noise_level,
            "converged": how.converged,
            "decode_seconds": how.seconds,
        }


def settings_of(table: DecodeTable, seed: int) -> dict[str, Any]:
    """Arguments of ``decode`` but for the number of components, as JSON can hold them."""
    options: dict[str, Any] = {
        "method": table.method,
        "model": table.model,
        "refine": table.refine,
        "bounds": table.bounds,
        "covariance": table.covariance,
        "merge": table.merge,
        "seed": seed if table.seed is None else table.seed,
        "replicates": table.replicates,
    }
    if table.variance_floor is not None:
        options["variance_floor"] = table.variance_floor
    return options


def find_model(
    job: Job,
    table: DecodeTable,
    total: Sketch,
    last: Model | None,
    progress: bool = False,
) -> Found:
    """Decode one model.

    A warm start is taken where there is a mixture of the same kind to begin at. If it ends further
    above the noise than the last model was on its own sketch, the data may have left that valley:
    then a cold decode is made too, and the one of lower cost is kept.

    Parameters
    ----------
    job, table
        What is wanted.
    total
        Sketch of all samples.
    last
        Model of the run before, if there was one.
    progress
        As for ``decode``.
    """
    options = settings_of(table, job.job.seed) | {"progress": progress}
    start = last if _can_start(table, last) else None
    warm = None
    if start is not None:
        given = {
            key: value for key, value in options.items() if key not in ("method", "replicates")
        }
        warm = decode(total, table.n_components, start=start, **given)
        if not _is_worse(warm, start, total):
            return Found(warm, "warm")
    cold = decode(total, table.n_components, **options)
    if warm is None:
        return Found(cold, "cold")
    return Found(
        *((cold, "cold, better than warm") if _cost(cold) < _cost(warm) else (warm, "warm"))
    )


def _can_start(table: DecodeTable, last: Model | None) -> bool:
    """Whether the decoder can begin at the last model.

    Not where the number of components is to be found, and not for centroids: their decoder goes
    by way of a density, which is more precise than a descent from the last ones.
    """
    return (
        table.warm
        and table.n_components is not None
        and isinstance(last, GaussianMixture)
        and last.decoding is not None
        and last.decoding.model == (table.model or "gaussian")
        and table.method not in ("density", "sketch-shift")
    )


def _cost(model: Model) -> float:
    assert model.decoding is not None
    return model.decoding.cost


def _is_worse(warm: Model, last: Model, total: Sketch) -> bool:
    """Whether noise does not explain that a fit is worse than the last one was."""
    now, then = warm.decoding, last.decoding
    assert now is not None
    assert then is not None
    before = max(then.cost - then.noise_level, 0.0)
    noise = discrepancy(warm, total).deviation
    return now.cost - now.noise_level > _GROWN * before + _DEVIATIONS * noise
