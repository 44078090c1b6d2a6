"""Report of a run on principal components: variances, features and changes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from dask_sketch.diagnostics.report import Answer, Section, write_page
from dask_sketch.diagnostics.report_figures import Drawing
from dask_sketch.display.plots import plot_explained_variance
from dask_sketch.jobs.outcome import COMMAND
from dask_sketch.jobs.report_sections import (
    MAX_ROWS,
    breach_sentences,
    complete_answer,
    missing_section,
    partitions_sentence,
    past_section,
    plan_section,
    quarantine_section,
    run_section,
    run_sentences,
    run_steps,
)
from dask_sketch.models.principal_components import PrincipalComponents
from dask_sketch.sketching.second_moments import SecondMoments
from dask_sketch.validation.tables import feature_labels

if TYPE_CHECKING:
    from dask_sketch.jobs.outcome import Outcome
    from dask_sketch.jobs.results import Results

_MAX_EXCESS = 0.02  # excess risk from which more columns are advised
_LARGEST = 3  # features named for each component


def write_component_page(
    results: Results,
    outcome: Outcome,
    planned: Mapping[str, Any],
    name: str,
    versions: Mapping[str, str] | None = None,
) -> None:
    """Write the report of a run on principal components.

    Parameters
    ----------
    results
        Components of this run and of the last one.
    outcome
        Outcome of the run.
    planned
        Fields of the plan of the run, see :meth:`JobPlan.as_dict`.
    name
        Name of the model that is shown.
    versions
        Versions of the software of the run.
    """
    assert outcome.report is not None
    job, moments = results.job, results.total
    components = results.models[name].model
    assert isinstance(components, PrincipalComponents)
    assert isinstance(moments, SecondMoments)
    d = components.n_features
    titles = feature_labels(d, results.feature_names)
    caption = "Fraction of the variance along each component, and together with those before it."
    fraction = float(components.explained_variance_ratio.sum())
    drawn = partial(plot_explained_variance, components.explained_variance_ratio)
    write_page(
        outcome.report,
        title=f"{job.job.name}: {outcome.title}",
        answers=[
            complete_answer(outcome),
            _good(outcome, components),
            _changed(results, outcome, name),
            _actions(outcome, components),
        ],
        summary=[
            f"{outcome.samples:,} samples with {d:,} features each are summarised by exact second "
            "moments; the samples themselves are not kept.",
            *run_sentences(outcome),
            f"{components.n_components:,} principal components have {fraction:.1%} of the "
            "variance.",
        ],
        sections=[
            *quarantine_section(outcome),
            _components(components, titles),
            _features(moments, titles),
            run_section(outcome),
            *missing_section(outcome),
            *past_section(results, outcome),
            *plan_section(outcome, planned),
        ],
        pictures=[Drawing("Explained variance", caption, drawn).picture()],
        facts={
            "Data": {table.name: job.resolve(table.path) for table in job.sources},
            "Second moments": {
                "sums": f"{moments.grid.n_sums:,}",
                "columns of the test matrix": str(moments.grid.n_columns or "none: all moments"),
                "total weight": f"{moments.total_weight:,.6g}",
                "omitted rows": f"{moments.omitted:,}",
            },
        },
        versions=versions,
        command=f"{COMMAND} {job.path}\ndask-sketch report {job.path}",
    )


def _good(outcome: Outcome, components: PrincipalComponents) -> Answer:
    if outcome.breaches:
        return Answer("Is it good?", breach_sentences(outcome), strong=True)
    if components.excess_risk == 0.0:
        return Answer("Is it good?", ["Yes: the components are exact, from all second moments."])
    excess = "unknown" if np.isnan(components.excess_risk) else f"{components.excess_risk:.2%}"
    text = [f"The excess risk of the components is {excess} of the variance outside of them."]
    return Answer("Is it good?", text, _needs_columns(components))


def _needs_columns(components: PrincipalComponents) -> bool:
    return not components.excess_risk <= _MAX_EXCESS


def _changed(results: Results, outcome: Outcome, name: str) -> Answer:
    text = [partitions_sentence(outcome)]
    turned = results.models[name].turned
    if turned is not None:
        text.append(
            f"The subspace of the components has turned by up to {turned:.3g} degrees since the "
            "last run."
        )
    text.append(outcome.untested)
    return Answer("What has changed since last time?", text)


def _actions(outcome: Outcome, components: PrincipalComponents) -> Answer:
    steps = run_steps(outcome)
    if _needs_columns(components):
        steps.append("Start a new ledger with more feature_map.n_columns.")
    return Answer("What is to be done?", steps or ["Nothing."], bool(steps))


def _components(components: PrincipalComponents, titles: list[str]) -> Section:
    """Variance of each component, and the features with the largest entries."""
    ratios = components.explained_variance_ratio
    rows = []
    for k, axis in enumerate(components.components[:MAX_ROWS]):
        largest = np.argsort(-np.abs(axis), kind="stable")[:_LARGEST]
        rows.append(
            (
                str(k),
                f"{components.explained_variance[k]:.4g}",
                f"{ratios[k]:.2%}",
                f"{ratios[: k + 1].sum():.2%}",
                ", ".join(f"{axis[j]:+.2f} {titles[j]}" for j in largest),
            )
        )
    header = ("component", "variance", "of all", "together", "largest entries")
    text = f"{components.n_components:,} components of {components.n_samples:,} samples."
    return Section("Principal components", text, header, rows)


def _features(moments: SecondMoments, titles: list[str]) -> Section:
    """Means and standard deviations of the features with the largest variances."""
    mean, variance = moments.mean, moments.variance
    order = np.argsort(-np.nan_to_num(variance), kind="stable")[:MAX_ROWS]
    rows = [(titles[j], f"{mean[j]:.4g}", f"{variance[j] ** 0.5:.4g}") for j in order]
    text = "The largest variances first: they determine the components."
    return Section("Features", text, ("feature", "mean", "standard deviation"), rows)
