"""A headless Chromium that a test drives as a person would, over its debugging protocol."""

import json
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import httpx

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Browser:
    """One page in a headless Chromium."""

    def __init__(self, profile: Path, width: int = 1200, height: int = 800) -> None:
        from websockets.sync.client import connect

        assert CHROMIUM is not None
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-port=0"]
        flags += [f"--window-size={width},{height}", f"--user-data-dir={profile}", "--disable-background-networking"]
        self._process = subprocess.Popen([CHROMIUM, *flags, "about:blank"], stderr=subprocess.PIPE, text=True)
        assert self._process.stderr is not None
        found = next(match for line in self._process.stderr if (match := re.search(r"ws://(127.0.0.1:\d+)/", line)))
        tabs = httpx.get(f"http://{found[1]}/json", timeout=30).json()
        target = next(tab for tab in tabs if tab["type"] == "page")
        self._socket, self._number = connect(target["webSocketDebuggerUrl"], max_size=None), 0

    def close(self) -> None:
        self._socket.close()
        self._process.terminate()
        self._process.communicate(timeout=30)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        while (answer := json.loads(self._socket.recv(timeout=60))).get("id") != self._number:
            pass
        result: dict[str, Any] = answer["result"]
        return result

    def value(self, expression: str) -> Any:
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def until(self, expression: str) -> None:
        end = time.monotonic() + 60
        while not self.value(f"!!({expression})"):  # an element has no value by itself
            assert time.monotonic() < end, (expression, self.value("document.body.innerText"))
            time.sleep(0.02)

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            text = {"text": key} if len(key) == 1 and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, **text)
