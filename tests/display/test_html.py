"""HTML of every object: well formed, escaped, without scripts, legible on light and dark."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import dask.array as da
import dask.bag as db
import numpy as np
import pytest

from dask_sketch import (
    FeatureMap,
    Sketch,
    SketchGroup,
    create_ledger,
    decode,
    open_samples,
    partial_sketch,
    plan,
    sketch,
)
from dask_sketch.diagnostics.comparison import Comparison, Contender
from dask_sketch.diagnostics.detection import error_rates
from dask_sketch.diagnostics.drift import drift
from dask_sketch.display.html import card, html_table
from dask_sketch.display.theme import BLUE, GREEN, GREY, ORANGE
from dask_sketch.features import estimate_scale
from dask_sketch.jobs.ledger import Partition
from dask_sketch.jobs.ledger.history import RunRecord
from dask_sketch.jobs.outcome import Outcome
from dask_sketch.models import Centroids, GaussianMixture, random_mixture
from dask_sketch.sketching.privatise import privatise

MAP = FeatureMap(2, 60, scale=1.0, distribution="sparse-radius")
ROWS = random_mixture(2, 2, seed=0).sample(2000, seed=1)
LAZY = da.from_array(ROWS, chunks=(300, 2))
SKETCH = partial_sketch(ROWS, MAP)
MODEL = decode(SKETCH, 2)
EVIL = "<script>alert(1)</script>&\"'"


def a_ledger(tmp_path):
    ledger = create_ledger(str(tmp_path / "ledger.zarr"), MAP)
    with ledger.lock():
        day = Partition("day-1", "e"), SKETCH
        run = RunRecord(1, "2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z", "done", {"added": 1})
        ledger.commit(added=[day], run=run, quarantined={"day-2": EVIL})
    return ledger


OBJECTS = {
    "map": lambda _: MAP,
    "map that was whitened": lambda _: FeatureMap(2, 5, scale=1.0, whitening=np.eye(2)),
    "sketch": lambda _: SKETCH,
    "empty sketch": lambda _: Sketch.empty(MAP),
    "sketch of one sample": lambda _: partial_sketch([[0.0, 1.0]], MAP),
    "sketch of weight zero": lambda _: partial_sketch([[0.0, 1.0]], MAP, [0.0]),
    "private sketch": lambda _: privatise(SKETCH, 1.0, 1e-6, seed=0),
    "model": lambda _: MODEL,
    "decoding": lambda _: MODEL.decoding,
    "one component": lambda _: GaussianMixture([1.0], [[0.0]], [[1.0]]),
    "points in one place": lambda _: Centroids([0.5, 0.5], [[1.0, 1.0], [1.0, 1.0]]),
    "points on a line": lambda _: Centroids([0.5, 0.5], [[1.0], [2.0]]),
    "many components": lambda _: random_mixture(300, 30, seed=0),
    "scale fit": lambda _: estimate_scale(ROWS, n_iterations=1),
    "drift": lambda _: drift(SKETCH, SKETCH + SKETCH),
    "error rates": lambda _: error_rates([0.1, 0.4, 0.6, 0.9], [0, 1, 0, 1]),
    "ledger": a_ledger,
    "comparison": lambda _: Comparison((Contender(EVIL, -1.5, None, EVIL),), 10, 99, 9, {"fit": 1}),
    "groups": lambda _: partial_sketch(ROWS, MAP, groups=np.arange(len(ROWS)) % 150),
    "no groups": lambda _: SketchGroup.empty(MAP),
    "samples": lambda _: open_samples(LAZY),
    "samples of unknown length": lambda _: open_samples(LAZY[LAZY[:, 0] > 0]),
    "bag": lambda _: open_samples(db.from_sequence([(0.0, 1.0)] * 9, npartitions=2)),
    "lazy sketch": lambda _: sketch(LAZY, MAP),
    "lazy groups": lambda _: sketch(LAZY, MAP, groups=np.arange(len(ROWS)) // 90),
    "plan": lambda _: plan(LAZY, MAP),
    "plan with its time": lambda _: plan(LAZY, MAP, calibrate=True),
    "outcome": lambda _: Outcome(
        1, "done", 1, 0, 0, 0, {EVIL: EVIL}, 1, 10, 10, None, {"read": 1.0}, alarm=True
    ),
}


def parsed(html: str) -> ElementTree.Element:
    """The card as XML, which it is: every tag is closed."""
    return ElementTree.fromstring(html)


@pytest.mark.parametrize("name", OBJECTS)
def test_every_card_is_well_formed_and_harmless(name, tmp_path, short_calibration):
    html = OBJECTS[name](tmp_path)._repr_html_()
    tags = {element.tag.rpartition("}")[2] for element in parsed(html).iter()}
    assert not tags & {"script", "style", "link", "img", "iframe", "a", "use", "image"}
    assert "nan" not in html.replace("finance", "")
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", html)
    assert len(html) < 100_000


def test_text_is_escaped():
    for html in (
        card(EVIL, {EVIL: EVIL}, summary=EVIL, notes=[EVIL], more={EVIL: ""}),
        html_table([EVIL], [[EVIL]]),
    ):
        assert "<script" not in html
        assert "&lt;script" in html


def test_a_ledger_tells_of_its_quarantine(tmp_path):
    html = a_ledger(tmp_path)._repr_html_()
    assert "2,000 samples in 1 partition" in html
    assert "In quarantine: 1 partition." in html
    assert "<script" not in html


def luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return float(np.dot([0.2126, 0.7152, 0.0722], linear))


@pytest.mark.parametrize("paper", ["#ffffff", "#111111"])
@pytest.mark.parametrize("colour", [BLUE, ORANGE, GREEN, GREY])
def test_shapes_stand_out_from_light_and_dark_paper(colour, paper):
    light, dark = sorted((luminance(colour), luminance(paper)), reverse=True)
    assert (light + 0.05) / (dark + 0.05) >= 3.0


def test_letters_take_the_colour_of_the_page():
    html = SKETCH._repr_html_() + MODEL._repr_html_()
    for style in re.findall(r'<(?:div|th|td|summary|span|text|strong)[^>]*style="([^"]*)"', html):
        assert "color:" not in style


def test_numbers_are_to_the_right():
    html = html_table(["name", "cost"], [["a", "-1.5"], ["b", "2"]])
    styles = [cell.get("style", "") for cell in parsed(html).iter("td")]
    assert ["text-align:right" in style for style in styles] == [False, True, False, True]


def test_long_tables_are_cut():
    html = html_table(["label"], [[n] for n in range(25)])
    assert html.count("<tr") == 1 + 20 + 1
    assert "and 5 more" in html
