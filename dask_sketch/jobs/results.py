"""What follows from the total of a run: models, scores, drift, files."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dask_sketch.decoders.decode import decode
from dask_sketch.diagnostics.drift import Drift, drift, drifts_between
from dask_sketch.diagnostics.mmd import discrepancy
from dask_sketch.errors import InputError
from dask_sketch.jobs.open import group_keys
from dask_sketch.jobs.outcome import model_places, sketch_place
from dask_sketch.models.centroids import Centroids
from dask_sketch.models.gaussian_mixture import GaussianMixture
from dask_sketch.sketching.sketch import Sketch

if TYPE_CHECKING:
    from dask_sketch.jobs.job_file import DecodeTable, Job
    from dask_sketch.jobs.ledger.history import RunRecord
    from dask_sketch.jobs.ledger.ledger import Ledger
    from dask_sketch.jobs.outcome import Outcome

# Models of a run: decoded from its total, beginning at those of the run before.

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


Step = Callable[[str], AbstractContextManager[None]]
CAME, STATE = "new samples against the rest", "state against the last run's"
_ALARMING = (CAME, STATE)


@dataclass
class Results:
    """Models and comparisons of one run.

    Attributes
    ----------
    total
        Sketch of all samples.
    feature_names
        Names of the features, where the sources have them.
    came, rest
        Sketches of what was read since the last run, and of all else; ``None`` if one is empty.
    models
        By name; those of groups are called ``model@group``.
    earlier
        Models of the last run that there was, by name.
    scores
        Of each model on the samples that are kept for it.
    drifts
        By what was compared.
    between
        Of every two groups, by their names.
    groups
        Totals of the groups.
    kept
        Names in the ledger of models that were taken from the last run as they are.
    settings
        By which the models were decoded, by name.
    """

    job: Job
    ledger: Ledger
    step: Step
    total: Sketch
    feature_names: tuple[str, ...] | None = None
    came: Sketch | None = None
    rest: Sketch | None = None
    models: dict[str, Found] = field(default_factory=dict)
    earlier: dict[str, Model] = field(default_factory=dict)
    scores: dict[str, dict[str, Any]] = field(default_factory=dict)
    drifts: dict[str, Drift] = field(default_factory=dict)
    between: dict[tuple[str, str], Drift] = field(default_factory=dict)
    groups: dict[str, Sketch] = field(default_factory=dict)
    kept: dict[str, str] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def alarm(self) -> bool:
        """Whether the data has changed by more than the job file allows."""
        table = self.job.drift
        return any(
            found.is_alarm(table.threshold, table.tolerance)
            for name, found in self.drifts.items()
            if name in _ALARMING
        )

    def told(self, name: str) -> dict[str, Any]:
        """What is told of a model, for JSON."""
        return self.models[name].as_dict() | self.scores.get(name, {})

    # -- models ------------------------------------------------------------------------------

    def decode(self, progress: bool, say: Callable[[str], object]) -> None:
        """Decode the models of all samples and of groups; those that would be the same are kept."""
        history = self.ledger.history()
        last = history[-1] if history else None
        for table in self.job.decode:
            wanted = {table.name: self.total}
            if table.groups:
                wanted |= {f"{table.name}@{group}": part for group, part in self.groups.items()}
            for name, sketch in wanted.items():
                self._decode(table, name, sketch, last, progress, say)

    def _decode(
        self,
        table: DecodeTable,
        name: str,
        sketch: Sketch,
        last: RunRecord | None,
        progress: bool,
        say: Callable[[str], object],
    ) -> None:
        earlier = self.ledger.model(name=name)
        if earlier is not None:
            self.earlier[name] = earlier
        settings = settings_of(table, self.job.job.seed) | {
            "n_components": table.n_components,
            "sketch": digest_of(sketch),  # not of the run: what was forgotten is in no model
        }
        self.settings[name] = settings
        if (
            earlier is not None
            and last is not None
            and name in last.models
            and last.results.get("settings", {}).get(name) == settings
        ):
            self.models[name], self.kept[name] = Found(earlier, "kept"), last.models[name]
            return
        if not sketch.effective_count > 1:
            raise InputError(
                f"{name}: {sketch.count:,} samples are too few to decode; check the sources."
            )
        say(f"decoding {name} ...")
        found = find_model(self.job, table, sketch, earlier, progress)
        self.models[name] = found
        self.ledger.write_model(self.ledger.next_run, found.model, name)

    # -- comparisons -------------------------------------------------------------------------

    def compare(self) -> None:
        """Hold what came against what was there, states against each other, groups as well."""
        ledger, run = self.ledger, self.ledger.next_run
        entries = ledger.entries
        distribution = next((found.model for found in self.models.values()), None)
        seed = self.job.job.seed
        came = [key for key, entry in entries.items() if entry.run == run]
        stayed = [key for key, entry in entries.items() if entry.run != run]
        if came and stayed:
            # the fewer of both are read, the others are what is left
            part = ledger.total(min(came, stayed, key=len))
            others = self.total - part
            added, rest = (part, others) if len(came) <= len(stayed) else (others, part)
            if min(added.effective_count, rest.effective_count) > 0:
                self.came, self.rest = added, rest
                self.drifts[CAME] = drift(rest, added, model=distribution, seed=seed)
        states = [one for one in ledger.states(self.job.drift.states) if one[1].total_weight > 0]
        for number, state in reversed(states):
            if state.identical(self.total):
                continue
            # partitions that are now as they were at the end of that run; their share of the
            # squared weights is taken to be that of the samples
            known = sum(entry.count for entry in entries.values() if entry.run <= number)
            share = known / max(self.total.count, 1)
            shared = min(share * self.total.squared_weight, state.squared_weight)
            name = STATE if number == run - 1 else f"state against that of run {number}"
            self.drifts[name] = drift(
                state, self.total, shared=shared, model=distribution, seed=seed
            )
        if self.job.drift.groups:
            self.between = drifts_between(self.groups, model=distribution, seed=seed)

    def score(self) -> None:
        """Score the models on the samples that no run sketches."""
        table = self.job.score
        if table is None:
            return
        from dask_sketch.graph.apply import apply

        for name, found in self.models.items():
            points = isinstance(found.model, Centroids)
            value = apply(
                found.model,
                "inertia" if points else "score",
                self.job.place(table.path),
                array=table.array,
                columns=table.columns,
                weights=table.weights,
                chunk_size=table.chunk_size,
                storage_options=self.job.options(table.storage_options, table.path),
            ).compute()
            key = "mean_squared_distance" if points else "score"
            unit = "squared units of the data" if points else "nats per row"
            self.scores[name] = {key: float(value), "unit": unit}

    # -- files -------------------------------------------------------------------------------

    def write(self, made: Outcome, planned: Mapping[str, Any]) -> None:
        """Write the files that the job file asks for; ``planned`` is what the plan said."""
        with self.step("write"):
            total = sketch_place(self.job)
            if total is not None:
                place, options = total
                self.total.to_zarr(place, overwrite=True, storage_options=options)
            for name, place, options in model_places(self.job):
                model = self.models[name].model
                model.to_zarr(place, overwrite=True, storage_options=options)
        if made.report is not None:
            from dask_sketch.jobs.report import write_page

            with self.step("report"):
                write_page(self, made, planned)


def digest_of(sketch: Sketch) -> str:
    """What tells the sums of two sketches of one map apart."""
    total = hashlib.sha256(f"{sketch.count} {sketch.total_weight!r}".encode())
    for values in (sketch.moment_sum, sketch.first_moment, sketch.second_moment):
        total.update(values.tobytes())
    return total.hexdigest()[:16]


def make_results(
    job: Job,
    ledger: Ledger,
    step: Step,
    progress: bool,
    say: Callable[[str], object],
    feature_names: tuple[str, ...] | None = None,
) -> Results:
    """Decode, score and compare what a ledger holds.

    Parameters
    ----------
    job
        Says what is wanted.
    ledger
        Up to date, locked.
    step
        Times a step, as a context manager.
    progress, say
        As for :func:`~dask_sketch.jobs.run.run_job`.
    feature_names
        For the report.

    Raises
    ------
    InputError
        If there are too few samples for a model.
    """
    made = Results(job, ledger, step, ledger.total(), feature_names)
    with step("decode"):
        if job.groups is not None:
            keys: Mapping[str, list[str]] = group_keys(job.groups, ledger.entries)
            made.groups = {name: ledger.total(those) for name, those in keys.items()}
        made.decode(progress, say)
    with step("score"):
        made.score()
    with step("drift"):
        made.compare()
    return made
