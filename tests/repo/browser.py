"""Headless Chromium by its debugging pipe: messages end with a zero byte, so no package is needed."""

import base64
import itertools
import json
import os
import shutil
import subprocess
import tempfile
import time


def chromium():
    """The program, or None."""
    names = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
    return next(filter(None, map(shutil.which, names)), None)


class Browser:
    def __init__(self):
        self.profile = tempfile.TemporaryDirectory(prefix="hrm_browser_", ignore_cleanup_errors=True)
        to_browser, self.commands = os.pipe()
        self.answers, from_browser = os.pipe()
        # The browser reads descriptor 3 and writes descriptor 4.
        shell = f'exec "$0" "$@" 3<&{to_browser} 4>&{from_browser}'
        self.process = subprocess.Popen(
            ["bash", "-c", shell, chromium(), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
             "--remote-debugging-pipe", f"--user-data-dir={self.profile.name}", "about:blank"],
            pass_fds=(to_browser, from_browser), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL)
        os.close(to_browser)
        os.close(from_browser)
        self.numbers = itertools.count(1)
        self.waiting = b""
        self.problems = []  # errors of scripts, and what the content policy refused
        self.session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.requests = []

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.commands)
        os.close(self.answers)
        self.profile.cleanup()

    def _message(self):
        while b"\0" not in self.waiting:
            got = os.read(self.answers, 1 << 20)
            if not got:
                raise RuntimeError("the browser has ended")
            self.waiting += got
        text, self.waiting = self.waiting.split(b"\0", 1)
        return json.loads(text)

    def call(self, method, **parameters):
        number = next(self.numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._message()
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            event, about = answer.get("method"), answer.get("params", {})
            if event == "Runtime.exceptionThrown":
                self.problems.append(json.dumps(about["exceptionDetails"])[:500])
            elif event == "Log.entryAdded" and about["entry"]["level"] == "error":
                self.problems.append(about["entry"]["text"])
            elif event == "Page.javascriptDialogOpening":
                self.problems.append("a dialog opened")
            elif event == "Network.requestWillBeSent":
                self.requests.append(about["request"]["url"])

    def open(self, url, width=1280, height=900, dark=False):
        self.problems, self.requests = [], []
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
                  mobile=width < 700)
        self.call("Emulation.setEmulatedMedia",
                  features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        self.call("Page.navigate", url=url)

    def evaluate(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(json.dumps(result["exceptionDetails"])[:500])
        return result["result"].get("value")

    def wait(self, expression, seconds=20):
        """Until the expression is true; returns its value."""
        until = time.monotonic() + seconds
        while True:
            try:
                value = self.evaluate(expression)
            except RuntimeError:  # between two pages
                value = None
            if value:
                return value
            if time.monotonic() > until:
                raise TimeoutError(expression)
            time.sleep(0.05)

    def picture(self, file, full=False):
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=full)["data"]
        with open(file, "wb") as out:
            out.write(base64.b64decode(data))
