"""A headless Chromium for tests, moved as a person moves one: real clicks, real keys, a pointer that hovers.

It is spoken to in the DevTools protocol over two pipes, which needs nothing but the browser:
https://chromedevtools.github.io/devtools-protocol/
"""

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PLAYWRIGHT = Path.home() / ".cache/ms-playwright"
OPTIONS = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"]
OPTIONS += ["--disable-dev-shm-usage"]
PIPES = "import os, sys; [os.dup2(int(sys.argv[at]), 2 + at) for at in (1, 2)]; os.execv(sys.argv[3], sys.argv[3:])"
BUTTONS = {"left": 1, "right": 2, "middle": 4}
KEYS = {"Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Tab": 9}


def chromium() -> str | None:
    """A Chromium that is installed: named by CHROMIUM, on the path, or Playwright's."""
    named = [os.environ.get("CHROMIUM"), *map(shutil.which, NAMES)]
    of_playwright = sorted(PLAYWRIGHT.glob("chromium*/chrome*/*")) if PLAYWRIGHT.is_dir() else []
    names = ("chrome", "headless_shell", "chrome-headless-shell")
    programs = [str(path) for path in of_playwright if path.name in names]
    return next((program for program in [*named, *programs] if program), None)


class Browser:
    """One tab; what it logs, throws and asks the network for is kept.

    Attributes:
        errors: what the console had to say in warnings and errors, and exceptions.
        requests: addresses that were asked for, but for those within the file.
    """

    def __init__(self, process: subprocess.Popen[bytes], to: int, back: int) -> None:
        self._process, self._to, self._back = process, to, back
        self._sent, self._read, self._session = 0, b"", ""
        self._events: list[dict[str, Any]] = []
        self.errors: list[str] = []
        self.requests: list[str] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: object) -> dict[str, Any]:
        self._sent += 1
        message = {"id": self._sent, "method": method, "params": parameters}
        whole = json.dumps(message | ({"sessionId": self._session} if self._session else {})).encode() + b"\0"
        while whole:
            whole = whole[os.write(self._to, whole) :]
        while (answer := self._next()).get("id") != self._sent:
            self._events.append(answer)
        assert "error" not in answer, (method, answer)
        result: dict[str, Any] = answer["result"]
        return result

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._read:
            read = os.read(self._back, 1 << 20)
            assert read, "the browser has ended"
            self._read += read
        message, self._read = self._read.split(b"\0", 1)
        event: dict[str, Any] = json.loads(message)
        self._note(event.get("method"), event.get("params", {}))
        return event

    def _note(self, method: str | None, what: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.errors.append(str(what["exceptionDetails"].get("exception", what["exceptionDetails"])))
        if method == "Log.entryAdded" and what["entry"]["level"] in ("warning", "error"):
            self.errors.append(what["entry"]["text"])
        if method == "Runtime.consoleAPICalled" and what["type"] in ("warning", "error", "assert"):
            self.errors.append(str(what["args"]))
        if method == "Network.requestWillBeSent" and not what["request"]["url"].startswith("data:"):
            self.requests.append(what["request"]["url"])

    def open(
        self, page: Path | str, width: int = 1400, height: int = 900, *, dark: bool = False, phone: bool = False
    ) -> None:
        """Open a file or an address in a window of a size, and forget what was noted before."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        self.emulate("dark" if dark else "light")
        self._events.clear()
        self.errors.clear()
        self.requests.clear()
        self.send("Page.navigate", url=page.as_uri() if isinstance(page, Path) else page)
        self.wait_event("Page.loadEventFired")
        self.frames()

    def wait_event(self, method: str) -> dict[str, Any]:
        """Wait until something has happened, unless it has since the page was opened, and return what is said of it."""
        while not (found := [event for event in self._events if event.get("method") == method]):
            self._events.append(self._next())
        self._events.remove(found[-1])
        parameters: dict[str, Any] = found[-1]["params"]
        return parameters

    def emulate(self, scheme: str = "light", media: str = "", motion: str = "no-preference") -> None:
        """What the system prefers, and whether the page is printed."""
        preferred = {"prefers-color-scheme": scheme, "prefers-reduced-motion": motion}
        features = [{"name": name, "value": value} for name, value in preferred.items()]
        self.send("Emulation.setEmulatedMedia", media=media, features=features)

    def ask(self, script: str) -> Any:
        """The value of an expression in the page; a promise is waited for."""
        answer = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def frames(self, count: int = 2) -> None:
        for _ in range(count):
            self.ask("new Promise(requestAnimationFrame)")

    def press(self, key: str, shift: bool = False) -> None:
        for kind in ("keyDown", "keyUp"):
            code = KEYS.get(key, ord(key[0]))
            text = {"text": "\r"} if key == "Enter" else {"text": key} if len(key) == 1 else {}
            parameters = {"key": key, "windowsVirtualKeyCode": code, "modifiers": 8 * shift}
            self.send("Input.dispatchKeyEvent", type=kind, **parameters, **(text if kind == "keyDown" else {}))
        self.frames()

    def pointer(self, kind: str, x: float, y: float, held: bool = False, name: str = "left") -> None:
        """Move, press or release the pointer; `kind` is Moved, Pressed or Released."""
        button = name if held or kind != "Moved" else "none"
        more = {"button": button, "buttons": BUTTONS[name] if held else 0, "clickCount": int(kind != "Moved")}
        self.send("Input.dispatchMouseEvent", type=f"mouse{kind}", x=x, y=y, **more)

    def place(self, selector: str) -> tuple[float, float, float, float]:
        """Left, top, width and height of an element, which is scrolled to."""
        one = f"document.querySelector({json.dumps(selector)})"
        self.ask(one + ".scrollIntoView({ block: 'center', behavior: 'instant' })")
        box = self.ask(f"(({{ x, y, width, height }}) => [x, y, width, height])({one}.getBoundingClientRect())")
        self.frames()
        return tuple(box)

    def click(self, selector: str) -> None:
        left, top, width, height = self.place(selector)
        for kind in ("Moved", "Pressed", "Released"):
            self.pointer(kind, left + width / 2, top + height / 2, held=kind == "Pressed")
        self.frames()

    def drag(self, start: tuple[float, float], stop: tuple[float, float]) -> None:
        for kind, place in (("Moved", start), ("Pressed", start), ("Moved", stop), ("Released", stop)):
            self.pointer(kind, *place, held=kind != "Released" and (kind, place) != ("Moved", start))
        self.frames()

    def wheel(self, x: float, y: float, by: float) -> None:
        self.send("Input.dispatchMouseEvent", type="mouseWheel", x=x, y=y, deltaX=0, deltaY=by)
        self.frames(4)


@contextlib.contextmanager
def browser(program: str, folder: Path) -> Iterator[Browser]:
    """Start the browser with a profile of its own, and end it."""
    pipes = [os.pipe() for _ in range(2)]
    (theirs_in, to), (back, theirs_out) = ([fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in pipe] for pipe in pipes)
    for end in (end for pipe in pipes for end in pipe):
        os.close(end)
    command = [sys.executable, "-c", PIPES, str(theirs_in), str(theirs_out), program, *OPTIONS]
    command += ["--remote-debugging-pipe", f"--user-data-dir={folder / 'profile'}"]
    with (folder / "browser.log").open("wb") as log:
        process = subprocess.Popen(command, pass_fds=(theirs_in, theirs_out), stderr=log, stdout=log)
    os.close(theirs_in)
    os.close(theirs_out)
    try:
        yield Browser(process, to, back)
    finally:
        process.terminate()
        process.wait(20)
        os.close(to)
        os.close(back)
