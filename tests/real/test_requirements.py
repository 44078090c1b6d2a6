"""Pinned versions beside packages that the lock file does not name, as the image installs them."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(1200)]
TOP = Path(__file__).parents[2]
EXTRAS = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def resolve(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Look for versions that fit together, without installing them."""
    return subprocess.run(
        [sys.executable, "-m", "pip", "install", "--dry-run", "--no-input", "--quiet",
         "--disable-pip-version-check", *arguments],
        capture_output=True, text=True, check=False, timeout=900,
    )  # fmt: skip


def test_packages_of_object_stores_fit_the_pinned_versions():
    if resolve("--no-deps", "--ignore-installed", *EXTRAS["s3"]).returncode:
        pytest.skip("needs a registry of packages")
    lock = str(TOP / ".ci" / "requirements.lock")
    done = resolve("--constraint", lock, *EXTRAS["s3"], *EXTRAS["gcs"], *EXTRAS["http"])
    assert done.returncode == 0, done.stderr[-3000:]
