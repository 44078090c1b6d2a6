"""The mixtures of the project's targets: our default design, our decoders, EM on all the data."""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path

import numpy as np
from scipy.optimize import linear_sum_assignment

from dask_sketch import (
    FeatureMap,
    GaussianMixture,
    Sketch,
    decode,
    design,
    merge,
    partial_sketch,
    sketch,
)
from dask_sketch.diagnostics import bootstrap
from dask_sketch.models import LatentClassMixture, random_mixture
from dask_sketch.models.product_em import ProductMixture, ProductRows, fit_product, normalise
from dask_sketch.validation.categories import Categories
from tests.benchmarks.paper.anisotropy import stretched
from tests.benchmarks.paper.mixtures import EFFICIENT, decoded, measure_kl, references
from tests.benchmarks.paper.records import Job, Run, timed
from tests.benchmarks.speech.recordings import run_recordings

LATENT = "latent classes"
SLIDE, WARM = "slide", "warm decode"
BOOTSTRAP = "bootstrap of groups"
_NAMES = ("weights", "means", "covariances")
NORMAL_95 = 1.959964  # half width of a 95 % interval, in standard errors
CHUNK = 250_000  # samples held at a time, where there are millions

# number of draws, then by how much every number of samples is divided
FORMS = {"full": (10, 1), "quick": (3, 1), "toy": (1, 60)}


def mixture(form: str, d: int, n_components: int, m: int) -> list[Job]:
    """ln KL from 3e5 samples."""
    n_draws, divisor = FORMS[form]
    return [
        partial(_mixture, d, n_components, m, 300_000 // divisor, seed) for seed in range(n_draws)
    ]


def _mixture(d: int, n_components: int, m: int, n_samples: int, seed: int) -> list[Run]:
    truth = random_mixture(n_components, d, seed=seed)
    return _against_em(truth, m, n_samples, seed, {"d": d, "K": n_components, "m": m})


def anisotropic(form: str) -> list[Job]:
    """ln KL with half the features divided by 10 (Figure 3)."""
    n_draws, divisor = FORMS[form]
    m = 2000 if form != "toy" else 300
    return [partial(_anisotropic, m, 200_000 // divisor, seed) for seed in range(n_draws)]


def _anisotropic(m: int, n_samples: int, seed: int) -> list[Run]:
    return _against_em(stretched(10.0, seed), m, n_samples, seed, {"A": 10, "m": m})


def _against_em(
    truth: GaussianMixture, m: int, n_samples: int, seed: int, setting: dict[str, int]
) -> list[Run]:
    x = truth.sample(n_samples, seed=seed + 1000)
    summary = sketch(x, design(x, n_frequencies=m, n_components=truth.n_components, seed=seed))
    fits = decoded(summary, truth.n_components, seed, "CL-OMPR", EFFICIENT)
    fits |= references(truth, x, seed)
    return measure_kl(fits, truth, setting, n_samples, seed)


def many_components(form: str) -> list[Job]:
    """Nats per sample that 20 components lose to the truth on samples held out."""
    n_draws, divisor = FORMS[form]
    sizes = (10, 20, 2100) if form != "toy" else (2, 3, 150)
    return [partial(_many_components, *sizes, 300_000 // divisor, seed) for seed in range(n_draws)]


def _many_components(d: int, n_components: int, m: int, n_samples: int, seed: int) -> list[Run]:
    truth = random_mixture(n_components, d, seed=seed)
    x = truth.sample(n_samples, seed=seed + 1000)
    heldout = truth.sample(n_samples, seed=seed + 2000)
    summary = sketch(x, design(x, n_frequencies=m, n_components=n_components, seed=seed))
    names = ("CL-OMPR", "splitting", EFFICIENT, "splitting, efficient")
    fits = decoded(summary, n_components, seed, *names) | references(truth, x, seed)
    best = truth.score(heldout)
    bound = ((2 * d + 1) * n_components - 1) / (2 * n_samples)  # of an efficient estimator
    setting = {"d": d, "K": n_components, "m": m}
    runs = []
    for name, fit in fits.items():
        model, seconds = timed(fit)
        lost = best - model.score(heldout)
        runs.append(Run(setting, name, seed, lost, seconds, None, bound))
    return runs


def ten_million(form: str) -> list[Job]:
    """ln KL from 1e7 samples, drawn and sketched in chunks; EM has the first 3e5 of them."""
    n_draws, divisor = FORMS[form]
    return [partial(_ten_million, 10_000_000 // divisor, seed) for seed in range(n_draws)]


def _ten_million(n_samples: int, seed: int) -> list[Run]:
    truth = random_mixture(5, 10, seed=seed)
    x = truth.sample(min(300_000, n_samples), seed=seed + 1000)
    summary = sketch_in_chunks(
        truth, design(x, n_frequencies=1050, n_components=5, seed=seed), n_samples, seed
    )
    setting = {"d": 10, "K": 5, "m": 1050}
    runs = measure_kl(decoded(summary, 5, seed, "CL-OMPR", EFFICIENT), truth, setting, n_samples,
                      seed)  # fmt: skip
    return runs + measure_kl(references(truth, x, seed), truth, setting, len(x), seed)


def sketch_in_chunks(
    truth: GaussianMixture, feature_map: FeatureMap, n_samples: int, seed: int
) -> Sketch:
    """Draw and sketch samples that are never in memory together."""
    sizes = [min(CHUNK, n_samples - start) for start in range(0, n_samples, CHUNK)]
    seeds = np.random.SeedSequence((seed, 2)).generate_state(len(sizes))
    return merge(
        partial_sketch(truth.sample(size, seed=int(chunk)), feature_map)
        for size, chunk in zip(sizes, seeds, strict=True)
    )


def speech(form: str, path: Path) -> list[Job]:
    """Held-out log-likelihood per frame of real recordings, as `make speech` measures it."""
    sizes = {"full": (64, 10_000, 10), "quick": (64, 10_000, 1), "toy": (2, 250, 1)}
    n_components, m, n_draws = sizes[form]
    return [partial(_speech, path, n_components, m, seed) for seed in range(n_draws)]


def _speech(path: Path, n_components: int, m: int, seed: int) -> list[Run]:
    report = Path(".paper") / f"speech-{seed}.html"
    found = run_recordings(
        path, n_components=n_components, n_frequencies=m, seed=seed, report=report
    )
    methods = {"ours": "ours", "scikit-learn": "EM", "one Gaussian": "one Gaussian"}
    setting = {"K": n_components, "m": m}
    return [
        Run(setting, methods[entry.name], seed, entry.score, entry.seconds)
        for entry in found.contenders
    ]


def coverage(form: str) -> list[Job]:
    """Share of the true parameters inside nominal 95 % intervals; everything redrawn each time."""
    n_draws = {"full": 200, "quick": 40, "toy": 2}[form]
    divisor = FORMS[form][1]
    return [partial(coverage_of, 2, 3, 150, 300_000 // divisor, seed) for seed in range(n_draws)]


def coverage_of(d: int, n_components: int, m: int | None, n_samples: int, seed: int) -> list[Run]:
    """Fraction of each kind of parameter inside the intervals of one refined fit."""
    truth = random_mixture(n_components, d, seed=seed)
    x = truth.sample(n_samples, seed=seed + 1000)
    summary = sketch(x, design(x, n_frequencies=m, n_components=n_components, seed=seed))
    model, seconds = timed(decoded(summary, n_components, seed, EFFICIENT)[EFFICIENT])
    ends = {
        name: np.stack([value - error, value + error], axis=-1)
        for name, value, error in (
            (name, getattr(model, name), NORMAL_95 * getattr(model.stderr, name)) for name in _NAMES
        )
    }
    return _inside(truth, model, ends, EFFICIENT, seed, seconds)


def _inside(
    truth: GaussianMixture,
    model: GaussianMixture,
    ends: dict[str, np.ndarray],
    method: str,
    seed: int,
    seconds: float,
) -> list[Run]:
    """Fraction of each kind of true parameter between the ends of its intervals."""
    gaps = np.linalg.norm(model.means[:, None] - truth.means[None], axis=2)
    mine, its = linear_sum_assignment(gaps)  # components come in any order
    inside = {}
    for name in _NAMES:
        low, high, value = *np.moveaxis(ends[name][mine], -1, 0), getattr(truth, name)[its]
        inside[name] = (low <= value) & (value <= high)
    inside["all"] = np.concatenate([part.ravel() for part in inside.values()])
    return [
        Run({"parameters": name}, method, seed, float(part.mean()), seconds)
        for name, part in inside.items()
    ]


def dependent_coverage(form: str) -> list[Job]:
    """Coverage of bootstrap intervals and of standard errors where frames of a group depend."""
    n_draws = {"full": 100, "quick": 20, "toy": 1}[form]
    n_replicates = 100 if form != "toy" else 5
    return [partial(_dependent_coverage, n_replicates, seed) for seed in range(n_draws)]


def _dependent_coverage(n_replicates: int, seed: int) -> list[Run]:
    """50 groups of 100 frames of three states, with noise of autocorrelation 0.9."""
    n_groups, n_frames, stay = 50, 100, 0.9
    truth = GaussianMixture(
        [0.5, 0.3, 0.2], [[-3, 0], [3, 1], [0, 4]], [[1.0, 1.5], [0.7, 1.0], [1.2, 0.5]]
    )
    rng = np.random.default_rng(seed)
    states = rng.choice(3, (n_groups, n_frames), p=truth.weights)
    noise = rng.normal(size=(n_groups, n_frames, 2))
    same = rng.random((n_groups, n_frames)) < stay
    for t in range(1, n_frames):
        states[:, t] = np.where(same[:, t], states[:, t - 1], states[:, t])
        noise[:, t] = stay * noise[:, t - 1] + np.sqrt(1.0 - stay**2) * noise[:, t]
    x = (truth.means[states] + np.sqrt(truth.variances)[states] * noise).reshape(-1, 2)
    feature_map = design(x, n_components=3, n_frequencies=150, seed=seed)
    group = sketch(x, feature_map, groups=np.repeat(np.arange(n_groups), n_frames))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # dependence worsens the fit
        model = decode(group.merged(), 3, method="cl-ompr", refine="efficient", seed=seed)
    found, seconds = timed(partial(bootstrap, model, group, n_replicates=n_replicates, seed=seed))
    return [
        *_inside(truth, found.model, found.interval(), BOOTSTRAP, seed, seconds),
        *_inside(truth, model, model.interval(), EFFICIENT, seed, 0.0),
    ]


def windows(form: str) -> list[Job]:
    """Windows of 30 sketches that move on by one, and their decoding from the model before."""
    n_draws = FORMS[form][0]
    size = (64, 12, 8000, 30, 20_000) if form != "toy" else (2, 2, 60, 4, 1000)
    return [partial(_windows, *size, seed) for seed in range(n_draws)]


def _windows(k: int, d: int, m: int, n_parts: int, n: int, seed: int) -> list[Run]:
    truth = random_mixture(k, d, seed=seed)
    feature_map = design(truth.sample(5000, seed=1), n_components=k, n_frequencies=m, seed=seed)
    parts = [
        partial_sketch(truth.sample(n, seed=(seed + 1) * 1000 + part), feature_map)
        for part in range(n_parts + 1)
    ]
    before = merge(parts[:-1])
    model, cold = timed(partial(decode, before, k, method="splitting", seed=seed, threads=1))
    moved, slide = timed(lambda: before + parts[-1] - parts[0])
    warm, seconds = timed(partial(decode, moved, start=model, threads=1))
    again = decode(moved, k, method="splitting", seed=seed, threads=1)
    heldout = truth.sample(n, seed=seed)
    best = truth.score(heldout)
    setting = {"d": d, "K": k, "m": m}
    return [
        Run(setting, SLIDE, seed, float(moved.same_sums(merge(parts[1:]))), slide),
        Run(setting, WARM, seed, again.score(heldout) - warm.score(heldout), seconds),
        Run(setting, "cold", seed, best - again.score(heldout), cold),
    ]


def latent_classes(form: str) -> list[Job]:
    """Largest difference of probabilities from those of EM on all rows, in standard errors."""
    n_draws, divisor = FORMS[form]
    columns, levels, k = (6, 4, 4) if form != "toy" else (3, 2, 2)
    return [
        partial(_latent_classes, columns, levels, k, 1_000_000 // divisor, seed)
        for seed in range(n_draws)
    ]


def _latent_classes(columns: int, levels: int, k: int, n: int, seed: int) -> list[Run]:
    rng = np.random.default_rng(seed)
    categories = Categories((tuple(map(str, range(levels))),) * columns)
    probabilities = rng.dirichlet(np.ones(levels), size=(k, columns)).reshape(k, -1)
    truth = LatentClassMixture(rng.dirichlet(np.full(k, 5.0)), probabilities, categories)
    x = truth.sample_codes(n, seed=seed + 1000)
    feature_map = design(x, n_components=k, categories=categories, seed=seed)
    summary = sketch(x, feature_map, sample=False)
    model, seconds = timed(partial(decode, summary, k, seed=seed))
    # EM needs the number of rows of each kind only
    cells = np.indices((levels,) * columns).reshape(columns, -1).T.astype(float)
    counts = np.bincount(
        np.ravel_multi_index(x.T.astype(int), (levels,) * columns), None, len(cells)
    )
    start = partial(
        fit_product, cells, counts.astype(float), k, categories, starts=[truth.parameters],
        n_starts=0, n_iterations=5000, tolerance=1e-12,
    )  # fmt: skip
    fitted, slow = timed(start)
    errors = _probability_errors(fitted.mixture, cells, categories, n)
    setting = {"columns": columns, "levels": levels, "K": k, "m": feature_map.n_frequencies}
    runs = []
    for name, found, spent in ((LATENT, model, seconds), ("truth", truth, slow)):
        other = fitted.mixture.probabilities
        gaps = np.linalg.norm(found.probabilities[:, None] - other[None], axis=2)
        mine, its = linear_sum_assignment(gaps)
        away = np.abs(found.probabilities[mine] - other[its]) / errors[its]
        runs.append(Run(setting, name, seed, float(away.max()), spent))
    return runs


def _probability_errors(
    mixture: ProductMixture, cells: np.ndarray, categories: Categories, n: int
) -> np.ndarray:
    """Standard errors of the probabilities by maximum likelihood, from the Fisher information."""
    rows = ProductRows(cells, categories, np.zeros(0))
    shares, log_total = normalise(rows.log_joint(mixture))
    k, size = mixture.probabilities.shape
    free = [shares[:, :-1] / mixture.weights[:-1] - shares[:, -1:] / mixture.weights[-1]]
    slopes = shares[:, :, None] * rows.indicators.toarray()[:, None] / mixture.probabilities
    # each column's last probability is one less the others
    basis = np.zeros((size, size - len(categories.sizes)))
    for number, part in enumerate(categories.slices):
        columns = np.arange(part.start, part.stop - 1)
        basis[columns, columns - number] = 1.0
        basis[part.stop - 1, columns - number] = -1.0
    free.append((slopes @ basis).reshape(len(cells), -1))
    scores = np.concatenate(free, axis=1)
    covariance = np.linalg.inv(n * (scores.T * np.exp(log_total)) @ scores)[k - 1 :, k - 1 :]
    blocks = covariance.reshape(k, basis.shape[1], k, basis.shape[1])
    return np.sqrt([np.einsum("ij,jl,il->i", basis, blocks[j, :, j], basis) for j in range(k)])
