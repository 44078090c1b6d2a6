"""Records as pictures, one function for each figure of the papers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from tests.benchmarks.paper.clusters import DISTRIBUTIONS
from tests.benchmarks.paper.records import REFERENCES, Line, Run, lines, select

COLOURS = ("#3b82d6", "#d97706", "#3a9150", "#8b5cf6", "#db2777", "#0f8b8d", "#a16207")
MARKERS = "osD^vPX"
GREY, RED = "#5b5e63", "#b91c1c"


def figure(n_rows: int, n_columns: int, width: float = 4.6, height: float = 3.6) -> Any:
    """A figure that belongs to nobody else, and its axes as an array of two dimensions."""
    drawing = Figure(figsize=(n_columns * width, n_rows * height), layout="constrained", dpi=150)
    return drawing, drawing.subplots(n_rows, n_columns, squeeze=False)


def curves(
    ax: Axes, runs: Sequence[Run], x: str, label: str = "{method}", middle: str = "mean"
) -> None:
    """One curve for each label: mean or median over the draws, and their range as a band.

    References are grey; one that does not depend on ``x`` is a horizontal line.
    """
    groups: dict[str, list[Line]] = {}
    for line in sorted(lines(runs), key=lambda line: line.method in REFERENCES):  # they come last
        reference = line.method in REFERENCES
        name = line.method if reference else label.format(method=line.method, **line.setting)
        groups.setdefault(name, []).append(line)
    colours = iter(zip(COLOURS, MARKERS, strict=True))
    for name, found in groups.items():
        if x not in found[0].setting:
            level = float(np.mean([getattr(line, middle) for line in found]))
            ax.axhline(level, label=name, **_grey(name))
            continue
        found.sort(key=lambda line: line.setting[x])
        at = [line.setting[x] for line in found]
        heights = [getattr(line, middle) for line in found]
        if name in REFERENCES:
            ax.plot(at, heights, label=name, **_grey(name))
            continue
        colour, marker = next(colours)
        ax.plot(at, heights, label=name, color=colour, marker=marker, ms=4.5)
        low, high = ([limit(line.values) for line in found] for limit in (min, max))
        ax.fill_between(at, low, high, color=colour, alpha=0.12, lw=0)


def _grey(name: str) -> dict[str, Any]:
    return {"color": GREY, "lw": 1.6, "ls": "--" if name == REFERENCES[0] else ":"}


def bound(ax: Axes, runs: Sequence[Run], x: str) -> None:
    """The curve of ``ln(p / n)``, where records carry it."""
    found = {line.setting[x]: line.bound for line in lines(runs) if x in line.setting}
    known = sorted((at, value) for at, value in found.items() if value is not None)
    if known:
        ax.plot(*zip(*known, strict=True), color=RED, lw=1.2, ls="-.", label="bound ln(p/n)")


def against_factor(runs: Sequence[Run]) -> Figure:
    """Keriven et al., Figure 3, lower half."""
    drawing, axes = figure(1, 2)
    for ax, measure in zip(axes[0], ("ln KL", "ln MMD"), strict=True):
        chosen = select(runs, measure=measure)
        curves(ax, chosen, "A", "{method}, {frequencies}")
        bound(ax, chosen, "A")
        ax.set(xlabel="factor A between the features' scales", ylabel=measure)
    middle = float(np.mean(axes[0, 1].get_ylim()))
    axes[0, 1].set_ylim(middle - 1.0, middle + 1.0)  # small differences shall look small
    axes[0, 0].legend(fontsize=7)
    return drawing


def against_frequencies(runs: Sequence[Run]) -> Figure:
    """Keriven et al., Figure 4."""
    drawing, axes = figure(1, 2)
    ratio = "m / ((2d+1)K)"
    for ax, fixed, free in ((axes[0, 0], "K", "d"), (axes[0, 1], "d", "K")):
        ours = [run for run in select(runs, **{fixed: 10}) if run.method not in REFERENCES]
        ours.sort(key=lambda run: run.setting[free])
        curves(ax, ours, ratio, f"{free} = {{{free}}}")
        ax.set_ylim(top=min(ax.get_ylim()[1], 4.0))  # what fails, fails by any amount
        ax.axvline(5.0, color=GREY, lw=1.2, ls=":", label="m = 5 (2d+1) K")
        ax.set(xlabel=ratio, ylabel="ln KL, CL-OMPR", title=f"{fixed} = 10")
        ax.legend(fontsize=7)
    return drawing


def against_samples(runs: Sequence[Run]) -> Figure:
    """Keriven et al., Figure 5."""
    cases = sorted({run.setting["K"] for run in runs})
    drawing, axes = figure(1, len(cases))
    for ax, n_components in zip(axes[0], cases, strict=True):
        chosen = select(runs, K=n_components)
        curves(ax, chosen, "n")
        bound(ax, chosen, "n")
        ax.set(xscale="log", xlabel="number of samples n", ylabel="ln KL")
        ax.set_title(f"d = 10, K = {n_components}")
    axes[0, -1].legend(fontsize=7)
    return drawing


def distances(runs: Sequence[Run]) -> Figure:
    """Keriven et al., Figure 8."""
    drawing, axes = figure(1, 2)
    left, right = select(runs, half="left"), select(runs, half="right")
    curves(axes[0, 0], left, "m / ((2d+1)K)")
    axes[0, 0].set(xlabel="m / ((2d+1)K)", ylabel="ln MMD", title="exact moments")
    curves(axes[0, 1], right, "n")
    sizes = np.array(sorted({run.setting["n"] for run in right}), dtype=float)
    slope = [run.value for run in right if run.setting["n"] == sizes[0]]
    line = np.mean(slope) - 0.5 * np.log(sizes / sizes[0])
    axes[0, 1].plot(sizes, line, color=RED, lw=1.2, ls="-.", label="slope of n^(-1/2)")
    axes[0, 1].set(xscale="log", xlabel="number of samples n", title="m = 5 (2d+1) K")
    for ax in axes[0]:
        ax.legend(fontsize=7)
    return drawing


def against_measurements(runs: Sequence[Run]) -> Figure:
    """Gribonval et al. 2021, section 3: losses of components by the size of the sketch."""
    drawing, axes = figure(1, 2)
    titles = {"rank 3": "covariance of rank 3", "1/i": "eigenvalues 1 / i"}
    ratios, top = sorted({run.setting["m/(kd)"] for run in runs}), max(run.value for run in runs)
    for ax, (spectrum, title) in zip(axes[0], titles.items(), strict=True):
        curves(ax, select(runs, spectrum=spectrum), "m/(kd)")
        ax.set(xlabel="numbers in the sketch, m / (K d)", title=title, xticks=ratios)
        ax.set_ylim(-0.03 * top, 1.05 * top)
    axes[0, 0].set_ylabel("excess risk, % of the variance")
    axes[0, 0].legend(frameon=False)
    return drawing


def error_by_bandwidth(runs: Sequence[Run]) -> Figure:
    """Sketch-and-shift, Figure 1: data, and mean squared error."""
    drawing, axes = figure(1, 2)
    scatter(axes[0, 0], runs[0].setting["data"])
    _by_bandwidth(axes[0, 1], runs, "{method}, m={m}", "mean squared error")
    return drawing


def relative_error_by_bandwidth(runs: Sequence[Run]) -> Figure:
    """Sketch-and-shift, Figure 5."""
    sizes = sorted({run.setting["m"] for run in runs if "m" in run.setting})
    drawing, axes = figure(1, len(sizes))
    for ax, m in zip(axes[0], sizes, strict=True):
        chosen = [run for run in runs if run.setting.get("m", m) == m]
        _by_bandwidth(ax, chosen, "{method}", "RSE")
        ax.set_title(f"m = {m}")
    return drawing


def planes(runs: Sequence[Run]) -> Figure:
    """Sketch-and-shift, Figures 6 and 8: RSE over bandwidth and size, a panel each decoder."""
    ours = [run for run in runs if run.method not in REFERENCES]
    names = list(dict.fromkeys(run.method for run in ours))
    drawing, axes = figure(1, len(names), width=3.4, height=3.4)
    for ax, name in zip(axes[0], names, strict=True):
        plane(ax, [run for run in ours if run.method == name], name)
    return drawing


def models(runs: Sequence[Run]) -> Figure:
    """Sketch-and-shift, Figure 7: the two data sets, points below them, Gaussians below those."""
    ours = [run for run in runs if run.method not in REFERENCES]
    names = list(dict.fromkeys(run.method for run in ours))
    sets = list(dict.fromkeys(run.setting["data"] for run in ours))
    drawing, axes = figure(1 + len(names), len(sets), width=4.2, height=3.0)
    for column, data in enumerate(sets):
        scatter(axes[0, column], data)
        for row, name in enumerate(names, start=1):
            chosen = [run for run in select(ours, data=data) if run.method == name]
            plane(axes[row, column], chosen, name)
    return drawing


def scatter(ax: Axes, data: str) -> None:
    """Some samples of one of the data sets."""
    x = DISTRIBUTIONS[data]().sample(2_000, seed=1)
    ax.plot(*x[:, :2].T, ".", color=COLOURS[0], ms=2, alpha=0.4)
    ax.set(xlim=(-1, 1), ylim=(-1, 1), aspect="equal", title=f"three clusters, {data}")


def plane(ax: Axes, runs: Sequence[Run], title: str) -> None:
    """Median RSE in each cell, in figures and as colour, from 1 to more than 2."""
    found = {(line.setting["m"], line.setting["sigma"]): line.median for line in lines(runs)}
    sizes, sigmas = (sorted({key[i] for key in found}) for i in (0, 1))
    values = np.array([[found[m, sigma] for sigma in sigmas] for m in sizes])
    shades = ListedColormap([(0.23, 0.51, 0.84, a) for a in np.linspace(0.75, 0.02, 64)])
    ax.imshow(values, origin="lower", aspect="auto", cmap=shades, norm=Normalize(1.0, 2.0))
    for (row, column), value in np.ndenumerate(values):
        shown = f"{value:.2f}" if value < 9.95 else f"{value:.0f}"
        ax.text(column, row, shown, ha="center", va="center", fontsize=7)
    ax.set_xticks(range(len(sigmas)), [f"{sigma:g}" for sigma in sigmas])
    ax.set_yticks(range(len(sizes)), [str(m) for m in sizes])
    ax.set(xlabel="bandwidth σ", ylabel="frequencies m")
    ax.set_title(f"{title}: median RSE", fontsize=9)


def _by_bandwidth(ax: Axes, runs: Sequence[Run], label: str, name: str) -> None:
    curves(ax, runs, "sigma", label, middle="median")
    ax.set(xscale="log", yscale="log", xlabel="bandwidth σ", ylabel=f"{name}, median")
    sigmas = sorted({run.setting["sigma"] for run in runs if "sigma" in run.setting})
    ax.set_xticks(sigmas, [f"{sigma:g}" for sigma in sigmas], fontsize=8)
    ax.xaxis.set_minor_locator(NullLocator())
    ax.legend(fontsize=7)
