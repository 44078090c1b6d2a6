"""Commands on models: decode, score and diagnose."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import zarr
from cli.commands import answer, call, refusal

import dask_sketch as ds
from dask_sketch.decoders.names import METHODS, MODELS
from dask_sketch.decoders.objectives.atoms import VARIANCE_FLOOR


def test_centroids(data: str, here: Path) -> None:
    designed = answer("design", data, "-k", 2, "--task", "clustering", "-o", "map.json")
    assert (designed["distribution"], designed["n_frequencies"]) == ("gaussian", 30)
    answer("sketch", data, "--map", "map.json", "-o", "sketch.zarr")
    decoded = answer("decode", "sketch.zarr", "-k", 2, "--model", "dirac", "-o", "model.zarr")
    assert (decoded["kind"], decoded["decoding"]["method"]) == ("centroids", "likelihood")
    assert np.sort(np.array(decoded["centers"])[:, 0]) == pytest.approx([-5, 5], abs=0.3)
    scored = answer("score", data, "model.zarr")
    model = ds.open(here / "model.zarr")
    assert isinstance(model, ds.Centroids)
    inertia = model.inertia(np.asarray(zarr.open(data)[:]))
    assert scored["mean_squared_distance"] == pytest.approx(inertia)
    assert "score" not in scored
    assert "mean squared distance" in call("score", data, "model.zarr").stdout


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.few_cases(3)
def test_every_method(method: str, sketched: Path) -> None:
    decoded = answer("decode", "sketch.zarr", "-k", 2, "--method", method, "-o", "model.zarr")
    assert decoded["decoding"]["method"] == method
    places = decoded["centers" if decoded["decoding"]["model"] == "dirac" else "means"]
    assert np.sort(np.array(places)[:, 0]) == pytest.approx([-5, 5], abs=0.5)


@pytest.mark.slow
def test_every_model(sketched: Path) -> None:
    common = ("decode", "sketch.zarr", "-k", 2, "--overwrite", "-o", "model.zarr", "--model")
    variances = np.array(answer(*common, "isotropic")["covariances"])
    assert (variances[:, 0] == variances[:, 1]).all()
    full = answer(*common, "gaussian", "--covariance-type", "full")
    assert (full["covariance_type"], np.shape(full["covariances"])) == ("full", (2, 2, 2))
    factors = answer(*common, "gaussian", "--covariance-type", "low-rank:1")
    assert (factors["covariance_type"], np.shape(factors["covariances"])) == (
        "low-rank:1",
        (2, 2, 2),
    )
    stable = answer(*common, "alpha-stable", "--shared-alpha")
    assert stable["alphas"][0] == stable["alphas"][1]
    known = answer(*common, "known", "--covariance", "1.5,0.75")
    assert np.array(known["covariances"]) == pytest.approx(np.array([[1.5, 0.75]] * 2))
    assert answer(*common, "dirac", "--method", "cl-ompr")["kind"] == "centroids"


def test_options_are_those_of_the_library(sketched: Path) -> None:
    source = ds.open("sketch.zarr")
    options = {"refine": "efficient", "merge": True, "bounds": "data", "variance_floor": 0.2}
    expected = ds.decode(source, 3, "splitting", "isotropic", seed=5, replicates=2, **options)
    told = "-k 3 --method splitting --model isotropic --seed 5 --replicates 2 --refine efficient"
    told += " --merge --bounds data --variance-floor 0.2 -o model.zarr"
    answer("decode", "sketch.zarr", *told.split())
    model = ds.open("model.zarr")
    assert (model.means == expected.means).all()
    assert (model.covariances == expected.covariances).all()
    assert model.decoding.variance_floor == 0.2
    # the number of components, which is not given, is found
    assert answer("decode", "sketch.zarr", "-o", "found.zarr")["n_components"] == 2
    assert f"{VARIANCE_FLOOR:g} by default" in " ".join(call("decode", "-h").stdout.split())


def test_choices_are_those_of_the_library() -> None:
    told = call("decode", "--help").stdout
    for name in (*METHODS, *MODELS):
        assert f"\n    {name} " in told, name


def test_refinement_gives_standard_errors(sketched: Path) -> None:
    refined = ("decode", "sketch.zarr", "-k", 2, "--refine", "efficient", "-o", "model.zarr")
    told = answer(*refined)
    model = ds.open("model.zarr")
    for name in ("weights", "means", "covariances"):
        assert told["stderr"][name] == getattr(model.stderr, name).tolist()
    # a mean is known to a deviation of one over the root of 3000
    assert told["stderr"]["means"] == pytest.approx(np.full((2, 2), 3000**-0.5), rel=0.2)
    assert f"{model.stderr.means.max():,.6g}" in call("info", "model.zarr").stdout
    plain = answer("decode", "sketch.zarr", "-k", 2, "-o", "plain.zarr")
    assert (plain["decoding"]["refine"], plain["stderr"]) == (None, None)
    assert "max_mean_error" not in call("info", "plain.zarr").stdout


@pytest.mark.slow
def test_a_grown_sketch_starts_from_the_earlier_model(data: str, sketched: Path) -> None:
    answer("decode", "sketch.zarr", "-k", 2, "-o", "model.zarr")
    shutil.copytree("sketch.zarr", "other.zarr")
    answer("merge", "sketch.zarr", "other.zarr", "-o", "grown.zarr")
    url = (sketched / "model.zarr").as_uri()
    for start in ("model.zarr", url):
        out = ("-o", "new.zarr", "--overwrite")
        decoded = answer("decode", "grown.zarr", "--start", start, *out)
        assert (decoded["decoding"]["method"], decoded["n_components"]) == ("start", 2)
    # also in its place
    answer("decode", "grown.zarr", "--start", "model.zarr", "-o", "model.zarr", "--overwrite")
    assert ds.open("model.zarr").decoding.method == "start"


def test_polish(data: str, sketched: Path) -> None:
    answer("decode", "sketch.zarr", "-k", 2, "-o", "model.zarr")
    told = answer("polish", "model.zarr", data, "-o", "better.zarr")
    model = ds.open("better.zarr")
    expected = ds.polish(ds.open("model.zarr"), data, 2)
    assert (model.means == expected.means).all()
    assert (model.covariances == expected.covariances).all()
    assert told["polishing"]["trace"] == list(expected.polishing.trace)
    assert answer("info", "model.zarr")["polishing"] is None
    assert re.search(r"passes +2\n", call("info", "better.zarr").stdout)
    again = ("polish", "better.zarr", data, "-o", "best.zarr")
    assert answer(*again, "--until-converged", "--tolerance", 1e-3)["polishing"]["converged"]
    answer(*again, "--passes", 1, "--overwrite", "--variance-floor", 0.5, "--nan-policy", "omit")
    assert ds.open("best.zarr").polishing.variance_floor == 0.5


def test_bad_input_to_polish(data: str, sketched: Path) -> None:
    answer("decode", "sketch.zarr", "-k", 2, "-o", "model.zarr")
    for arguments, said in (
        (("sketch.zarr", data, "-o", "out.zarr"), "sketch.zarr"),
        (("model.zarr", "absent.zarr", "-o", "out.zarr"), "absent.zarr"),
        (("model.zarr", data, "-o", "model.zarr"), "--overwrite"),
        (("model.zarr", data, "-o", "out.zarr", "--variance-floor", 3), "variance_floor=3"),
        (("model.zarr", data, "-o", "out.zarr", "--weights", "w"), "weights"),
    ):
        message = refusal(1, "polish", *arguments)
        assert said in message, message
    assert not (sketched / "out.zarr").exists()
    assert call("polish", "model.zarr", data, "-o", "out.zarr", "--passes", 0).exit_code == 2
    both = call("polish", "model.zarr", data, "-o", "o.zarr", "--passes", 3, "--until-converged")
    assert both.exit_code == 2
    assert "--until-converged" in both.stderr


def test_a_model_does_not_replace_its_sketch(data: str, sketched: Path) -> None:
    before = ds.open("sketch.zarr")
    for output in ("sketch.zarr", "./sketch.zarr"):
        given = ("sketch.zarr", "-k", 2, "-o", output, "--overwrite")
        assert "an input" in refusal(1, "decode", *given)
    assert ds.open("sketch.zarr").identical(before)


def test_diagnose(data: str, sketched: Path) -> None:
    answer("decode", "sketch.zarr", "-k", 2, "-o", "model.zarr")
    answer("decode", "sketch.zarr", "-k", 1, "-o", "poor.zarr")
    model, source = ds.open("model.zarr"), ds.open("sketch.zarr")
    found = ds.diagnose(model, source)
    told = answer("diagnose", "model.zarr", "sketch.zarr")
    assert (told["cost"], told["findings"], told["heldout"]) == (found.cost, {}, None)
    assert told["linearization"]["expected_cost"] == found.linearization.expected_cost
    assert call("diagnose", "model.zarr", "sketch.zarr").stdout == f"{found!r}\n"
    assert told["theory"] is None
    theory = answer("diagnose", "model.zarr", "sketch.zarr", "--theory")["theory"]
    assert theory["n_frequencies"] == source.feature_map.n_frequencies
    poor = answer("diagnose", "poor.zarr", "sketch.zarr")
    assert "misfit" in poor["findings"]
    assert poor["findings"]["misfit"] in call("diagnose", "poor.zarr", "sketch.zarr").stdout
    heldout = answer("diagnose", "poor.zarr", "sketch.zarr", "--heldout", "sketch.zarr")["heldout"]
    assert heldout["squared"] == pytest.approx(poor["cost"] - heldout["noise_level"])
    points = answer("decode", "sketch.zarr", "-k", 2, "--model", "dirac", "-o", "points.zarr")
    told = answer("diagnose", "points.zarr", "sketch.zarr")
    assert told["linearization"] is None
    assert told["n_components"] == points["n_components"]


def test_bad_input_to_decode_and_diagnose(data: str, sketched: Path) -> None:
    answer("decode", "sketch.zarr", "-k", 2, "-o", "model.zarr")
    for arguments, said in (
        ("--method splitting", "--n-components"),
        ("-k 2 --method splitting --start model.zarr", "start"),
        ("--start sketch.zarr", "sketch.zarr"),
        ("--start absent.zarr", "absent.zarr"),
        ("-k 2 --model known", "covariance"),
        ("-k 2 --covariance 1,1", "covariance"),
        ("-k 2 --model known --covariance 1", "(1,)"),
        ("-k 2 --model known --covariance 1,nan", "NaN"),
        ("-k 2 --method density --model isotropic", "density"),
        ("-k 2 --method density --merge", "merge"),
        ("-k 2 --model dirac --method iht --refine efficient", "--refine"),
        ("-k 2 --variance-floor 2", "variance_floor=2.0"),
    ):
        message = refusal(1, "decode", "sketch.zarr", "-o", "out.zarr", *arguments.split())
        assert said in message, message
    assert not (sketched / "out.zarr").exists()
    one = zarr.create_array("one.zarr", shape=(50, 1), chunks=(50, 1), dtype="float64")
    one[:] = np.arange(50.0)[:, None]
    answer("sketch", "one.zarr", "-m", 20, "-o", "one-sketch.zarr")
    common = ("diagnose", "model.zarr", "sketch.zarr")
    message = refusal(1, "diagnose", "model.zarr", "one-sketch.zarr")
    assert "the model has 2 features" in message
    assert "heldout 1" in refusal(1, *common, "--heldout", "one-sketch.zarr")
    assert "absent.zarr" in refusal(1, *common, "--heldout", "absent.zarr")
    assert "is not a sketch" in refusal(1, "diagnose", "model.zarr", "model.zarr")
    assert "store='sketch.zarr' is not" in refusal(1, "diagnose", "sketch.zarr", "sketch.zarr")
    nothing = refusal(1, "design", data, "-m", 50, "--task", "clustering", "-o", "map.json")
    assert "task='clustering'" in nothing


@pytest.mark.slow
def test_a_gpu_that_is_not_there(data: str, here: Path) -> None:
    if importlib.util.find_spec("cupy"):
        pytest.skip("there may be a GPU")
    common = (data, "-k", 2, "-o", "sketch.zarr")
    assert "needs CuPy" in refusal(1, "sketch", *common, "--device", "cuda")
    answer("sketch", *common)
    decoding = ("decode", "sketch.zarr", "-k", 2, "-o", "model.zarr", "--device", "cuda")
    assert "needs CuPy" in refusal(1, *decoding)


@pytest.mark.slow
def test_the_number_of_components_is_found(sketched: Path) -> None:
    decoded = answer("decode", "sketch.zarr", "-k", "auto", "-o", "model.zarr")
    assert decoded["n_components"] == decoded["selection"]["n_components"] == 2
    assert ds.open("model.zarr").n_components == 2
    text = call("decode", "sketch.zarr", "-k", "auto", "--overwrite", "-o", "model.zarr").stdout
    assert "2 components of 1, 2" in text
    assert call("decode", "sketch.zarr", "-k", "some", "-o", "other.zarr").exit_code == 2


@pytest.mark.slow
def test_missing_values(here: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3000, 5)) + 6.0 * (rng.random((3000, 1)) > 0.5)
    x[rng.random(x.shape) < 0.2] = np.nan
    zarr.save_array("x.zarr", x)
    found = answer("sketch", "x.zarr", "-k", 4, "--nan-policy", "available", "-o", "sketch.zarr")
    assert found["observed_features"] == pytest.approx([0.8] * 5, abs=0.03)
    assert found["count"] + found["omitted"] == 3000
    answer("design", "x.zarr", "-k", 4, "--nan-policy", "available", "-o", "map.json")
    answer("decode", "sketch.zarr", "-k", 2, "-o", "model.zarr")
    answer("diagnose", "model.zarr", "sketch.zarr")


@pytest.mark.filterwarnings("default:30 of 100 rows")
def test_score_counts_missing_values(here: Path) -> None:
    mixture = ds.GaussianMixture([1.0], [[0.0, 0.0]], [[1.0, 1.0]])
    mixture.to_zarr("m.zarr")
    rows = np.random.default_rng(0).normal(size=(100, 2))
    rows[:30, 1] = np.nan
    rows[0] = np.nan
    np.save("x.npy", rows)
    result = call("score", "x.npy", "m.zarr", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["n_samples"], found["incomplete"]) == (100, 30)
    assert found["score"] == pytest.approx(mixture.score(rows))
    assert "30 of 100 rows have missing values, 1 of them no value" in result.stderr
    np.save("y.npy", rows[30:])
    assert call("score", "y.npy", "m.zarr").stderr == ""
