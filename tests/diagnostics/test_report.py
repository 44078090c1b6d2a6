"""The report: complete in itself, and saying what observed."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import dask.array as da
import numpy as np
import pandas as pd
import pytest

import dask_sketch as ds
from dask_sketch import FeatureMap, decode, design, diagnose, plan, sketch
from dask_sketch.diagnostics.comparison import Comparison, Contender, fit_reference
from dask_sketch.diagnostics.detection import error_rates
from dask_sketch.diagnostics.report import Section, write_report
from dask_sketch.diagnostics.report_figures import Drawing
from dask_sketch.display.theme import SCHEMES
from dask_sketch.errors import InputError
from dask_sketch.graph.telemetry import task_statistics
from dask_sketch.models import random_mixture
from dask_sketch.sketching.privatise import privatise

LOADING = ("src", "srcset", "href", "data", "poster", "action")


class Page(HTMLParser):
    """Collects tags, their attributes and the text."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words += data


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    truth = random_mixture(3, 4, seed=1)
    rows = truth.sample(4000, seed=2)
    lazy = da.from_array(rows, chunks=(500, 4))
    feature_map = design(lazy, n_components=3)
    with task_statistics() as observed:
        found = sketch(lazy, feature_map).compute()
    model = decode(found, 3, method="splitting")
    comparison = Comparison(
        contenders=(
            Contender("the truth", truth.score(rows), None, "drew the data"),
            Contender("ours", model.score(rows), 1.5, "one pass"),
        ),
        n_heldout=4000,
        store_bytes=128_000,
        sketch_bytes=4000,
        seconds={"sketch": 1.0},
    )
    path = write_report(
        tmp_path_factory.mktemp("report") / "deep" / "report.html",
        found,
        model,
        title="Frames & <others>",
        source={"source": "a <script>"},
        feature_map=feature_map,
        plan=plan(lazy, feature_map),
        observed=observed,
        comparison=comparison,
        heldout=sketch(truth.sample(2000, seed=3), feature_map),
        sample=rows[:1000],
        names=list("abcd"),
        command="dask-sketch demo --seed 0",
    )
    return path.read_text()


def test_it_needs_nothing_but_itself(text: str) -> None:
    page = Page(text)
    for tag, attributes in page.tags:
        assert tag not in ("script", "link", "iframe", "object", "embed")
        for name in LOADING:
            if name in attributes:
                assert str(attributes[name]).startswith("data:"), (tag, name)
    style = re.search(r"<style>(.*?)</style>", text, re.S)
    assert style is not None
    assert "url(" not in style[1]
    assert "@import" not in style[1]
    pictures = re.findall(r"<svg .*?</svg>", text, re.S)
    assert len(pictures) == 4
    names: list[str] = []
    for picture in pictures:
        ElementTree.fromstring(picture)
        loaded = re.findall(r"(?:href|src)=\"([^\"]+)\"", picture)
        assert all(url.startswith(("#", "data:")) for url in loaded)
        own = re.findall(r"\bid=\"([^\"]+)\"", picture)
        used = [url[1:] for url in loaded if url[0] == "#"] + re.findall(r"url\(#([^)]+)", picture)
        assert set(used) <= set(own)
        names += own
        for inward in ("<!--", "<style", "<metadata", "#010203", "#040506"):
            assert inward not in picture
        assert "currentColor" in picture
    assert len(set(names)) == len(names)  # of one picture and no other


def test_it_says_what_happened(text: str) -> None:
    words = Page(text).words
    for expected in (
        "Frames & <others>",
        "a <script>",
        "4,000",
        "the truth",
        "one pass",
        "planned",
        "8 chunks",
        "cost in noise levels",
        "Quality of the fit",
        "expected divergence",
        "No problem was found",
        "squared held-out discrepancy",
        "dask-sketch demo --seed 0",
        "numpy",
        "128,000",
    ):
        assert expected in words, expected
    assert "<script" not in text
    assert "9 (8 array-sketch, 1 sketch-aggregate" in words  # the tasks that ran


def test_every_picture_has_a_text(text: str) -> None:
    images = [attributes for _, attributes in Page(text).tags if attributes.get("role") == "img"]
    assert len(images) == 4
    assert all(len(str(image["aria-label"])) > 20 for image in images)


def test_text_has_the_colours_of_the_schemes(text: str) -> None:
    style = re.search(r"<style>(.*?)</style>", text, re.S)
    assert style is not None
    light, dark = style[1].split("@media (prefers-color-scheme: dark)", 1)
    for scheme, part in zip(SCHEMES.values(), (light, dark), strict=True):
        for name, colour in scheme.items():
            assert f"--{name}: {colour};" in part
    # and no others: their contrast is computed where they are tested
    assert not re.findall(r"[^-]color: #", style[1])
    assert set(re.findall(r"#[0-9a-f]{6}", style[1])) == {
        colour for scheme in SCHEMES.values() for colour in scheme.values()
    }


def test_a_notebook_does_not_show_the_pictures_of_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They appeared below the cell, in the colours of the page."""
    plt = pytest.importorskip("matplotlib.pyplot")
    monkeypatch.setattr("dask_sketch.display.plots.in_notebook", lambda: True)
    rows = random_mixture(1, 2, seed=0).sample(200)
    found = sketch(rows, FeatureMap(2, 10, scale=1.0))
    single = ds.GaussianMixture([1.0], found.mean[None], found.variance[None])
    drawing = Drawing("Rates", "", error_rates([0.1, 0.8, 0.9], [0, 0, 1]).plot.det)
    text = write_report(tmp_path / "r.html", found, single, drawings=[drawing]).read_text()
    assert len([tag for tag, _ in Page(text).tags if tag == "svg"]) == 3
    assert not plt.get_fignums()


@pytest.mark.slow
def test_little_is_enough(tmp_path: Path) -> None:
    rows = random_mixture(1, 1, seed=0).sample(200)
    feature_map = design(rows, n_components=1, scale=1.0)  # so there is no fit to show
    found = sketch(rows, feature_map)
    single = ds.GaussianMixture([1.0], found.mean[None], found.variance[None])
    path = write_report(tmp_path / "small.html", found, single)
    images = [tag for tag, _ in Page(path.read_text()).tags if tag == "svg"]
    assert len(images) == 2


@pytest.mark.slow
def test_what_was_found_is_told_in_sentences(tmp_path: Path) -> None:
    truth = random_mixture(3, 2, seed=5)
    rows = truth.sample(5000, seed=2)
    found = sketch(rows, design(rows, n_components=3))
    model = decode(found, 2)
    path = write_report(tmp_path / "poor.html", found, model)
    sentences = diagnose(model, found).findings
    assert "misfit" in sentences
    page = Page(path.read_text())
    listed = re.search(r'<ul class="findings">(.*?)</ul>', path.read_text(), re.S)
    assert listed is not None
    assert listed[1].count("<li>") == len(sentences)
    assert f"{len(sentences)} problem" in page.words
    for sentence in sentences.values():
        assert sentence in page.words
    assert "No problem was found" not in page.words
    # on the tone whose contrast is tested below, in either scheme
    assert re.search(r"\.findings \{[^}]*background: var\(--strong\)", path.read_text())


def test_watch_counts_on_a_cluster() -> None:
    from distributed import Client, LocalCluster

    with (
        LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0"
        ) as cluster,
        Client(cluster) as client,
    ):
        with task_statistics(client) as seen:
            total = da.ones(10, chunks=5).sum().compute()
        assert total == 10
        assert 3 <= seen.n_tasks <= 4
        assert seen.seconds > 0
        assert "sum" in str(seen)


def test_reference_finds_the_truth() -> None:
    truth = random_mixture(2, 2, seed=0)
    rows = truth.sample(5000, seed=1)
    mixture, seconds, n_iter = fit_reference(rows.astype(np.float32), 2)
    assert truth.score(rows) == pytest.approx(mixture.score(rows), abs=0.02)
    assert seconds > 0
    assert n_iter >= 1
    assert fit_reference(rows, 2, max_iter=1)[2] == 1  # and no warning


@pytest.mark.slow
def test_sections_of_others(tmp_path: Path) -> None:
    rows = random_mixture(2, 2, seed=1).sample(500, seed=2)
    found = sketch(rows, design(rows, n_components=2))
    section = Section("Drift & more", "what <it> is", ("a", "b"), [("x", "1"), ("y", "2")], {1})
    bare = Section("Nothing yet", "none", (), ())
    model = decode(found, 2, model="dirac")
    text = write_report(tmp_path / "r.html", found, model, sections=[section, bare]).read_text()
    words = Page(text).words
    for expected in (
        "Drift & more",
        "what <it> is",
        "Nothing yet",
        "2 centroids: weight, then coordinates",
    ):
        assert expected in words
    assert re.search(r'<tr><th scope="row">x</th><td data-name="b">1</td></tr>', text)
    assert re.search(r'<tr class="ours"><th scope="row">y</th><td data-name="b">2</td></tr>', text)
    assert "ellipses" not in words


@pytest.mark.slow
def test_a_sketch_or_a_model_alone(tmp_path: Path) -> None:
    rows = random_mixture(2, 3, seed=1).sample(500, seed=2)
    rows[3] = np.nan
    found = sketch(rows, design(rows, n_components=2, scale=1.0), nan_policy="omit")
    words = Page(write_report(tmp_path / "s.html", found).read_text()).words
    for expected in (
        "499 samples with 3 features each are summarised",
        "1 rows with missing values",
        "All 3 features: mean, standard deviation and range",
        "noise of |z|",
    ):
        assert expected in words, expected
    assert "Quality of the fit" not in words
    model = decode(found, 2)
    words = Page(write_report(tmp_path / "m.html", model=model).read_text()).words
    assert "The model consists of 2 Gaussians." in words
    assert "All 2 components" in words
    assert "Quality of the fit" not in words
    assert "What was read" not in words
    hidden = privatise(found, 1.0, 1e-6, bounds=[[-20] * 3, [20] * 3], seed=0)
    words = Page(write_report(tmp_path / "p.html", hidden).read_text()).words
    assert "gaussian noise, epsilon 1, delta 1e-06" in words
    assert "standard deviation and range" not in words
    with pytest.raises(InputError, match="sketch=None, model=None"):
        write_report(tmp_path / "n.html")


@pytest.mark.slow
def test_planned_and_happened_stand_side_by_side(tmp_path: Path, short_calibration: None) -> None:
    lazy = da.from_array(random_mixture(2, 2, seed=1).sample(4000, seed=2), chunks=(500, 2))
    feature_map = design(lazy, n_components=2)
    planned = plan(lazy, feature_map, calibrate=True)
    with task_statistics() as observed:
        found = sketch(lazy, feature_map).compute()
    text = write_report(tmp_path / "r.html", found, plan=planned, observed=observed).read_text()
    told = {
        name: (planned_, seen)
        for name, planned_, seen in re.findall(
            r'<th scope="row">([^<]*)</th><td[^>]*>([^<]*)</td><td[^>]*>([^<]*)</td>', text
        )
    }
    assert "bound by" in told["time"][0]
    assert told["time"][1] == f"{observed.seconds:.3g} s"
    assert f"(planned: {planned.estimate().seconds:.3g} s)" in text
    assert told["samples"] == ("4,000", "4,000")


HTML = "<script>alert(1)</script>"


@pytest.mark.slow
def test_names_in_a_report(tmp_path):
    pytest.importorskip("matplotlib")
    from dask_sketch.diagnostics.report import write_report

    x = np.random.default_rng(0).normal(size=(2000, 2))
    sketch = ds.partial_sketch(x, ds.FeatureMap(2, 20, scale=1.0))
    model = ds.decode(sketch, 1)
    names = [HTML, r"$\frac{$ {{ 7 * 7 }}"]
    page = write_report(
        tmp_path / "r.html", sketch, model, title=HTML, source={HTML: HTML}, names=names,
        command=HTML,
    ).read_text()  # fmt: skip
    assert HTML not in page
    assert page.count("&lt;script&gt;") >= 5
    assert "{{ 7 * 7 }}" in page
    assert HTML not in sketch._repr_html_() + model._repr_html_()


def test_names_of_files_that_are_not_utf_8(tmp_path: Path) -> None:
    model = random_mixture(2, 2, seed=1)
    page = write_report(tmp_path / "r.html", model=model, source={"data": "x\udcff.zarr"})
    assert "x\\udcff.zarr" in page.read_text(encoding="utf-8")


@pytest.mark.slow
def test_features_have_the_names_of_the_data(tmp_path):
    x = pd.DataFrame(np.random.default_rng(0).normal(size=(400, 2)), columns=["length", "width"])
    found = sketch(x, design(x, n_components=1))
    page = write_report(tmp_path / "page.html", found, decode(found, 1)).read_text()
    assert "length" in page
    assert "feature 0" not in page


def test_subjects_of_other_names_are_refused(tmp_path):
    truth = random_mixture(2, 2, seed=1)
    feature_map = ds.FeatureMap(2, 40, scale=1.0, feature_names=("a", "b"))
    rows = truth.sample(500, seed=0)
    found = ds.partial_sketch(rows, feature_map)
    a, b = (replace(truth, feature_names=names) for names in (("a", "b"), ("b", "a")))
    fit = diagnose(a, found)
    frame = pd.DataFrame(rows, columns=["b", "a"])
    for given, argument in (({"model": b}, "sketch"), ({"model": a, "sample": frame}, "sample")):
        with pytest.raises(InputError, match=f"feature 0 of {argument} is ") as caught:
            write_report(tmp_path / "r.html", found, diagnostics=fit, **given)
        assert caught.value.parameter == argument
