"""All experiments by name: what they are called, how they run, how they are drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.benchmarks.paper import (
    active_search,
    anisotropy,
    bandwidths,
    distributions,
    divergence_cases,
    kernel_choice,
    pictures,
    quadratic,
    sizes,
    thesis,
)
from tests.benchmarks.paper.clusters import SPECTRAL
from tests.benchmarks.paper.records import Job, Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Experiment:
    """One table or figure; ``needs`` is the file of data that its jobs are given."""

    title: str
    jobs: Callable[..., list[Job]]
    draw: Callable[[Sequence[Run]], Figure] | None = None
    needs: str | None = None


_KERIVEN = "Keriven et al. 2018"
_SHIFT = "sketch-and-shift"
_THESIS = "Sutherland 2016"
EXPERIMENTS: dict[str, Experiment] = {
    "table-2": Experiment(
        f"{_KERIVEN}, Table 2: ln KL by distribution of frequencies", distributions.table_2
    ),
    "table-3": Experiment(
        f"{_KERIVEN}, Table 3: what a scale costs to find", distributions.table_3
    ),
    "figure-3": Experiment(
        f"{_KERIVEN}, Figure 3: half the features divided by A (d=10, K=10, m=2000)",
        anisotropy.figure_3,
        pictures.against_factor,
    ),
    "figure-4": Experiment(
        f"{_KERIVEN}, Figure 4: ln KL against the number of frequencies",
        sizes.figure_4,
        pictures.against_frequencies,
    ),
    "figure-5": Experiment(
        f"{_KERIVEN}, Figure 5: ln KL against the number of samples (d=10, m=5(2d+1)K)",
        sizes.figure_5,
        pictures.against_samples,
    ),
    "figure-8": Experiment(
        f"{_KERIVEN}, Figure 8: ln MMD, exact moments and sampled (d=10, K=5)",
        sizes.figure_8,
        pictures.distances,
    ),
    "shift-1": Experiment(
        f"{_SHIFT}, Figure 1: mean squared error, three clusters in 2-D",
        bandwidths.figure_1,
        pictures.error_by_bandwidth,
    ),
    "shift-5": Experiment(
        f"{_SHIFT}, Figure 5: RSE, three clusters in 6-D",
        bandwidths.figure_5,
        pictures.relative_error_by_bandwidth,
    ),
    "shift-6": Experiment(
        f"{_SHIFT}, Figure 6: RSE, three clusters in 6-D", bandwidths.figure_6, pictures.planes
    ),
    "shift-7": Experiment(
        f"{_SHIFT}, Figure 7: RSE of points and of Gaussians, three clusters in 2-D",
        bandwidths.figure_7,
        pictures.models,
    ),
    "shift-8": Experiment(
        f"{_SHIFT}, Figure 8: RSE, spectral features of MNIST",
        bandwidths.figure_8,
        pictures.planes,
        needs=SPECTRAL,
    ),
    "pca": Experiment(
        "Gribonval et al. 2021, section 3: excess risk of 3 components, % of the variance (d=30)",
        quadratic.section_3,
        pictures.against_measurements,
    ),
    "thesis-3.5": Experiment(
        f"{_THESIS}, section 3.5: errors of random features", thesis.section_3_5, thesis.by_features
    ),
    "thesis-5.2": Experiment(
        f"{_THESIS}, section 5.2: error of the predicted number of components", thesis.section_5_2
    ),
    "thesis-6.4": Experiment(
        f"{_THESIS}, section 6.4: powers of tests by the choice of the bandwidth, level 10 %",
        kernel_choice.section_6_4,
        kernel_choice.powers,
    ),
    "thesis-7": Experiment(
        f"{_THESIS}, chapter 7: regions found by active searches",
        active_search.chapter_7,
        active_search.recall_curves,
    ),
    "divergences": Experiment(
        "Divergences of known mixtures, from samples of them", divergence_cases.divergences
    ),
}
