"""Reader of stored sketches, groups, models and estimators, written from FORMAT.md alone."""

import io
import itertools
import json
import math
from hashlib import sha256

import numpy as np
from numcodecs.zstd import Zstd


def load(store):
    """Attributes and arrays of the bytes of one value or the folder of a group, after a verdict."""
    if isinstance(store, bytes):
        with np.load(io.BytesIO(store)) as file:
            attributes, dims = map(json.loads(file["dataset.json"]).get, ("attrs", "dims"))
            arrays = {name: (dims[name], file[name]) for name in dims}
    else:
        arrays, attributes = {}, json.loads((store / "zarr.json").read_bytes())["attributes"]
        for entry in store.glob("*/zarr.json"):
            info = json.loads(entry.read_bytes())
            dtype = np.dtype(info["data_type"]).newbyteorder("<")
            data = np.full(info["shape"], info["fill_value"], dtype)
            chunk = entry.parent.joinpath("c", *"0" * data.ndim)
            if chunk.exists():
                data.flat = np.frombuffer(Zstd().decode(chunk.read_bytes()), dtype)
            arrays[entry.parent.name] = info["dimension_names"], data
    known = attributes.pop("checksum")
    content = json.dumps(attributes, sort_keys=True).encode()
    for name, (dims, data) in sorted(arrays.items()):
        content += json.dumps([name, dims, data.shape, data.dtype.kind]).encode() + data.tobytes()
    return sha256(content).hexdigest() == known, attributes | {k: v for k, (_, v) in arrays.items()}


def read(store):
    """Attributes and arrays, sums as integers, `spec` and `cycles`, after all verifications."""
    is_valid, found = load(store)
    for name, data in list(found.items()):
        base, _, kind = name.rpartition("_")
        if kind == "high":
            found[base] = data.astype(object) * 2**56 + found[f"{base}_low"]
        elif kind == "steps" and "shifts" in found:
            words = data.astype(object) * 2 ** json.loads(found["shifts"])[name]
            found[base] = sum(word * 2 ** (56 * k) for k, word in enumerate(words))
        elif kind == "steps":
            found[base] = int(data)
    if "feature_map" in found:
        text = found["feature_map"].encode() + b"\0"
        spec = found["spec"] = json.loads(text[:-1])
        trials = ((rows, sha256(text + rows.T.tobytes()).hexdigest()) for rows in sample(spec))
        found["cycles"] = next((rows for rows, name in trials if name == found["digest"]), None)
    if "moment_packed" in found:
        m, b, unit = spec["n_frequencies"], found["moment_bits"], 2 ** found["moment_shift"]
        bits = np.unpackbits(found["moment_packed"])[: 2 * m * b].reshape(2, m, b)
        found["moment"] = (bits @ 2 ** np.arange(b)[::-1] - 2 ** (b - 1)).astype(object) * unit
    if not is_valid or found.get("cycles", ()) is None:
        raise ValueError("the checksum or the digest of the frequencies differs")
    return found


def radii(law, d, rng, uniform):
    """Roots of quantiles of a gamma distribution, by bisection of the series of its integral."""
    a, chance, least = 0.5 + 0 * uniform, uniform, 0
    if law == "clustering":
        a = d / 2 + np.digitize(rng.random(len(uniform)), np.array([1, 3]) / (4 + 2 / d))
    elif law != "folded-gaussian":
        a, chance, least = a + 1, 1 - float.fromhex("0x1.0bbd40bcd5880p-2") * (1 - uniform), 2
    steps = np.add.outer(np.arange(1, 200 + 3 * a.max()), a)
    low, high, logs = 0 * a, 2 * a + 80, np.vectorize(math.lgamma)(a + 1)
    for _ in range(80):
        x = (low + high) / 2
        below = np.exp(a * np.log(x) - x - logs) * (1 + np.cumprod(x / steps, 0).sum(0)) < chance
        low, high = np.where(below, (x, high), (low, x))
    return np.sqrt(2 * np.maximum(x - least, 0))


def sample(spec):
    """Cycles, a row for each frequency; for `sparse-sums` then those with other signs of zeros."""
    rng = np.random.default_rng(spec["seed"])
    d, m, law = spec["n_features"], spec["n_frequencies"], spec["law"]
    variances = np.array(spec["covariances"] or [spec["scale"] ** 2] * d, float, ndmin=2)
    axes = np.array(spec.get("axes", ()))
    weights = np.array([1] * len(axes) or spec["law_weights"] or [1] * len(variances))
    bounds = np.cumsum(weights / weights.sum())[:-1]
    whitening = np.array(spec["whitening"] or np.eye(d))
    if law in ("sparse-sums", "dense-sums", "gaussian-pairs"):
        return rounded(*sample_bases(rng, m, variances, bounds, law, axes), m, whitening)
    levels = np.array([len(names or []) for names in spec.get("categories", [[]] * d)])
    categorical, size, n = levels > 0, levels[levels > 0], 4 * m if levels.any() else m
    variances[:, categorical] = (size**2 - 1) / 12
    chosen = np.digitize(rng.random(n), bounds) if len(bounds) else 0
    rows = normal(rng, n, d, law == "gaussian-marginals")
    used = ~categorical | (rng.random((n, d)) < 0.5) if law == "gaussian" else np.ones((n, d), bool)
    if law[:8] != "gaussian":
        uniform = rng.random(n)
        if law == "sparse-radius":
            number = 2 + (uniform >= 0.45) + (uniform >= 0.9) if size.size else np.full(n, 4)
            used = rng.random((n, d)).argsort(axis=1) < number[:, None]
        if law == "sparse-windows":
            starts = np.unique(np.minimum(np.arange(0, d, 4), max(d - 12, 0)))
            u, window = rng.random((n, d)), rng.random((n, 1))
            number = np.ceil(np.maximum(window - 0.6, 0) * 2.5 * (len(starts) - 1)).astype(int)
            u += (window >= 0.4) & (abs(np.arange(d) - starts[number] - 5.5) > 6)
            used = u.argsort(axis=1).argsort(axis=1) < 4
        if size.size:
            alone = used[:, ~categorical].any(axis=1) & (rng.random(n) < 0.5)
            used[np.ix_(alone, categorical)] = False
            uniform = rng.random(n)
        rows = np.where(used, rows, 0)
        norm = np.linalg.norm(rows[:, ~categorical], axis=1)
        rows *= (radii(law, d, rng, uniform) / np.where(norm > 0, norm, 1))[:, None]
    rows = rows / np.sqrt(variances[chosen]) @ whitening / (2 * np.pi)
    h = np.floor(rng.random((n, len(size))) * (size - (law != "gaussian"))) + (law != "gaussian")
    rows[:, categorical] = np.where(used[:, categorical], (h - size * (2 * h > size)) / size, 0)
    if size.size and law == "sparse-radius":
        pairs = itertools.product(range(1, max(size) // 2 + 1), np.flatnonzero(categorical))
        single = [np.eye(d)[j] * (h / levels[j]) for h, j in pairs if 2 * h <= levels[j]]
        rows = np.concatenate([single[: max(m // 2, 1)], rows])
        keys, seen = [max(tuple(row), tuple(-row)) for row in rows], {}
        rows = rows[sorted(range(len(rows)), key=lambda i: seen.setdefault(keys[i], i) < i)]
    return [rows[:m].astype("<f4")]


def normal(rng, n, d, marginals):
    rows, each = rng.standard_normal((n, d)), min(16, n // 4 // d) * (n // 4 // d >= 4) * (d > 1)
    last = n - d * each * marginals
    rows[last:] = rows[last:] * np.tile(np.eye(d), (each, 1))[: n - last] * np.sqrt(d) + 0.0
    return rows


def sample_bases(rng, m, variances, bounds, law, axes):
    d, groups, b = variances.shape[1], -(-m // 32), round((m + 4) ** 0.5) - 2
    if law == "gaussian-pairs":
        chosen = np.digitize((rng.permutation(b) + rng.random(b)) / b, bounds)
        rows = normal(rng, b, d, True) * (np.arange(b) > 0)[:, None] / np.sqrt(variances[chosen])
        return rows.reshape(-1, 4, d)[np.array(np.triu_indices(b // 4))]
    n, sides = 4 * groups, np.zeros((2, groups, 4, d))
    for side in sides.reshape(2, n, d):
        if law == "sparse-sums":
            deck = np.concatenate([rng.permutation(d) for _ in range(-(-2 * n // d))])
            side[np.arange(n), deck[: 2 * n].reshape(n, 2).T] = rng.standard_normal((2, n))
        else:
            side += rng.standard_normal((n, d))
        radius = radii(law, d, rng, (rng.permutation(n) + rng.random(n)) / n)
        side *= (radius * np.sqrt(0.5) / np.linalg.norm(side, axis=1))[:, None]
    chosen = np.digitize((rng.permutation(groups) + rng.random(groups)) / groups, bounds)
    parts = (axes[chosen, None, :, j] * sides[..., j, None] for j in range(d))
    return sum(parts) if len(axes) else sides / np.sqrt(variances[chosen])[:, None]


def rounded(u, v, m, whitening):
    """Sums and differences of the rounded base frequencies u and v, with all signs of zeros."""
    matrix = whitening if np.all(whitening == np.diag(np.diag(whitening))) else np.eye(*u.shape[2:])
    x = np.stack([u + v[:, :1], u[:, :1] + v, u[:, :1] - v]) @ matrix / (2 * np.pi)
    left, i = m - 32 * np.arange(len(u))[:, None, None], np.arange(4)[:, None]
    v_0 = np.where(left > 1, (x[0, :, :1] - x[2, :, :1]) / 2, 0)
    u = np.where(left > 8 * i, x[0] - v_0, 0)
    v = np.concatenate([v_0, np.where(left > 2 * i, x[1] - u[:, :1], 0)[:, 1:]], axis=1)
    step = 2.0 ** (np.frexp(abs(np.stack([u, v])).max(axis=(0, 1, 2)))[1] - 23)
    base = np.trunc(np.stack([u, v]) / step) * step
    both = zip(*np.nonzero(base[0, :, 0] * base[1, :, 0]), strict=True)
    signs = ([[0.0], [0.0]], [[-0.0], [-0.0]], [[-0.0], [0.0]])
    for pair in itertools.chain([()], itertools.combinations(itertools.product(both, signs), 2)):
        trial = base.copy()
        for (group, feature), zeros in pair:
            np.copyto(trial[:, group, :, feature], zeros, where=trial[:, group, :, feature] == 0)
        u, v = trial[0, :, :, None], trial[1, :, None]
        yield np.stack([u + v, u - v], axis=3).reshape(-1, len(whitening))[:m].astype("<f4")
