"""What a person does on the page besides clicks and keys: drop, paste, pick, drag with a finger."""

import base64
import json
import time
from pathlib import Path

from tests.report.page.browser import Browser

WAIT = 60.0  # seconds, on a machine with much else to do


def wait_for(tab: Browser, expression: str) -> None:
    end = time.monotonic() + WAIT
    while not tab.ask(expression):
        assert time.monotonic() < end, (expression, tab.ask("document.body.innerText"), tab.errors)
        time.sleep(0.02)


def drop(tab: Browser, file: Path) -> None:
    left, top, width, height = tab.place("#drop")
    data = {"items": [], "files": [str(file)], "dragOperationsMask": 1}
    for kind in ("dragEnter", "dragOver", "drop"):
        tab.send("Input.dispatchDragEvent", type=kind, x=left + width / 2, y=top + height / 2, data=data)


def paste(tab: Browser, png: Path) -> None:
    tab.send("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    data = base64.b64encode(png.read_bytes()).decode()
    tab.ask(f"""(async () => {{
      const bytes = Uint8Array.from(atob({json.dumps(data)}), (each) => each.charCodeAt(0));
      const blob = new Blob([bytes], {{ type: "image/png" }});
      await navigator.clipboard.write([new ClipboardItem({{ "image/png": blob }})]);
    }})()""")
    parameters = {"key": "v", "code": "KeyV", "windowsVirtualKeyCode": ord("V"), "modifiers": 2}
    tab.send("Input.dispatchKeyEvent", type="keyDown", commands=["paste"], **parameters)
    tab.send("Input.dispatchKeyEvent", type="keyUp", **parameters)


def pick(tab: Browser, file: Path, button: str = "#pick") -> None:
    """Click a button that opens the chooser of files, and choose one there."""
    tab.send("Page.setInterceptFileChooserDialog", enabled=True)
    tab.click(button)
    opened = tab.wait_event("Page.fileChooserOpened")
    tab.send("DOM.setFileInputFiles", files=[str(file)], backendNodeId=opened["backendNodeId"])
    tab.send("Page.setInterceptFileChooserDialog", enabled=False)


def touch(tab: Browser, *places: tuple[float, float]) -> None:
    for kind, at in [("touchStart", places[0]), *(("touchMove", at) for at in places[1:])]:
        tab.send("Input.dispatchTouchEvent", type=kind, touchPoints=[{"x": at[0], "y": at[1]}])
    tab.send("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
    tab.frames()
