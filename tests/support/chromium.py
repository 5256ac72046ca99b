"""Drive a headless Chromium over its debugging protocol, if there is one on this machine.

Source: https://chromedevtools.github.io/devtools-protocol/
"""

import asyncio
import base64
import contextlib
import os
import shutil
import signal
import subprocess

import aiohttp

from tests.support.processes import PATIENCE_SECONDS, wait_until

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


def find_chromium():
    return next((path for path in map(shutil.which, NAMES) if path is not None), None)


class Tab:
    """One page of a browser, and what went wrong on it."""

    def __init__(self, socket_url):
        self._url = socket_url
        self._runner = asyncio.Runner()
        self._number = 0
        self.problems = []
        """Errors and warnings of the console, exceptions, and what the security policy refused."""
        self.requests = []

    def __enter__(self):
        async def connect():
            self._session = aiohttp.ClientSession()
            self._socket = await self._session.ws_connect(self._url, max_msg_size=0)

        self._runner.run(connect())
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        return self

    def __exit__(self, *_):
        async def close():
            await self._socket.close()
            await self._session.close()

        self._runner.run(close())
        self._runner.close()

    def call(self, method, **parameters):
        self._number += 1
        number = self._number

        async def ask():
            await self._socket.send_json({"id": number, "method": method, "params": parameters})
            while True:
                message = await self._socket.receive_json(timeout=PATIENCE_SECONDS)
                if message.get("id") == number:
                    return dict(message)
                self._note(message)

        answer = self._runner.run(ask())
        if "error" in answer:
            raise AssertionError(f"{method}: {answer['error']}")
        return answer["result"]

    def _note(self, message):
        method, parameters = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.problems.append(str(parameters["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled":
            self.problems.append(str(parameters["args"]))
        elif method == "Log.entryAdded":
            self.problems.append(parameters["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])

    def run(self, expression):
        """Evaluate an expression that has a value in JSON."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, userGesture=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def open(self, path):
        self.call("Page.navigate", url=path.as_uri())
        wait_until(
            lambda: self.run("document.readyState === 'complete' && location.protocol === 'file:'"), what="the page"
        )

    def resize(self, width, height=900, *, is_phone=False):
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=is_phone
        )

    def prefer(self, scheme):
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def press(self, key, text=""):
        codes = {"Tab": 9, "Enter": 13, "ArrowLeft": 37, "ArrowRight": 39, " ": 32}
        named = {"key": key, "windowsVirtualKeyCode": codes.get(key, 0)}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **named)
        self.call("Input.dispatchKeyEvent", type="keyUp", **named)

    def write(self, text):
        self.call("Input.insertText", text=text)

    def screenshot(self):
        """Return the whole page as PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"])

    def print(self):
        """Return the page as PDF on A4."""
        options = {"paperWidth": 8.27, "paperHeight": 11.69, "printBackground": True}
        return base64.b64decode(self.call("Page.printToPDF", **options)["data"])


@contextlib.contextmanager
def open_tab(folder):
    """A page of a new Chromium without a network, whose profile is in a folder of the test."""
    program = find_chromium()
    assert program is not None
    profile = folder / "chromium"
    command = [
        *(program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
        *("--remote-debugging-port=0", f"--user-data-dir={profile}", "--disable-extensions", "--mute-audio"),
        *("--disable-background-networking", "--proxy-server=127.0.0.1:9", "about:blank"),
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        port_file = profile / "DevToolsActivePort"
        wait_until(lambda: port_file.exists() and len(port_file.read_text().splitlines()) > 1, what="Chromium's port")
        port = port_file.read_text().splitlines()[0]
        with Tab(_find_page(port)) as tab:
            yield tab
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _find_page(port):
    async def ask():
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/json") as answer:
            return list(await answer.json())

    found = []

    def look():
        found[:] = [page["webSocketDebuggerUrl"] for page in asyncio.run(ask()) if page["type"] == "page"]
        return bool(found)

    wait_until(look, what="a page of Chromium")
    return found[0]
