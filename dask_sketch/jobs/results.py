"""What follows from the total of a run: models, scores, drift, files."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dask_sketch.diagnostics.drift import Drift, drift, drifts_between
from dask_sketch.errors import InputError
from dask_sketch.jobs.grouping import group_keys
from dask_sketch.jobs.modelling import Found, find_model, settings_of
from dask_sketch.jobs.outputs import model_places, sketch_place
from dask_sketch.models import Centroids
from dask_sketch.sketching import Sketch

if TYPE_CHECKING:
    from dask_sketch.jobs.job_file import Job
    from dask_sketch.jobs.modelling import Model
    from dask_sketch.jobs.outcome import Outcome
    from dask_sketch.jobs.settings import DecodeTable
    from dask_sketch.ledger import Ledger, RunRecord

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
        law = next((found.model for found in self.models.values()), None)
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
                self.drifts[CAME] = drift(rest, added, model=law, seed=seed)
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
            self.drifts[name] = drift(state, self.total, shared=shared, model=law, seed=seed)
        if self.job.drift.groups:
            self.between = drifts_between(self.groups, model=law, seed=seed)

    def score(self) -> None:
        """Score the models on the samples that no run sketches."""
        table = self.job.score
        if table is None:
            return
        from dask_sketch.graph.apply import map_rows

        for name, found in self.models.items():
            points = isinstance(found.model, Centroids)
            value = map_rows(
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
            from dask_sketch.jobs.page import write_page

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
