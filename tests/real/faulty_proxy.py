"""Proxy in front of an HTTP server that answers some requests as busy or broken servers do.

Every request is passed on to the server unless the test chooses a fault for it. Requests that
create an object only if there is none are passed on one by one, since servers for tests look first
and write later.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import urlsplit

ERROR = "<?xml version='1.0'?><Error><Code>{}</Code><Message>{}</Message></Error>"
ANSWERS = {
    "500": (500, "InternalError", "We encountered an internal error."),
    "503": (503, "SlowDown", "Please reduce your request rate."),
    "denied": (403, "AccessDenied", "Access Denied"),
    "expired": (400, "ExpiredToken", "The provided token has expired."),
    "conflict": (409, "ConditionalRequestConflict", "A conflicting operation is in progress."),
}
HOP = {
    "connection",
    "keep-alive",
    "transfer-encoding",
    "content-length",
    "expect",
    "server",
    "date",
}

Answer = tuple[int, dict[str, str], bytes]
Choice = Callable[["Request"], str | None]


class Request:
    """Request of a client, as far as a fault depends on it.

    Attributes
    ----------
    method, path
        Method, and path with its query.
    creates
        Whether it creates an object only if there is none.
    number
        Number of the request, from 1.
    """

    def __init__(self, method: str, path: str, creates: bool, number: int):
        self.method = method
        self.path = path
        self.creates = creates
        self.number = number

    @property
    def lists(self) -> bool:
        """Whether the request lists a folder of an S3 bucket, or of one of Google Cloud Storage."""
        path, _, query = self.path.partition("?")
        return self.method == "GET" and ("list-type=2" in query or path.endswith("/o"))


class FaultyProxy:
    """Proxy, used as a context manager.

    Parameters
    ----------
    server
        URL of the server.

    Attributes
    ----------
    choose
        Function that returns the name of the fault of a request: one of ``ANSWERS``, ``"refused"``
        (the connection ends before the request is passed on), ``"cut"`` (it ends within the
        answer), ``"unanswered"`` (it ends after the request has been carried out), ``"slow"`` (the
        answer is delayed by ``delay``), ``"stale"`` (a listing is answered as the last time when it
        was not); or None.
    delay
        Delay of slow answers in seconds.
    seen
        Number of requests with each fault, by its name.
    """

    def __init__(self, server: str):
        self.server = urlsplit(server).netloc
        self.choose: Choice = lambda request: None
        self.delay = 3.0
        self.seen: Counter[str] = Counter()
        self.listings: dict[str, Answer] = {}
        self.number = 0
        self.counting = threading.Lock()
        self.creating = threading.Lock()

    def __enter__(self) -> FaultyProxy:
        handler = type("Handler", (_Handler,), {"proxy": self})
        self._listener = _Listener(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._listener.serve_forever, args=(0.05,))
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._listener.shutdown()
        self._listener.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        """URL of the proxy."""
        return f"http://127.0.0.1:{self._listener.server_port}"

    def at_random(self, share: float, faults: tuple[str, ...], seed: int) -> None:
        """Choose faults at random for a share of the requests; conflicts only where one creates."""
        generator = random.Random(seed)

        def choose(request: Request) -> str | None:
            if generator.random() >= share:
                return None
            fault = generator.choice(faults)
            return "503" if fault == "conflict" and not request.creates else fault

        self.choose = choose


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # a client that gives up closes its connection


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: ClassVar[FaultyProxy]
    _server: HTTPConnection | None = None

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _handle(self) -> None:
        proxy = self.proxy
        with proxy.counting:
            proxy.number += 1
            request = Request(self.command, self.path, self.creates, proxy.number)
            fault = proxy.choose(request)
            if fault == "stale" and self.path not in proxy.listings:
                fault = None
            proxy.seen[fault or "none"] += 1
        body = self._body()
        if fault in ANSWERS:
            status, code, text = ANSWERS[fault]
            content = b"" if self.command == "HEAD" else ERROR.format(code, text).encode()
            self._answer(status, {"Content-Type": "application/xml", "Retry-After": "1"}, content)
            return
        if fault == "refused":
            self.close_connection = True
            return
        if fault == "stale":
            self._answer(*proxy.listings[self.path])
            return
        status, headers, content = self._pass_on(body)
        if request.lists and status == 200:
            proxy.listings[self.path] = status, headers, content
        if fault == "unanswered":
            self.close_connection = True
            return
        if fault == "slow":
            time.sleep(proxy.delay)
        self._answer(status, headers, content, cut=fault == "cut")

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = do_PATCH = _handle

    @property
    def creates(self) -> bool:
        """Whether the request creates an object only if there is none."""
        return self.command in ("PUT", "POST") and (
            "If-None-Match" in self.headers or "ifGenerationMatch=0" in self.path
        )

    def _body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _pass_on(self, body: bytes) -> Answer:
        sent = {name: value for name, value in self.headers.items() if name.lower() not in HOP}
        sent["Content-Length"] = str(len(body))
        if self._server is None:
            self._server = HTTPConnection(self.proxy.server, timeout=60)
        with self.proxy.creating if self.creates else contextlib.nullcontext():
            self._server.request(self.command, self.path, body=body or None, headers=sent)
            with self._server.getresponse() as answer:
                content = answer.read()
        headers = {name: value for name, value in answer.getheaders() if name.lower() not in HOP}
        if self.command == "HEAD":
            headers["Content-Length"] = answer.getheader("Content-Length", "0")
        return answer.status, headers, content

    def _answer(
        self, status: int, headers: dict[str, str], content: bytes, cut: bool = False
    ) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if "Content-Length" not in headers and status != 204:
            self.send_header("Content-Length", str(len(content)))
        if cut:
            self.close_connection = True
            if not content:  # nothing that could end early but the answer itself
                return
            content = content[: len(content) // 2]
        self.end_headers()
        self.wfile.write(content)

    def finish(self) -> None:
        if self._server is not None:
            self._server.close()
        super().finish()
