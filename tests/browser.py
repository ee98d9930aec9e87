"""Headless Chromium by its debugging protocol over two pipes: no driver is needed."""

import contextlib
import json
import os
import pathlib
import subprocess
import time
from collections.abc import Iterator

FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync "
    "--hide-scrollbars=false --remote-debugging-pipe"
).split()


class Page:
    """A page of a browser.

    Attributes:
        errors: What its console said is wrong, since it was opened.
    """

    def __init__(self, read: int, write: int):
        self._read = os.fdopen(read, "rb")
        self._write = write
        self._number = 0
        self._left = b""
        self._session = None
        self.errors = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call(
            "Target.attachToTarget", targetId=target, flatten=True
        )["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params) -> dict:
        """Calls a method of the protocol, and returns its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]

    def _receive(self) -> dict:
        while b"\0" not in self._left:
            more = os.read(self._read.fileno(), 2**20)
            assert more, "the browser has ended"
            self._left += more
        text, _, self._left = self._left.partition(b"\0")
        message = json.loads(text)
        method, params = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.errors.append(str(params["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] == "error":
            self.errors.append(str(params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(str(params["entry"]))
        elif method == "Network.requestWillBeSent":
            url = params["request"]["url"]
            if not url.startswith(("file:", "data:", "about:", "blob:")):
                self.errors.append(f"asks the network for {url}")
        return message

    def open(self, url: str, width: int, height: int = 900) -> None:
        """Opens a page at a width, and waits until it and its scripts are there."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        self.errors.clear()
        result = self.call("Page.navigate", url=url)
        assert "errorText" not in result, result
        self.wait_for("document.readyState == 'complete'")

    def evaluate(self, expression: str):
        """Returns the value of an expression in JavaScript."""
        result = self.call(
            "Runtime.evaluate",
            expression=expression,
            awaitPromise=True,
            returnByValue=True,
        )
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait_for(self, expression: str, seconds: float = 60) -> None:
        """Waits until an expression is true."""
        end = time.monotonic() + seconds
        while not self.evaluate(expression):
            assert time.monotonic() < end, f"never true: {expression}"
            time.sleep(0.1)


@contextlib.contextmanager
def opened(program: str, profile: pathlib.Path) -> Iterator[Page]:
    """Starts a browser with an empty profile, and ends it."""
    to_browser, write = os.pipe()
    read, from_browser = os.pipe()

    def as_3_and_4():
        # Both are moved out of the way first: one may be 3 or 4 itself.
        ends = [os.dup(os.dup(end)) for end in (to_browser, from_browser)]
        os.dup2(ends[0], 3)
        os.dup2(ends[1], 4)

    process = subprocess.Popen(
        [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
        preexec_fn=as_3_and_4,
        close_fds=False,
        stderr=subprocess.DEVNULL,
    )
    os.close(to_browser)
    os.close(from_browser)
    try:
        yield Page(read, write)
    finally:
        process.terminate()
        process.wait(30)
        os.close(write)
