"""Headless Chromium for pages: `python benchmarks/browser.py < visits.json` opens files, runs scripts, takes pictures.

Needs PyQt6-WebEngine alone, so that another Python than the project's may run it. Input: a list of visits, {"page":
FILE, "scripts": [JavaScript, ...], "picture": FILE or null, "size": [width, height], "clip": selector or null}. Output:
for each visit {"results": [...], "requests": [...], "messages": [...]}: values of the scripts, addresses that the page
asked for, messages of its console.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
os.environ.setdefault("QTWEBENGINE_CHROMIUM_FLAGS", "--no-sandbox --disable-gpu --force-color-profile=srgb")

from PyQt6.QtCore import QEventLoop, QRect, QTimer, QUrl
from PyQt6.QtWebEngineCore import QWebEnginePage, QWebEngineProfile, QWebEngineUrlRequestInterceptor
from PyQt6.QtWebEngineWidgets import QWebEngineView
from PyQt6.QtWidgets import QApplication

LIMIT = 20_000  # milliseconds that a load or a script may take
SETTLING_MS = 300  # milliseconds until what a script has changed is painted


class Requests(QWebEngineUrlRequestInterceptor):
    """Addresses that pages ask for."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def interceptRequest(self, info: Any) -> None:
        """Record a request."""
        self.addresses.append(info.requestUrl().toString())


class Page(QWebEnginePage):
    """A page that keeps the messages of its console."""

    def __init__(self, profile: QWebEngineProfile):
        super().__init__(profile)
        self.messages: list[str] = []

    def javaScriptConsoleMessage(self, level: Any, message: str | None, line: int, source: str | None) -> None:
        """Keep a message."""
        self.messages.append(f"{level.name}: {message} (line {line})")


def wait(start: Callable[[Callable[[Any], None]], None]) -> Any:
    """Start something that calls back once, and return what it is called with; None after LIMIT."""
    loop, answers = QEventLoop(), list[Any]()

    def end_loop(*values: Any) -> None:
        answers.append(values[0] if values else None)
        loop.quit()

    QTimer.singleShot(LIMIT, loop.quit)
    start(end_loop)
    if not answers:
        loop.exec()
    return answers[0] if answers else None


def visit(request: dict[str, Any], requests: Requests, profile: QWebEngineProfile) -> dict[str, Any]:
    """Open a page, run its scripts in their order, take its picture."""
    requests.addresses = []
    view, page = QWebEngineView(), Page(profile)
    view.setPage(page)
    view.resize(*request.get("size", (1400, 1000)))
    view.show()

    def load(callback: Callable[[Any], None]) -> None:
        page.loadFinished.connect(callback)
        page.load(QUrl.fromLocalFile(str(Path(request["page"]).resolve())))

    def evaluate(code: str) -> Any:
        result = wait(lambda callback: page.runJavaScript(f"JSON.stringify((() => {{ {code} }})())", callback))
        return json.loads(result) if result else None

    loaded = wait(load)
    results = [evaluate(code) for code in request.get("scripts", ())]
    if request.get("picture"):
        wait(lambda callback: QTimer.singleShot(SETTLING_MS, callback))
        picture = view.grab()
        if request.get("clip"):
            box = f"document.querySelector({json.dumps(request['clip'])}).getBoundingClientRect()"
            x, y, width, height = evaluate(f"const r = {box}; return [r.left, r.top, r.width, r.height]")
            picture = picture.copy(QRect(int(x), int(y), int(width) + 1, int(height) + 1))
        picture.save(request["picture"], quality=request.get("quality", -1))
    view.close()
    return {
        "loaded": loaded,
        "results": results,
        "requests": requests.addresses,
        "messages": page.messages,
    }


def main() -> None:
    """Visit the pages that standard input names."""
    visits = json.load(sys.stdin)
    application = QApplication(sys.argv[:1])
    profile, requests = QWebEngineProfile(), Requests()
    profile.setUrlRequestInterceptor(requests)
    answers = [visit(request, requests, profile) for request in visits]
    json.dump(answers, sys.stdout)
    sys.stdout.flush()
    del application
    os._exit(0)  # Qt's order of destruction at the end of Python is not defined


if __name__ == "__main__":
    main()
