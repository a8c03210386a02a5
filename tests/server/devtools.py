"""Headless Chromium, driven over its DevTools pipe (file descriptors 3 and 4, messages that end with a zero byte).
Standard library only."""
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Browser:
    """One page. `complaints` holds what it logged as errors and every exception nobody caught."""

    def __init__(self):
        self._profile = tempfile.TemporaryDirectory()
        to_browser, ours_out = os.pipe()
        ours_in, from_browser = os.pipe()
        # The numbers 3 and 4 are the browser's, whatever ours are: a shell moves them.
        script = f'exec "$0" "$@" 3<&{to_browser} 4>&{from_browser}'
        self._process = subprocess.Popen(
            ["bash", "-c", script, CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             "--no-first-run", "--disable-background-networking", "--remote-debugging-pipe", "--window-size=1200,800",
             "--user-data-dir=" + self._profile.name, "about:blank"],
            pass_fds=(to_browser, from_browser), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_browser)
        os.close(from_browser)
        self._in, self._out, self._rest, self._id = ours_in, ours_out, b"", 0
        self._session, self.complaints, self.requests = None, [], []
        targets = self.call("Target.getTargets")["targetInfos"]
        target = next(t["targetId"] for t in targets if t["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")

    def close(self):
        os.close(self._out)
        self._process.kill()
        self._process.wait()
        os.close(self._in)
        for _ in range(20):  # its children may still write into the profile
            try:
                self._profile.cleanup()
                return
            except OSError:
                time.sleep(0.1)

    def call(self, method, **params):
        self._id += 1
        message = {"id": self._id, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            m = self._next(30)
            if m.get("id") == self._id:
                if "error" in m:
                    raise RuntimeError(f"{method}: {m['error']}")
                return m["result"]

    def _next(self, timeout):
        end = time.monotonic() + timeout
        while b"\0" not in self._rest:
            if not select.select([self._in], [], [], max(0, end - time.monotonic()))[0]:
                raise TimeoutError("the browser does not answer")
            data = os.read(self._in, 1 << 20)
            if not data:
                raise RuntimeError("the browser ended")
            self._rest += data
        text, self._rest = self._rest.split(b"\0", 1)
        m = json.loads(text)
        params = m.get("params", {})
        if m.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(params["exceptionDetails"]["exception"].get("description", "exception"))
        elif m.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.complaints.append(params["entry"]["text"] + " " + params["entry"].get("url", ""))
        elif m.get("method") == "Runtime.consoleAPICalled" and params["type"] == "error":
            self.complaints.append(json.dumps(params["args"]))
        elif m.get("method") == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        return m

    def open(self, url):
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def eval(self, expression):
        """Its value; promises are waited for."""
        r = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in r:
            raise RuntimeError(r["exceptionDetails"]["exception"].get("description", expression))
        return r["result"].get("value")

    def wait(self, condition, seconds=30):
        end = time.monotonic() + seconds
        while not self.eval(condition):
            if time.monotonic() > end:
                raise TimeoutError(f"never became true: {condition}; the page says {self.eval('document.body.innerText')!r}")
            time.sleep(0.05)

    def click(self, selector):
        """A press of the mouse where somebody would press; what covers the element gets it."""
        self.wait(f"document.querySelector({json.dumps(selector)})?.checkVisibility()")
        at = self.eval(f"{{ const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView({{ block: 'nearest' }}); "
                       "const r = e.getBoundingClientRect(); [r.x + r.width / 2, r.y + r.height / 2] }")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=at[0], y=at[1], button="left", clickCount=1)

    def type(self, text):
        self.call("Input.insertText", text=text)

    def press(self, key, modifiers=0):
        """modifiers: 1 is Alt, 8 is Shift."""
        code = {"Enter": 13, "Escape": 27}.get(key, ord(key[0].upper()))
        text = {"Enter": "\r"}.get(key, key if len(key) == 1 and not modifiers & 1 else "")
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code, modifiers=modifiers, text=text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code, modifiers=modifiers)

    def screenshot(self, path):
        import base64
        with open(path, "wb") as f:
            f.write(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))
