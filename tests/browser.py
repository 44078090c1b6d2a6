"""A headless Chromium, driven through its debugging port: what a page looks like and says."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from urllib.request import urlopen

from tornado.websocket import websocket_connect

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-port=0",
)

# text that is cut, and text whose contrast with what is behind it is under 4.5, in shadow roots too
_JUDGE = """
(() => {
  const found = [];
  const linear = c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const channel = c => linear(c / 255);
  const luminance = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const parse = text => {
    const n = text.match(/[\\d.]+/g).map(Number);
    return [n.slice(0, 3), n.length > 3 ? n[3] : 1];
  };
  const up = node => node.parentElement || (node.getRootNode().host ?? null);
  const behind = node => {
    for (let at = node; at; at = up(at)) {
      const [rgb, alpha] = parse(getComputedStyle(at).backgroundColor);
      if (alpha > 0.99) return rgb;
    }
    return matchMedia("(prefers-color-scheme: dark)").matches ? [18, 18, 18] : [255, 255, 255];
  };
  const scrolls = node => {
    for (let at = node; at; at = up(at)) {
      if (["auto", "scroll"].includes(getComputedStyle(at).overflowX)) return true;
    }
    return false;
  };
  const visit = root => {
    for (const node of root.querySelectorAll("*")) {
      if (node.shadowRoot) visit(node.shadowRoot);
      const text = [...node.childNodes].filter(n => n.nodeType === 3 && n.textContent.trim());
      if (!text.length || ["STYLE", "SCRIPT", "TITLE"].includes(node.tagName)) continue;
      const style = getComputedStyle(node);
      const box = node.getBoundingClientRect();
      if (style.display === "none" || style.visibility === "hidden" || !box.width) continue;
      const range = document.createRange();
      range.selectNodeContents(node);
      const words = range.getBoundingClientRect();
      const said = text.map(n => n.textContent.trim()).join(" ").slice(0, 60);
      const outside = words.left < -1 || words.right > innerWidth + 1;
      if (outside && !scrolls(node)) found.push("cut: " + said);
      for (let at = node; at; at = up(at)) {
        const hidden = getComputedStyle(at).overflowX;
        const edge = at.getBoundingClientRect();
        if (hidden === "hidden" && words.right > edge.right + 1) found.push("hidden: " + said);
      }
      const fore = luminance(parse(style.color)[0]), back = luminance(behind(node));
      const contrast = (Math.max(fore, back) + 0.05) / (Math.min(fore, back) + 0.05);
      if (contrast < 4.5) found.push(`contrast ${contrast.toFixed(2)}: ` + said);
    }
  };
  visit(document);
  if (document.documentElement.scrollWidth > innerWidth) {
    found.push("wider than the window: " + document.documentElement.scrollWidth);
  }
  return found;
})()
"""


class Visit:
    """Result of a visit to a page.

    Attributes
    ----------
    complaints
        Messages of the console that are errors or warnings, and requests that failed.
    judged
        Text that is cut or too faint.
    requests
        Addresses requested.
    sockets
        Addresses of the websockets opened, and the number of frames received.
    text
        Text of the page, including shadow roots.
    picture
        PNG of the page from top to bottom.
    """

    def __init__(self):
        self.complaints: list[str] = []
        self.judged: list[str] = []
        self.requests: list[str] = []
        self.sockets: dict[str, int] = {}
        self.text = ""
        self.picture = b""


_TEXT = """
(() => {
  const words = root => [...root.childNodes].map(n =>
    n.nodeType === 3 ? n.textContent
    : ["STYLE", "SCRIPT"].includes(n.tagName) ? ""
    : words(n) + (n.shadowRoot ? words(n.shadowRoot) : "") + " ").join("");
  return words(document.body).replace(/\\s+/g, " ");
})()
"""


@contextlib.contextmanager
def browser():
    """Start Chromium, and give the port that it listens on."""
    # the browser may write to its profile until its last process has ended
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            for line in process.stderr:
                found = re.search(r"DevTools listening on ws://127\.0\.0\.1:(\d+)/", line)
                if found:
                    yield int(found[1])
                    break
        finally:
            process.kill()
            process.wait()
            process.stderr.close()


def visit(port, url, *, dark=False, width=1400, seconds=1.0):
    """Open a page, wait, look at it, and close it."""
    return asyncio.run(_visit(port, url, dark, width, seconds))


async def _visit(port, url, dark, width, seconds):
    with urlopen(f"http://127.0.0.1:{port}/json/list") as answer:
        target = next(one for one in json.load(answer) if one["type"] == "page")
    made, number, waiting = Visit(), iter(range(1, 10**6)), {}
    socket = await websocket_connect(target["webSocketDebuggerUrl"], max_message_size=2**28)
    names = {}

    async def listen():
        while True:
            raw = await socket.read_message()
            if raw is None:
                return
            message = json.loads(raw)
            if "id" in message:
                waiting.pop(message["id"]).set_result(message)
                continue
            told = message["params"]
            match message["method"]:
                case "Runtime.consoleAPICalled" if told["type"] in ("error", "warning", "assert"):
                    made.complaints.append(str([a.get("value", a) for a in told["args"]]))
                case "Runtime.exceptionThrown":
                    made.complaints.append(str(told["exceptionDetails"]))
                case "Log.entryAdded" if told["entry"]["level"] in ("error", "warning"):
                    made.complaints.append(f"{told['entry']['text']} {told['entry'].get('url')}")
                case "Network.requestWillBeSent":
                    made.requests.append(told["request"]["url"])
                case "Network.loadingFailed" if not told.get("canceled"):
                    made.complaints.append(f"failed: {told['errorText']}")
                case "Network.webSocketCreated":
                    names[told["requestId"]] = told["url"]
                    made.sockets[told["url"]] = 0
                case "Network.webSocketFrameReceived":
                    made.sockets[names[told["requestId"]]] += 1
                case "Network.webSocketFrameError":
                    made.complaints.append(f"websocket: {told['errorMessage']}")

    async def ask(method, **params):
        key = next(number)
        answer = waiting[key] = asyncio.get_running_loop().create_future()
        await socket.write_message(json.dumps({"id": key, "method": method, "params": params}))
        return (await asyncio.wait_for(answer, 60)).get("result", {})

    async def value(expression):
        return (await ask("Runtime.evaluate", expression=expression, returnByValue=True))[
            "result"
        ].get("value")

    listening = asyncio.create_task(listen())
    try:
        for domain in ("Page", "Runtime", "Log", "Network"):
            await ask(f"{domain}.enable")
        await ask("Emulation.setDeviceMetricsOverride", width=width, height=900,
                  deviceScaleFactor=1, mobile=False)  # fmt: skip
        await ask("Emulation.setScrollbarsHidden", hidden=True)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await ask("Emulation.setEmulatedMedia", features=[scheme])
        await ask("Page.navigate", url=url)
        end = time.monotonic() + 30
        while await value("document.readyState") != "complete" and time.monotonic() < end:
            await asyncio.sleep(0.1)
        await asyncio.sleep(seconds)
        made.text = await value(_TEXT)
        made.judged = await value(_JUDGE)
        shot = await ask("Page.captureScreenshot", captureBeyondViewport=True, format="png")
        made.picture = base64.b64decode(shot["data"])
        await ask("Page.navigate", url="about:blank")
    finally:
        socket.close()
        await asyncio.wait_for(listening, 10)
    return made


def save(made, path):
    """Keep the picture of a visit."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_bytes(made.picture)
