"""Write a self-contained HTML report on a sketch, a model or both (extra ``plot``)."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from numpy.typing import ArrayLike

from dask_sketch.diagnostics.fit import FitDiagnostics, diagnose
from dask_sketch.diagnostics.report_figures import Drawing, Picture, draw_pictures
from dask_sketch.display.text import counted, describe, describe_bytes
from dask_sketch.display.theme import SCHEMES
from dask_sketch.errors import InputError
from dask_sketch.models.centroids import Centroids
from dask_sketch.models.gaussian_mixture import GaussianMixture
from dask_sketch.storage.local_files import replacing, write_errors
from dask_sketch.validation.tables import feature_labels, names_in, require_common_names

if TYPE_CHECKING:
    from dask_sketch.diagnostics.comparison import Comparison
    from dask_sketch.features.feature_map import FeatureMap
    from dask_sketch.graph.plan import Plan
    from dask_sketch.graph.telemetry import TaskStatistics
    from dask_sketch.sketching.sketch import Sketch

_TITLE = "A model from a sketch"
PACKAGES = ("dask-sketch", "dask", "distributed", "numba", "numpy", "scipy", "xarray", "zarr")
# parts of the template that are empty on pages without a fit
_NO_FIT: dict[str, Any] = {
    "plan": [],
    "diagnostics": {},
    "findings": None,
    "comparison": None,
    "components": [],
    "features": [],
    "mixture": False,
    "names": [],
}


@dataclass(frozen=True)
class Section:
    """Table of a report with a heading and an explanation.

    Attributes
    ----------
    title
        Heading.
    text
        Explanation of the table.
    header
        Names of the columns.
    rows
        Cells of each row.
    strong
        Numbers of the rows to highlight.
    """

    title: str
    text: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    strong: Set[int] = frozenset()


@dataclass(frozen=True)
class Answer:
    """Question about a run or a model, with its answer.

    Attributes
    ----------
    question
        Question in a few words.
    sentences
        Answer; the first sentence is the short form.
    strong
        Whether to highlight the answer, as it asks for an action.
    """

    question: str
    sentences: Sequence[str]
    strong: bool = False


def write_report(
    path: str | Path,
    sketch: Sketch | None = None,
    model: GaussianMixture | Centroids | None = None,
    *,
    title: str | None = None,
    source: Mapping[str, object] | None = None,
    feature_map: FeatureMap | None = None,
    plan: Plan | None = None,
    observed: TaskStatistics | None = None,
    comparison: Comparison | None = None,
    heldout: Sketch | None = None,
    sample: ArrayLike | None = None,
    names: Sequence[str] | None = None,
    answers: Sequence[Answer] = (),
    diagnostics: FitDiagnostics | None = None,
    summary: Sequence[str] = (),
    sections: Sequence[Section] = (),
    drawings: Sequence[Drawing] = (),
    versions: Mapping[str, str] | None = None,
    command: str = "",
) -> Path:
    """Write a report as one page, which loads nothing from the network or other files.

    Parameters
    ----------
    path
        File to write, replaced if it exists; its folder is created.
    sketch, model
        Sketch and model to report on, at least one of them.
    title
        Heading.
    source
        Names and values that describe the data.
    feature_map
        Feature map as returned by :func:`design`, with its scale fit, which files do not store.
    plan, observed
        Plan of the pass, and statistics of its tasks.
    comparison
        Scores of this mixture and of other ones.
    heldout
        Sketch of samples that the model was not fitted to, by the same map.
    sample
        Rows of data to draw under the mixture, shape (n_samples, n_features).
    names
        Names of the features; by default the names in the model or in the feature map.
    answers
        Questions with their answers, shown first. With answers, the summary leaves out the fit.
    diagnostics
        Result of :func:`diagnose`; by default it is computed.
    summary
        Further sentences of the summary, after the sentences on samples, model and fit.
    sections
        Additional tables, such as the changes and the drift of a job, shown before the pictures.
    drawings
        Additional pictures, shown before the others.
    versions
        Versions of the software; by default the installed ones.
    command
        Command line that reproduces the report.

    Returns
    -------
    path
        Path of the report.

    Raises
    ------
    InputError
        If matplotlib is missing, there is neither sketch nor model, or ``heldout``, ``sample`` or
        ``names`` do not fit the model, or the names of the features of two arguments differ.
    """
    about = model if model is not None else None if sketch is None else sketch.feature_map
    if about is None:
        raise InputError("sketch=None, model=None: a report needs one of them, or both.")
    labels = feature_labels(about.n_features, about.feature_names if names is None else names)
    if len(labels) != about.n_features:
        raise InputError(
            f"names has {len(labels)} names for {about.n_features} features: give one for each."
        )
    maps = {
        "sketch": getattr(sketch, "feature_map", None),
        "feature_map": feature_map,
        "heldout": getattr(heldout, "feature_map", None),
    }
    named = {name: getattr(artifact, "feature_names", None) for name, artifact in maps.items()}
    require_common_names(
        {"model": getattr(model, "feature_names", None), **named, "sample": names_in(sample)}
    )
    fit = diagnostics
    if fit is None and sketch is not None and model is not None:
        fit = diagnose(model, sketch, heldout)
    drawn = feature_map or (None if sketch is None else sketch.feature_map)
    return write_page(
        path,
        title=title or ("A model" if sketch is None else "A sketch" if model is None else _TITLE),
        answers=answers,
        summary=[
            *_sentences(sketch, model, None if answers else fit, plan, observed),
            *summary,
        ],
        sections=sections,
        pictures=draw_pictures(sketch, model, drawn, sample, labels, drawings),
        facts={
            "Data": dict(source or {}) | _counts(sketch),
            "Sketch and decoding": _sketch_fields(sketch, model),
        },
        versions=versions,
        command=command,
        plan=_plan_rows(plan, observed, sketch),
        diagnostics={} if fit is None else fit._fields(),
        findings=None if fit is None else list(fit.findings.values()),
        comparison=comparison,
        components=[] if model is None else _component_rows(model),
        features=_feature_rows(sketch, labels),
        mixture=isinstance(model, GaussianMixture),
        names=labels,
    )


def write_page(
    path: str | Path,
    *,
    title: str,
    answers: Sequence[Answer] = (),
    summary: Sequence[str] = (),
    sections: Sequence[Section] = (),
    pictures: Sequence[Picture] = (),
    facts: Mapping[str, Mapping[str, object]] | None = None,
    versions: Mapping[str, str] | None = None,
    command: str = "",
    **fit: Any,
) -> Path:
    """Write one page of answers, tables and pictures.

    Parameters
    ----------
    path
        File to write, replaced if it exists; its folder is created.
    title
        Heading.
    answers
        Questions with their answers, shown first.
    summary
        Sentences below the answers.
    sections, pictures
        Tables, then pictures.
    facts
        Names and values, by the heading of their table.
    versions
        Versions of the software; by default the installed ones.
    command
        Command line that reproduces the page.
    fit
        Parts of the template on the fit of a model.

    Returns
    -------
    path
        Path of the page.
    """
    used = installed_versions() if versions is None else versions
    environment = Environment(
        loader=PackageLoader("dask_sketch.diagnostics"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template("report.html.jinja").render(
        _NO_FIT
        | fit
        | {
            "title": title,
            "schemes": SCHEMES,
            "answers": list(answers),
            "summary": list(summary),
            "sections": sections,
            "pictures": pictures,
            "facts": facts or {},
            "versions": dict(sorted(used.items())),
            "command": command,
        }
    )
    out = Path(path)
    with write_errors(out), replacing(out) as new:
        # names of files may not be UTF-8
        new.write_text(page, encoding="utf-8", errors="backslashreplace")
    return out


def _sentences(
    sketch: Sketch | None,
    model: GaussianMixture | Centroids | None,
    fit: FitDiagnostics | None,
    plan: Plan | None,
    observed: TaskStatistics | None,
) -> list[str]:
    """Sentences of the summary."""
    sentences = []
    if sketch is not None:
        d = sketch.feature_map.n_features
        size = describe_bytes(sketch.__sizeof__())
        of = "" if plan is None or not plan.bytes_read else f" of {describe_bytes(plan.bytes_read)}"
        samples = f"{sketch.count:,} samples" if sketch.privacy is None else "Samples"
        rows = "the samples themselves are not kept"
        if sketch.sample is not None:
            rows = f"{len(sketch.sample):,} random samples are kept beside the sums"
        sentences.append(
            f"{samples}{of} with {d} features each are summarised by a sketch of {size}; {rows}."
        )
        if sketch.omitted:
            sentences.append(f"{sketch.omitted:,} rows with missing values were left out.")
    if model is not None:
        k = model.n_components
        kind = "Gaussians" if isinstance(model, GaussianMixture) else "centroids"
        sentences.append(f"The model consists of {k} {kind if k > 1 else kind[:-1]}.")
    if fit is not None:
        n = len(fit.findings)
        sentences.append(
            "No problem of the fit was found."
            if not n
            else f"{counted(n, 'problem')} of the fit found: see below."
        )
    if observed is not None and observed.seconds:
        expected = ""
        if plan is not None and plan.calibration is not None:
            expected = f" (planned: {plan.estimate().seconds:.3g} s)"
        sentences.append(f"Reading and sketching took {observed.seconds:.3g} s{expected}.")
    return sentences


def _counts(sketch: Sketch | None) -> dict[str, str]:
    if sketch is None:
        return {}
    if sketch.privacy is not None:
        return {"total weight": f"{sketch.total_weight:,.6g}"}
    return {"samples": f"{sketch.count:,}", "omitted": f"{sketch.omitted:,}"}


def _plan_rows(
    plan: Plan | None, observed: TaskStatistics | None, sketch: Sketch | None
) -> list[tuple[str, str, str]]:
    """Name, planned value and observed value of each quantity."""
    if plan is None:
        return []
    seen = {}
    if observed is not None:
        seen = {"tasks": str(observed), "time": f"{observed.seconds:.3g} s"}
        if sketch is not None:
            seen["samples"] = f"{sketch.count + sketch.omitted:,}"
    rows = [
        (name, value, seen.pop(name, ""))
        for name, value in plan._fields().items()
        if name != "source"
    ]
    if observed is None:
        return rows
    rate = plan.n_samples / observed.seconds if plan.n_samples and observed.seconds else None
    rows += [(name, "", value) for name, value in seen.items()]
    rows.append(("time of all threads", "", f"{observed.busy_seconds:.3g} s"))
    if rate is not None:
        rows.append(("samples per second", "", f"{rate:,.0f}"))
    return rows


def _feature_rows(sketch: Sketch | None, names: list[str]) -> list[tuple[str, ...]]:
    """Name, mean, standard deviation and range of each feature; empty for private sketches."""
    if sketch is None or sketch.privacy is not None or not sketch.total_weight > 0:
        return []
    columns = (sketch.mean, np.sqrt(sketch.variance), sketch.minimum, sketch.maximum)
    return [
        (name, *(f"{value:.4g}" for value in values))
        for name, *values in zip(names, *columns, strict=True)
    ]


def _sketch_fields(
    sketch: Sketch | None, model: GaussianMixture | Centroids | None
) -> dict[str, str]:
    fields = {}
    if sketch is not None:
        values = describe(sketch.feature_map.as_dict())
        fields = {
            "frequencies": f"{sketch.feature_map.n_frequencies:,}",
            "size in memory": f"{sketch.__sizeof__() / 1e3:,.0f} kB",
            "noise of |z|": f"{np.sqrt(sketch.noise_level):.2g}"
            if sketch.total_weight > 0
            else "no samples",
            "feature map": f"{sketch.feature_map.distribution}, digest "
            f"{sketch.feature_map.digest[:12]}",
            "scale": values.get("scale") or values["scale_range"],
        }
        if sketch.privacy is not None:
            privacy = sketch.privacy
            fields["privacy"] = (
                f"{privacy.mechanism} noise, epsilon {privacy.epsilon_total:g}, "
                f"delta {privacy.delta_total:g}"
            )
    if model is not None and model.decoding is not None:
        decoding = model.decoding
        refined = "" if decoding.refine is None else f", {decoding.refine} refinement"
        fields["decoded by"] = (
            f"{decoding.method}{refined}, {decoding.seconds:.1f} s, "
            f"{decoding.n_evaluations} evaluations"
        )
        end = "converged" if decoding.converged else f"stopped: {decoding.message}"
        fields["last descent"] = end
    return fields


def _component_rows(model: GaussianMixture | Centroids) -> list[tuple[str, list[str]]]:
    """Weight, and mean and standard deviation in each feature, of each component."""
    if isinstance(model, Centroids):
        rows = zip(model.weights, model.centers, strict=True)
        return [(f"{weight:.4f}", [f"{x:.4g}" for x in center]) for weight, center in rows]
    deviations = np.sqrt(model.variances)
    return [
        (
            f"{weight:.4f}",
            [f"{mean:.4g} ± {deviation:.3g}" for mean, deviation in zip(*pair, strict=True)],
        )
        for weight, *pair in zip(model.weights, model.means, deviations, strict=True)
    ]


def installed_versions() -> dict[str, str]:
    """Versions of Python and of the packages that affect results, by name."""
    return {"python": platform.python_version()} | {name: _version(name) for name in PACKAGES}


@cache  # a version is read from a file of the package
def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
