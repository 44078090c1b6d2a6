"""Servers that tests start, when somebody else takes their port."""

from __future__ import annotations

import socket
from urllib.request import urlopen

import pytest
from real import conftest
from real.conftest import serving

pytestmark = [pytest.mark.real, pytest.mark.slow]


def test_a_server_whose_port_is_taken_has_another(tmp_path, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = [taken.getsockname()[1], conftest.free_port()]
        monkeypatch.setattr(conftest, "free_port", iter(ports).__next__)
        command = ("-m", "http.server", "--bind", "127.0.0.1", "PORT")
        with serving(command, tmp_path) as url, urlopen(url, timeout=30) as answer:
            assert answer.status == 200
            assert url.endswith(f":{ports[1]}")


def test_a_server_that_cannot_start_says_why(tmp_path):
    with (
        pytest.raises(AssertionError, match="no such server"),
        serving(("-c", "raise SystemExit('no such server')"), tmp_path),
    ):
        pass
