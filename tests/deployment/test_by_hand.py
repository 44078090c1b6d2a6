"""The README of deploy/: its settings, its commands, the files that it names."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess

import dask.config
import numpy as np
import pytest
import yaml
import zarr
from deployment.local_processes import DEPLOY, environment, free_port, wait_until

import dask_sketch as ds
from dask_sketch import FeatureMap, sketch

README = (DEPLOY / "README.md").read_text()


def commands(heading: str) -> list[str]:
    """Lines of the shell below a heading."""
    section = README.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"```bash\n(.*?)```", section, re.DOTALL)
    assert blocks, heading
    return "".join(blocks).replace("\\\n", " ").splitlines()


def test_settings_are_ones_that_dask_knows():
    def keys(tree, prefix=""):
        for name, value in tree.items():
            path = f"{prefix}{name}"
            if isinstance(value, dict) and name != "pre-spawn-environ":
                yield from keys(value, f"{path}.")
            else:
                yield path

    import distributed  # noqa: F401  (registers its defaults)

    known = dask.config.config
    for path in keys(yaml.safe_load((DEPLOY / "dask.yaml").read_text())):
        assert dask.config.get(path, None, config=known) is not None, path


@pytest.mark.slow
def test_a_cluster_started_by_hand(certificates, start, tmp_path):
    x = np.random.default_rng(0).normal(size=(5000, 3)).astype(np.float32)
    store = zarr.create_array(tmp_path / "x.zarr", shape=x.shape, chunks=(1000, 3), dtype="f4")
    store[:] = x
    feature_map = FeatureMap(3, 50, scale=1.0)
    (tmp_path / "map.json").write_text(feature_map.to_json())
    (tmp_path / "deploy").symlink_to(DEPLOY)
    settings, *lines = commands("By hand")
    port = str(free_port())
    changed = {"8786": port, "127.0.0.1:8787": "127.0.0.1:0", "STORE": "x.zarr"}
    for old, new in changed.items():
        lines = [line.replace(old, new) for line in lines]
    scheduler, worker, client = (f"{settings}; exec {line}" for line in lines)
    log = tmp_path / "log"
    common = {"cwd": tmp_path, "env": environment()}
    with log.open("w") as file:
        start(["sh", "-c", scheduler], stderr=file, **common)
        wait_until(lambda: f"tls://127.0.0.1:{port}" in log.read_text(), "scheduler")
        start(["sh", "-c", worker.replace("--nworkers 2", "--nworkers 1")], stderr=file, **common)
    done = subprocess.run(
        ["sh", "-c", client], capture_output=True, text=True, timeout=240, check=False, **common
    )
    assert done.returncode == 0, done.stderr
    found = ds.open(tmp_path / "s.zarr")
    assert found.count == 5000
    np.testing.assert_allclose(found.z, sketch(x, feature_map).z, atol=1e-7)


def test_named_files_exist():
    named = re.findall(r"\]\((?!http|#)([^)]+)\)", README) + re.findall(
        r"deploy/([\w/.-]+\w)", "\n".join(re.findall(r"```bash\n.*?```", README, re.DOTALL))
    )
    assert len(named) > 10
    for name in named:
        assert (DEPLOY / name.partition("#")[0]).exists(), name


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")
def test_objects_made_by_commands(certificates, tmp_path):
    """Secrets and ConfigMaps of the section on Kubernetes, with the names that the pods ask for."""
    shutil.copytree(DEPLOY / "kubernetes", tmp_path, dirs_exist_ok=True)
    (tmp_path / "job.toml").touch()
    text = "\n".join(commands("Kubernetes"))
    loop = re.search(r"for part in.*?done", text, re.DOTALL)
    assert loop
    made = [loop[0], *re.findall(r"kubectl create configmap.*", text)]
    assert len(made) == 3
    script = "\n".join(made)
    for kind in ("secret generic", "configmap"):
        script = script.replace(f"create {kind}", f"create --dry-run=client -o name {kind}")
    done = subprocess.run(
        ["sh", "-ec", script],
        cwd=tmp_path,
        env=environment(KUBECONFIG="/dev/null", HOME=str(tmp_path)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    names = done.stdout.split()
    assert len(names) == 5
    wanted = set()
    for file in (DEPLOY / "kubernetes").glob("*.yaml"):
        wanted |= {
            f"secret/{name}" for name in re.findall(r"secretName: ([\w-]+)", file.read_text())
        }
        wanted |= {
            f"configmap/{name}"
            for name in re.findall(r"configMap(?:Ref)?: \{name: ([\w-]+)", file.read_text())
        }
    assert set(names) == wanted


def test_the_systemd_files_are_installed_by_name():
    line = next(line for line in commands("One machine") if "/etc/systemd/system/" in line)
    units = shlex.split(line)[3:-1]
    assert [unit.rpartition("/")[2] for unit in units] == [
        "dask-sketch.service",
        "dask-sketch.timer",
    ]
