"""The page on Dask's dashboard: it is served, its numbers are right, and sketches are the same."""

from __future__ import annotations

import logging
import math
import sys
import time
from types import SimpleNamespace
from urllib.error import HTTPError
from urllib.request import urlopen

import dask
import dask.array as da
import numpy as np
import pytest
from browser import CHROMIUM, browser, visit
from distributed import Client, LocalCluster
from jobs import places

import dask_sketch as ds
from dask_sketch import FeatureMap
from dask_sketch.cluster import dashboard
from dask_sketch.cluster.connect import connect
from dask_sketch.cluster.dashboard import passes as numbers
from dask_sketch.cluster.dashboard.passes import Passes
from dask_sketch.cluster.settings import ClusterSettings
from dask_sketch.display.theme import SCHEMES
from dask_sketch.errors import InputError
from dask_sketch.graph.partitions import sketch_partitions
from dask_sketch.graph.telemetry import MERGED, PAIRS, PARTIALS, ROWS, SKETCHED, TOPIC

pytest.importorskip("bokeh")

FM = FeatureMap(3, 50, scale=1.0)
X = np.random.default_rng(0).normal(size=(400, 3)).astype(np.float32)
LAZY = da.from_array(X, chunks=(20, 3))  # 20 chunks, which two tasks and one more merge


def page_of(client):
    return client.cluster.scheduler.plugins["dask-sketch-page"]


def settled(client, n_rows, n_partials=0):
    """The passes, as soon as the last heartbeats have come."""
    page, end = page_of(client), time.monotonic() + 60
    while time.monotonic() < end:
        client.sync(look, page)
        last = page.passes[-1] if len(page.passes) else None
        if last and last.ended and last.rows >= n_rows and last.partials >= n_partials:
            return page.passes
        time.sleep(0.05)
    raise AssertionError("the numbers did not come")


async def look(page):
    page.poll()


@pytest.fixture(scope="module")
def client(thread_client):
    dashboard.install(thread_client)
    return thread_client


def test_it_is_served_and_installed_once(client):
    address = dashboard.install(client)
    assert address == dashboard.install() == ds.dashboard.install(client)
    assert address == dashboard.address(client)
    assert address.endswith("/sketch")
    with urlopen(address) as answer:
        assert answer.status == 200
        assert b"Sketches" in answer.read()
    with urlopen(address.replace("/sketch", "/status")) as answer:  # Dask's own are still there
        assert answer.status == 200
    served = client.cluster.scheduler.http_application.applications
    assert sum("/sketch" in getattr(one, "app_paths", ()) for one in served) == 1


def test_the_numbers_are_those_of_the_pass(client):
    made = ds.sketch(LAZY, FM).compute()
    shown = settled(client, len(X), 20 + 2)[-1]
    assert made.identical(ds.sketch(X, FM))
    assert (shown.rows, shown.pairs) == (made.count, made.count * 50)
    assert shown.partials == 20 + 2  # of chunks, and of what two tasks merged
    assert (shown.n_samples, shown.n_chunks, shown.digest) == (400, 20, FM.digest)
    assert shown.noise == pytest.approx(1 / np.sqrt(400))
    assert math.isnan(shown.limit)
    assert shown.seconds > 0
    assert shown.rate == pytest.approx(shown.pairs / shown.seconds)


def test_omitted_rows_do_not_count(client):
    rows = X.copy()
    rows[5] = np.nan
    made = ds.sketch(da.from_array(rows, chunks=(20, 3)), FM, nan_policy="omit").compute()
    assert settled(client, 399)[-1].rows == made.count == 399


def test_batches_are_one_pass(client):
    before = len(page_of(client).passes)
    with dask.config.set({"sketch.task-limit": 5, "sketch.batch-tasks": 7}):
        made = ds.sketch(LAZY, FM).compute()
    found = settled(client, len(X))
    assert len(found) == before + 1
    assert found[-1].rows == made.count
    assert made.identical(ds.sketch(X, FM))


def test_groups_are_counted_as_one_pass(client):
    before = len(page_of(client).passes)
    labels = da.from_array(np.arange(400) % 7, chunks=20)
    group = ds.sketch(LAZY, FM, groups=labels).compute()
    found = settled(client, len(X), 20 + 1)  # of chunks, and of other merges
    assert len(found) == before + 1
    assert found[-1].rows == group.count.sum() == 400


def test_partitions_are_one_pass(client):
    before = len(page_of(client).passes)
    samples = ds.open_samples(LAZY)
    done = dict(sketch_partitions(samples, range(samples.n_chunks), FM))
    found = settled(client, len(X))
    assert len(found) == before + 1
    assert found[-1].rows == sum(sketch.count for sketch in done.values()) == 400


def test_the_limit_is_that_of_the_plan(client, short_calibration):
    feature_map = FeatureMap(3, 60, scale=1.0)
    plan = ds.plan(LAZY, feature_map, calibrate=True)
    ds.sketch(LAZY, feature_map).compute()
    page = page_of(client)
    end = time.monotonic() + 60
    shown = settled(client, len(X))[-1]
    while not shown.polls and time.monotonic() < end:
        time.sleep(0.05)
    assert shown.limit == pytest.approx(plan.calibration.pairs_per_second * 2)  # two threads
    from dask_sketch.cluster.dashboard.page import SketchComponent

    component = SketchComponent(page.passes)
    text = component.roots[0].text
    assert "400" in text
    assert "the calibrated limit" in text
    assert len(component.roots[1].renderers) == 2
    assert page.passes.shown is shown


def test_without_the_page_nothing_happens():
    settings = {"n_workers": 1, "threads_per_worker": 1, "processes": False}
    with (
        LocalCluster(dashboard_address=":0", **settings) as cluster,
        Client(cluster) as client,
    ):
        made = ds.sketch(LAZY, FM).compute()
        assert made.identical(ds.sketch(X, FM))
        assert not any("sketch" in name for name in cluster.scheduler.plugins)
        with pytest.raises(HTTPError, match="404") as refused:
            urlopen(client.dashboard_link.replace("status", "sketch"))
        refused.value.close()
        dashboard.install(client)  # passes before it are on it too
        assert settled(client, len(X))[-1].rows == 400


@pytest.mark.slow
def test_clusters_made_here_have_it(forked_workers):
    with (
        connect(ClusterSettings("local", n_workers=1)) as client,
        urlopen(client.dashboard_link.replace("status", "sketch")) as answer,
    ):
        assert answer.status == 200


def test_no_client_and_no_bokeh(monkeypatch):
    with dask.config.set(scheduler="threads"), pytest.raises(InputError, match="client=None"):
        dashboard.install()
    monkeypatch.setattr(dashboard.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install 'bokeh>="):
        dashboard.install(SimpleNamespace())
    assert dashboard.address(SimpleNamespace(dashboard_link="x/status")) == "x/status"


def test_preloading_without_bokeh_is_a_warning(monkeypatch, caplog):
    import asyncio

    monkeypatch.setattr(dashboard.importlib.util, "find_spec", lambda name: None)
    with caplog.at_level(logging.WARNING, "dask_sketch.cluster.dashboard"):
        asyncio.run(dashboard.dask_setup(None))
    assert "pip install 'bokeh>=" in caplog.text


def test_a_scheduler_without_bokeh_says_so(monkeypatch):
    import asyncio

    from dask_sketch.cluster.dashboard.plugin import SketchPage

    monkeypatch.setitem(sys.modules, "dask_sketch.cluster.dashboard.page", None)
    with pytest.raises(InputError, match="scheduler"):
        asyncio.run(SketchPage().start(None))


class Span:
    """Span of a pass with a thousand rows a second."""

    def __init__(self):
        self.rows, self.done, self.stop = 0, False, 0.0

    @property
    def cumulative_worker_metrics(self):
        return {
            ("execute", "array-sketch", SKETCHED, ROWS): self.rows,
            ("execute", "array-sketch", SKETCHED, PAIRS): 50 * self.rows,
            ("execute", "sketch-partial", MERGED, PARTIALS): self.rows // 20,
            ("execute", "sketch-partial", "thread-cpu", "seconds"): 1.0,
            ("p2p", "sketch", SKETCHED, ROWS): 10**9,
            "latency": 1.0,
        }


def announced(**more):
    return {
        "event": "pass",
        "span": "s",
        "source": "frames",
        "n_samples": None,
        "n_chunks": 5,
        "n_features": 3,
        "n_frequencies": 50,
        "digest": "d",
    } | more


def test_rates_are_of_late_and_polls_are_thinned(monkeypatch):
    monkeypatch.setattr(numbers, "MAX_POLLS", 40)
    found, span = Passes(), Span()
    found.receive({"event": "calibration", "digest": "d", "pairs_per_second": 1e5}, 0.0)
    found.receive(announced(), 100.0)
    found.receive({"event": "pass", "more": 1}, 0.0)  # of another version
    found.receive("nonsense", 0.0)
    one = found.shown
    for second in range(1, 301):
        span.rows += 1000 if second <= 200 else 2000
        found.poll({"s": span}.get, 3, 100.0 + second)
    assert one.rows == 200_000 + 200_000
    assert one.partials == 20_000
    assert one.rate == pytest.approx(2000 * 50, rel=0.3)  # and not the mean of all
    assert one.limit == 3e5
    assert len(one.polls) <= 40
    assert [poll.seconds for poll in one.polls] == sorted(poll.seconds for poll in one.polls)
    span.done, span.stop = True, 400.0
    found.poll({"s": span}.get, 3, 401.0)
    assert one.seconds == 300.0
    span.rows += 500  # with the last heartbeats
    found.poll({"s": span}.get, 3, 402.0)
    assert one.rows == 400_500
    assert one.rate == pytest.approx(one.pairs / 300.0)
    span.rows += 500  # and after them nobody looks
    found.poll({"s": span}.get, 3, 500.0)
    assert one.rows == 400_500


def test_what_runs_is_shown_and_what_was_refused_ends():
    found = Passes()
    assert found.shown is None
    found.receive(announced(span="a"), 0.0)
    found.receive(announced(span="b"), 1.0)
    running, done = Span(), Span()
    done.done, done.stop = True, 2.0
    found.poll({"a": running, "b": done}.get, 1, 3.0)
    assert found.shown.span == "a"
    found.receive(announced(span="never"), 4.0)
    found.poll({"a": running, "b": done}.get, 1, 60.0)
    assert found[-1].ended == 4.0
    assert found.shown.span == "a"


def test_names_of_others_are_text():
    from dask_sketch.cluster.dashboard.page import SketchComponent

    found = Passes()
    component = SketchComponent(found)
    assert "No pass yet" in component.roots[0].text
    found.receive(announced(source="<script>alert(1)</script>"), 0.0)
    component.update()
    tested = {"run": 3, "low": 0.1, "high": 0.3, "p_value": 0.001, "level": 0.01}
    for alarm in (False, True):
        values = tested | {"source": "<script>", "discrepancy": 0.2, "alarm": alarm}
        found.receive({"event": "drift"} | values, 0.0)
    where = {"features": ["a<b", "c"], "n_different": 4, "since": "2 of 2026-06-01"}
    found.receive({"event": "drift"} | values | where, 0.0)
    found.receive({"event": "drift", "run": 1}, 0.0)  # of another version
    component.update()
    numbers_, *_, before, drift = component.roots
    for root in (numbers_, before, drift):
        assert "<script>" not in root.text
        assert "&lt;script&gt;" in root.text
    placed, latest, earlier = drift.text.split("<li>")[1:]
    assert "differs in a&lt;b, c and 2 more; last change with run 2 of 2026-06-01" in placed
    assert "differs" not in latest
    assert "<strong>Alarm</strong> in run 3" in latest
    assert "discrepancy 0.2, within [0.1, 0.3]; p = 0.001" in latest
    assert "No alarm" in earlier


@pytest.mark.slow
def test_drift_of_a_job_is_shown(tmp_path):
    place = places.Place(tmp_path)
    places.write_rows(place.store, places.rows_of(12 * places.ROWS))
    settings = {"n_workers": 1, "threads_per_worker": 1, "processes": False}
    with (
        LocalCluster(dashboard_address=":0", protocol="tcp://", **settings) as cluster,
        Client(cluster) as client,
    ):
        dashboard.install(client)
        checks = page_of(client).passes.checks
        place.write(
            "[[decode]]\nn_components = 2\n"
            f'[cluster]\nkind = "address"\naddress = "{cluster.scheduler_address}"\n'
        )
        place.run()
        assert not checks  # there is nothing to compare with
        place.append(places.rows_of(4 * places.ROWS, seed=7, shift=1.5))
        made = place.run()
        end = time.monotonic() + 60
        while not checks and time.monotonic() < end:
            time.sleep(0.05)
    (found,) = checks
    assert (found.source, found.run, found.alarm) == ("nightly", 2, True)
    assert (found.low, found.high) == made.drift.interval
    assert found.low <= found.discrepancy <= found.high
    differ = [one.name for one in made.drift.features if one.p_value <= made.drift.level]
    assert found.n_different == len(differ)
    assert list(found.features) == differ[:5]
    assert found.since == (made.since.last and made.since.last.dated_label)


def luminance(colour):
    channels = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


@pytest.mark.parametrize("scheme", SCHEMES)
def test_text_is_readable(scheme):
    colours = SCHEMES[scheme]
    for text in ("ink", "soft"):
        for back in ("paper", "page", "strong"):
            low, high = sorted(luminance(colours[name]) for name in (text, back))
            assert (high + 0.05) / (low + 0.05) >= 4.5, (text, back)


def test_events_are_few(client):
    before = len(client.get_events(TOPIC))
    ds.sketch(LAZY, FM).compute()
    assert len(client.get_events(TOPIC)) == before + 1  # one for a pass, none for a chunk


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
def test_a_browser_sees_it(client):
    address = dashboard.install(client)
    ds.sketch(LAZY, FM).compute()
    settled(client, len(X))
    with browser() as port:
        for dark in (False, True):
            for width in (360, 1400):
                for seconds in (3, 30):  # a busy machine shows the numbers later
                    seen = visit(port, address, dark=dark, width=width, seconds=seconds)
                    if "400 of 400" in seen.text:
                        break
                assert seen.complaints == []
                assert seen.judged == []
                assert max(seen.sockets.values()) > 5
                assert "400 of 400" in seen.text
                assert len({url.split("/")[2] for url in seen.requests}) == 1  # of this machine
