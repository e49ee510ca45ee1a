"""A headless Chromium, spoken to through its pipe: no driver, no port, no library."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")


class Browser:
    """One page of a browser.

    Attributes:
        faults: what the page's console and its policy complained about.
        asked: every address it wanted to load.
    """

    def __init__(self, send: int, receive: int) -> None:
        self._send, self._receive = send, receive
        self._buffer, self._number, self._session = b"", 0, ""
        self.faults: list[str] = []
        self.asked: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """Return the result of one command of the DevTools protocol."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._send, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self._note(answer)

    def size(self, width: int, height: int, *, dark: bool = False) -> None:
        """Set the window's size and the theme the system asks for."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        self.look(dark=dark)

    def look(self, *, dark: bool = False, forced: bool = False, medium: str = "") -> None:
        """Set the theme the system asks for, whether it forces its colours, and the medium."""
        features = {
            "prefers-color-scheme": "dark" if dark else "light",
            "forced-colors": "active" if forced else "none",
        }
        listed = [{"name": name, "value": value} for name, value in features.items()]
        self.call("Emulation.setEmulatedMedia", media=medium, features=listed)

    def open(self, file: Path, link: str = "") -> None:
        """Load a file and wait until it has drawn its data."""
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=file.absolute().as_uri() + link)
        self.wait("document.documentElement.dataset.ready === 'yes'")

    def run(self, script: str) -> Any:
        """Return the value of an expression in the page."""
        answer = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait(self, condition: str) -> None:
        """Return once a condition holds in the page; fail after ten seconds."""
        end = time.monotonic() + 10
        script = f"Boolean(document.documentElement && ({condition}))"
        while not self.call("Runtime.evaluate", expression=script)["result"].get("value"):
            assert time.monotonic() < end, (condition, self.faults)
            time.sleep(0.02)

    def press(self, key: str, text: str | None = None) -> None:
        """Press and release a key, and let two frames pass."""
        for kind in ("keyDown", "keyUp"):
            given = {"text": text} if text and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, **given)
        self.frames()

    def frames(self) -> None:
        """Let two frames be drawn."""
        self.run("new Promise((d) => requestAnimationFrame(() => requestAnimationFrame(d)))")

    def point(self, selector: str, *, click: bool = False) -> None:
        """Move the pointer to the first element a selector finds, and click it if asked."""
        box = self.run(
            f"(() => {{ const b = {selector}.getBoundingClientRect();"
            " return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        kinds = ["mouseMoved", *(("mousePressed", "mouseReleased") if click else ())]
        for kind in kinds:
            self.call(
                "Input.dispatchMouseEvent",
                type=kind,
                x=box[0],
                y=box[1],
                button="left" if click and kind != "mouseMoved" else "none",
                clickCount=1,
            )

    def picture(self, file: Path) -> None:
        """Write what is seen as PNG."""
        data = self.call("Page.captureScreenshot", format="png")["data"]
        file.write_bytes(base64.b64decode(data))

    def _read(self) -> Any:
        while b"\0" not in self._buffer:
            part = os.read(self._receive, 2**20)
            assert part, "the browser is gone"
            self._buffer += part
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def _note(self, event: dict[str, Any]) -> None:
        parameters = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown":
                self.faults.append(str(parameters["exceptionDetails"]))
            case "Log.entryAdded":
                self.faults.append(str(parameters["entry"]["text"]))
            case "Runtime.consoleAPICalled":
                self.faults.append(str(parameters["args"]))
            case "Network.requestWillBeSent":
                self.asked.append(parameters["request"]["url"])
            case _:
                pass


@contextmanager
def browser() -> Iterator[Browser]:
    """Yield a browser that ends with the block; one must be installed."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    assert program, f"none of {', '.join(NAMES)} is installed"
    to_read, to_write = os.pipe()
    answer_read, answer_write = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = (
            f'exec "$0" "$@" 3<&{to_read} 4>&{answer_write}',
            *(program, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
            *("--remote-debugging-pipe", "--no-first-run", f"--user-data-dir={profile}"),
        )
        process = subprocess.Popen(
            ["bash", "-c", *command],
            pass_fds=(to_read, answer_write),
            stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(answer_write)
        try:
            yield Browser(to_write, answer_read)
        finally:
            os.close(to_write)  # its end: the browser leaves when the pipe does
            process.wait(timeout=20)
            os.close(answer_read)
