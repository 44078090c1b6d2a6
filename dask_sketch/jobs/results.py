"""Models, scores and tests of drift of a run, from the totals in its ledger."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from dask_sketch.decoders.decode import decode
from dask_sketch.decoders.leading_components import principal_components
from dask_sketch.diagnostics.drift import Drift, drift, drifts_between
from dask_sketch.diagnostics.mmd import discrepancy
from dask_sketch.diagnostics.model_selection import select_model
from dask_sketch.display.text import counted
from dask_sketch.distributions.testing.result import TwoSampleTest
from dask_sketch.errors import InputError, LedgerError
from dask_sketch.graph.apply import apply
from dask_sketch.graph.compute import active_client, compute_plain
from dask_sketch.graph.telemetry import log_drift
from dask_sketch.jobs.ledger.history import JobModel
from dask_sketch.jobs.ledger.sums import Sums, without_rows
from dask_sketch.jobs.limits import data_breaches, growth_of_cost, model_breaches
from dask_sketch.jobs.open import columns_of, group_keys
from dask_sketch.jobs.past_drift import LastChange, find_last_change
from dask_sketch.models.centroids import Centroids
from dask_sketch.models.gaussian_mixture import GaussianMixture
from dask_sketch.models.open import gaussian_or_centroids
from dask_sketch.models.principal_components import PrincipalComponents
from dask_sketch.sketching.second_moments import SecondMoments
from dask_sketch.sketching.sketch import Sketch

if TYPE_CHECKING:
    from dask_sketch.jobs.job_file import Job
    from dask_sketch.jobs.job_keys import DecodeTable, GroupsTable
    from dask_sketch.jobs.ledger.history import RunRecord
    from dask_sketch.jobs.ledger.ledger import Ledger

Model = GaussianMixture | Centroids
_NO_TEST = "Second moments have no test of drift: keep sketches in a ledger of their own for it."
Step = Callable[[str], AbstractContextManager[None]]
NEW_SAMPLES, STATE = (
    "new samples against the rest",
    "state against the last run's",
)  # names in records
# A model is also decoded from scratch if its cost above the noise exceeds this multiple of the cost
# of the last model above its noise, by this number of standard deviations of the noise.
_MAX_GROWTH = 1.1
_DEVIATIONS = 3.0


@dataclass(frozen=True)
class DecodedModel:
    """Model of a run.

    Attributes
    ----------
    model
        Decoded model.
    start
        ``"warm"`` for a start at the last model; ``"cold"``; ``"cold, better than warm"``;
        ``"kept"`` for the last model, if neither data nor settings have changed; or ``"refused"``
        for the last model, if the new model exceeds a limit.
    rows
        Number of random rows that the sketch carries beside the sums.
    turned
        Largest angle in degrees between the subspaces of the principal components of this run and
        of the last run; ``None`` for other models, and if the number of components differs.
    """

    model: JobModel
    start: str
    rows: int = 0
    turned: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """Summary as plain values."""
        if isinstance(self.model, PrincipalComponents):
            return {
                "kind": "principal components",
                "n_components": self.model.n_components,
                "start": self.start,
                "rows": 0,
                "explained": float(self.model.explained_variance_ratio.sum()),
                "excess_risk": None if np.isnan(self.model.excess_risk) else self.model.excess_risk,
                "turned": self.turned,
            }
        decoding = self.model.decoding
        assert decoding is not None  # all models of jobs are decoded
        return {
            "kind": "mixture" if isinstance(self.model, GaussianMixture) else "centroids",
            "n_components": self.model.n_components,
            "start": self.start,
            "rows": self.rows,
            "cost": decoding.cost,
            "noise_level": decoding.noise_level,
            "converged": decoding.converged,
            "decode_seconds": decoding.seconds,
        }


def decode_arguments(table: DecodeTable, seed: int) -> dict[str, Any]:
    """Arguments of ``decode``, except the number of components, as plain values."""
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
    if table.covariance_type is not None:
        options["covariance_type"] = table.covariance_type
    return options


def decode_model(
    job: Job,
    table: DecodeTable,
    total: Sums,
    last: JobModel | None,
    progress: bool = False,
) -> DecodedModel:
    """Decode one model.

    If the ledger keeps no rows and the last model is a mixture of the same type, the decoder starts
    at this model (warm start). If the cost of the result is further above the noise than the cost
    of the last model was, another minimum may be lower now. Then the model is also decoded from
    scratch, and the result with the lower cost is kept.

    Parameters
    ----------
    job
        Job file.
    table
        Table of the model in the job file.
    total
        Sketch of all samples; or their second moments, for principal components.
    last
        Model of the last run, if there is one.
    progress
        Whether to show progress on the standard error stream.

    Returns
    -------
    decoded
        Model, with its kind of start.
    """
    n_components = table.n_components
    if isinstance(total, SecondMoments):
        assert not isinstance(n_components, str)  # refused by the job file
        components = principal_components(total, n_components)
        turned, shape = None, components.components.shape
        if isinstance(last, PrincipalComponents) and last.components.shape == shape:
            turned = components.angle_to(last) if shape[0] < shape[1] else 0.0
        return DecodedModel(components, "cold", turned=turned)
    options = decode_arguments(table, job.job.seed) | {"progress": progress}
    if isinstance(n_components, str):  # "auto"
        types = (options.pop("covariance_type", "diag"),)
        selected = select_model(total, covariance_types=types, **options).model
        return DecodedModel(gaussian_or_centroids("a job", selected), "cold")
    start = None
    if isinstance(last, GaussianMixture) and _can_start(table, last, total):
        start = last
    warm = None
    if start is not None:
        warm_options = {
            key: value for key, value in options.items() if key not in ("method", "replicates")
        }
        warm = gaussian_or_centroids(
            "a job", decode(total, n_components, start=start, **warm_options)
        )
        if not _is_worse(warm, start, total):
            return DecodedModel(warm, "warm")
    cold = gaussian_or_centroids("a job", decode(total, n_components, **options))
    if warm is None:
        return DecodedModel(cold, "cold")
    return DecodedModel(
        *((cold, "cold, better than warm") if _cost(cold) < _cost(warm) else (warm, "warm"))
    )


def _can_start(table: DecodeTable, last: GaussianMixture, total: Sketch) -> bool:
    """Whether the decoder can start at the last model.

    There is no warm start if the number of components is unknown; for centroids, because their
    decoder is more precise than a descent from the last centroids; and if either model is chosen by
    the likelihood of random rows, because a descent towards the sketch would decrease it.
    """
    by_likelihood = total.sample is not None and table.method in (None, "likelihood")
    implied = "isotropic" if table.covariance_type == "spherical" else "gaussian"
    return (
        table.warm
        and not by_likelihood
        and isinstance(table.n_components, int)
        and last.decoding is not None
        and not last.decoding.is_likeliest
        and last.decoding.model == (table.model or implied)
        and last.covariance_type == (table.covariance_type or "diag")
        and table.method not in ("density", "sketch-shift")
    )


def _cost(model: Model) -> float:
    assert model.decoding is not None
    return model.decoding.cost


def _is_worse(warm: Model, last: Model, total: Sketch) -> bool:
    """Whether a fit is worse than the last fit was, by more than noise explains."""
    now, then = warm.decoding, last.decoding
    assert now is not None
    assert then is not None
    before = max(then.cost - then.noise_level, 0.0)
    noise = discrepancy(warm, total).deviation
    return now.cost - now.noise_level > _MAX_GROWTH * before + _DEVIATIONS * noise


@dataclass
class Results:
    """Models and comparisons of one run.

    Attributes
    ----------
    total
        Sketch of all samples, or their second moments.
    job
        Job file.
    ledger
        Ledger of the job.
    step
        Context manager that measures the time of a step, by its name.
    feature_names
        Names of the features, if the sources have them.
    models
        Models by name; models of groups are called ``model@group``.
    earlier
        Models of the last run, by name.
    scores
        Score of each model on the held-out samples, by its name.
    drift
        Test of the newest data against the earlier data; ``None`` if there was no test.
    since
        Run since which the data differs; ``None`` if the test found no difference.
    untested
        Reason why there was no test.
    drifts
        Distances of the new samples from the other samples, and of the total from totals of earlier
        runs, by name.
    between
        Distance of every two groups, by their names.
    groups
        Totals of the groups.
    kept
        Names in the ledger of models that were kept from the last run.
    settings
        Arguments of the decoder, by name of the model.
    read
        Sketch of the samples that this run read; ``None`` if it read no partition.
    breaches
        Limits that the data exceeds.
    refused
        Limits that models exceed, by the names of the models.
    notes
        Observations that are not errors, with remedies.
    """

    job: Job
    ledger: Ledger
    step: Step
    total: Sums
    feature_names: tuple[str, ...] | None = None
    models: dict[str, DecodedModel] = field(default_factory=dict)
    earlier: dict[str, JobModel] = field(default_factory=dict)
    scores: dict[str, dict[str, Any]] = field(default_factory=dict)
    drift: TwoSampleTest | None = None
    since: LastChange | None = None
    untested: str = "There is no new data."
    drifts: dict[str, Drift] = field(default_factory=dict)
    between: dict[tuple[str, str], Drift] = field(default_factory=dict)
    groups: dict[str, Sums] = field(default_factory=dict)
    kept: dict[str, str] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    read: Sums | None = None
    breaches: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def alarm(self) -> bool:
        """Whether the newest data differs from the earlier data by more than the tolerance."""
        return self.drift is not None and self.drift.is_different

    @property
    def has_samples(self) -> bool:
        """Whether the total has more than one sample, so that models are decoded and compared."""
        return self.total.effective_count > 1

    def summary(self, name: str) -> dict[str, Any]:
        """Summary of a model as plain values."""
        return self.models[name].as_dict() | self.scores.get(name, {})

    def decode(self, progress: bool, log: Callable[[str], object]) -> None:
        """Decode the models of all samples and of groups; keep those whose inputs are unchanged."""
        history = self.ledger.history()
        last = history[-1] if history else None
        for table in self.job.decode:
            wanted = {table.name: self.total}
            if table.groups:
                wanted |= {f"{table.name}@{group}": part for group, part in self.groups.items()}
            for name, sketch in wanted.items():
                self._decode(table, name, sketch, last, progress, log)

    def _decode(
        self,
        table: DecodeTable,
        name: str,
        sketch: Sums,
        last: RunRecord | None,
        progress: bool,
        log: Callable[[str], object],
    ) -> None:
        earlier = self.ledger.model(name=name)
        if earlier is not None:
            self.earlier[name] = earlier
        settings = decode_arguments(table, self.job.job.seed) | {
            "n_components": table.n_components,
            "sketch": digest_of(sketch),  # not the number of the run: forgetting changes the sums
        }
        self.settings[name] = settings
        if (
            earlier is not None
            and last is not None
            and name in last.models
            and last.results.get("settings", {}).get(name) == settings
        ):
            self.models[name] = DecodedModel(earlier, "kept", _rows_in(sketch))
            self.kept[name] = last.models[name]
            return
        if not sketch.effective_count > 1:
            text = (
                f"decode {name!r}: {sketch.count:,} samples are too few to decode; check the "
                "sources."
            )
            if not self.breaches:
                raise InputError(text)
            self._refuse(name, text, log)
            return
        log(f"decoding {name} ...")
        decoded = decode_model(self.job, table, sketch, earlier, progress)
        decoded = replace(decoded, rows=_rows_in(sketch))
        wrong = " ".join(model_breaches(self.job.limits, name, decoded.model, sketch))
        if wrong:
            self.models[name] = decoded
            self._refuse(name, wrong, log)
            return
        if isinstance(decoded.model, Model) and isinstance(earlier, Model):
            self.notes += growth_of_cost(name, decoded.model, earlier)
        self.models[name] = decoded
        self.ledger.write_model(self.ledger.next_run, decoded.model, name)

    def _refuse(self, name: str, reason: str, log: Callable[[str], object]) -> None:
        """Refuse a model, and keep the model of the last run if there is one."""
        del self.settings[name]  # so that the next run decodes it again
        self.refused[name] = reason
        log(reason)
        if name in self.earlier:
            self.models[name] = DecodedModel(self.earlier[name], "refused")
            self.kept |= _last_folder(self.ledger, name)

    def check(self, n_read: int, n_tried: int) -> None:
        """Compare the samples that this run read with the limits of the job file.

        Parameters
        ----------
        n_read
            Number of partitions that this run read. Partitions that a failed run committed before
            count for this run as well.
        n_tried
            Number of new and changed partitions, also those that could not be read.
        """
        run = self.ledger.next_run
        keys = [key for key, entry in self.ledger.entries.items() if entry.run == run]
        others = None
        if keys:
            every = len(keys) == len(self.ledger.entries)
            total = without_rows(self.total)
            self.read = total if every else self.ledger.total(keys, sample=False)
            others = None if every else total - self.read
        limits, names = self.job.limits, self.feature_names
        if len(keys) > n_read:
            self.notes.append(
                f"{counted(len(keys) - n_read, 'partition')} of a run before this one, which did "
                "not end, count for this run."
            )
        if not (keys or n_tried) and limits.partitions is None and limits.rows is None:
            self.notes.append(
                "No partition is new or has changed. If there should be new data, check the "
                "sources, and set limits.partitions = [1, 1000], for example, in the job file: "
                "such a run then ends with exit code 8."
            )
        judged = self.read
        if judged is None and not self.has_samples:  # an earlier run read the data that is wrong
            judged = self.total
        self.breaches += data_breaches(limits, len(keys), judged, others, names)

    def compare(self) -> None:
        """Compare new samples with the other ones, the total with earlier totals, and groups."""
        ledger, run = self.ledger, self.ledger.next_run
        total = self.total
        if isinstance(total, SecondMoments):
            self.untested = _NO_TEST
            return
        entries = ledger.entries
        models = [decoded.model for decoded in self.models.values()]
        distribution = next((one for one in models if isinstance(one, Model)), None)
        seed = self.job.job.seed
        if isinstance(self.read, Sketch):
            new, old = self.read, total.without_sample() - self.read
            if min(new.effective_count, old.effective_count) > 0:
                self.drifts[NEW_SAMPLES] = drift(old, new, model=distribution, seed=seed)
                self._test_drift()
            elif old.effective_count > 0:
                self.untested = "This run read no samples that could be compared."
            else:
                self.untested = "There is no earlier data to compare with."
        states = [one for one in ledger.states(self.job.drift.states) if one[1].total_weight > 0]
        for number, state in reversed(states):
            if state.identical(total) or not self.has_samples:
                continue
            # partitions that have not changed since that run; their fraction of the squared
            # weights is assumed to equal their fraction of the samples
            known = sum(entry.count for entry in entries.values() if entry.run <= number)
            fraction = known / max(total.count, 1)
            shared = min(fraction * total.squared_weight, state.squared_weight)
            name = STATE if number == run - 1 else f"state against that of run {number}"
            self.drifts[name] = drift(state, total, shared=shared, model=distribution, seed=seed)
        if self.job.drift.groups:
            groups = {name: one for name, one in self.groups.items() if isinstance(one, Sketch)}
            self.between = drifts_between(groups, model=distribution, seed=seed)

    def _test_drift(self) -> None:
        """Test the newest data against the earlier data, if there are enough partitions."""
        table = self.job.drift
        try:
            self.drift = self.ledger.drift(**table.arguments(), seed=self.job.job.seed)
        except InputError as error:  # too few units, or too little memory
            self.untested = (
                f"Not tested yet: {error} Later runs have more units; a larger "
                "drift.false_alarms_per_year gives a larger level."
            )
        except LedgerError as error:
            if error.parameter not in ("window", "reference", "strata"):
                raise
            self.untested = str(error)
        if self.alarm:
            self.since = find_last_change(
                self.ledger, table.unit, table.strata, self.job.job.seed, serial=table.serial
            )
        if self.drift is not None:
            last = None if self.since is None else self.since.last
            label = None if last is None else last.dated_label
            run = self.ledger.next_run
            log_drift(active_client(), self.job.job.name, run, self.drift.as_dict(), label)

    def score(self) -> None:
        """Score the models on the samples that no run sketches."""
        table = self.job.score
        if table is None:
            return
        for name, decoded in self.models.items():
            points = isinstance(decoded.model, Centroids)
            lazy = apply(
                decoded.model,
                "inertia" if points else "score",
                self.job.resolve(table.path),
                array=table.array,
                columns=columns_of(self.job, table, decoded.model.feature_names),
                weights=table.weights,
                chunk_size=table.chunk_size,
                missing_chunks=table.missing_chunks,
                storage_options=self.job.options(table.storage_options, table.path),
            )
            (value,) = compute_plain(lazy)
            key = "mean_squared_distance" if points else "score"
            unit = "squared units of the data" if points else "nats per row"
            self.scores[name] = {key: float(value), "unit": unit}


def _rows_in(sums: Sums) -> int:
    return 0 if isinstance(sums, SecondMoments) or sums.sample is None else len(sums.sample)


def _last_folder(ledger: Ledger, name: str) -> dict[str, str]:
    """Folder in the ledger of the last model of a name."""
    folders = [run.models[name] for run in ledger.history() if name in run.models]
    return {name: folders[-1]} if folders else {}


def _no_groups(table: GroupsTable, ledger: Ledger) -> str:
    pattern = None if table.pattern is None else table.pattern.pattern
    return (
        f"groups.pattern = {pattern!r}: matches the key of no partition, so there are no groups; "
        f"keys look like {min(ledger.entries)!r}."
    )


def digest_of(sketch: Sums) -> str:
    """Digest of sums, by which sketches of one feature map, or moments of one grid, differ."""
    total = hashlib.sha256(f"{sketch.count} {sketch.total_weight!r}".encode())
    if isinstance(sketch, SecondMoments):
        total.update(f"{sketch.squared_weight_quanta}".encode())
        for words in (sketch.sums.high, sketch.sums.low):
            total.update(np.ascontiguousarray(words).data)
        return total.hexdigest()[:16]
    for values in (sketch.moment_sum, sketch.first_moment, sketch.second_moment):
        total.update(values.tobytes())
    return total.hexdigest()[:16]


def make_results(
    job: Job,
    ledger: Ledger,
    step: Step,
    progress: bool,
    log: Callable[[str], object],
    feature_names: tuple[str, ...] | None = None,
    *,
    n_read: int,
    n_tried: int,
) -> Results:
    """Decode, score and compare the totals of a ledger.

    Parameters
    ----------
    job
        Job file.
    ledger
        Ledger of the job, up to date and locked.
    step
        Context manager that measures the time of a step, by its name.
    progress, log
        Arguments of :func:`~dask_sketch.jobs.run.run_job`.
    feature_names
        Names of the features.
    n_read
        Number of partitions that this run read.
    n_tried
        Number of new and changed partitions, also those that could not be read.

    Returns
    -------
    results
        Models, scores and comparisons.

    Raises
    ------
    InputError
        If there are too few samples for a model.
    """
    results = Results(job, ledger, step, ledger.total(), feature_names)
    results.check(n_read, n_tried)
    with step("decode"):
        if job.groups is not None:
            keys: Mapping[str, list[str]] = group_keys(job.groups, ledger.entries)
            if ledger.entries and not keys:
                log(_no_groups(job.groups, ledger))
                results.notes.append(_no_groups(job.groups, ledger))
            # whether models of groups need rows
            with_rows = any(table.groups for table in job.decode)
            results.groups = {
                name: ledger.total(those, sample=with_rows) for name, those in keys.items()
            }
        results.decode(progress, log)
    with step("score"):
        results.score()
    with step("drift"):
        results.compare()
    return results
