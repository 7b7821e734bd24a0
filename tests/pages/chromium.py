"""Headless Chromium of PyQt6-WebEngine, of this Python or of that in CUIR_BROWSER_PYTHON."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DRIVER = Path(__file__).parents[2] / "benchmarks/browser.py"
PYTHON = os.environ.get("CUIR_BROWSER_PYTHON", sys.executable)


@dataclass(frozen=True)
class Visit:
    """Results of a visit of a page: values of its scripts, addresses that it requested, messages of its console."""

    results: list[Any]
    requests: list[str]
    messages: list[str]


@functools.cache
def find_reason_to_skip() -> str:
    """Return why there is no Chromium; "" if there is one."""
    tried = subprocess.run([PYTHON, "-c", "import PyQt6.QtWebEngineWidgets"], capture_output=True, text=True, check=False, timeout=60)
    if tried.returncode == 0:
        return ""
    return f"no headless Chromium: {(tried.stderr.strip().splitlines() or ['?'])[-1]}; pip install 'cubridge[browser]', or name a Python that has it in CUIR_BROWSER_PYTHON"


def visit(pages: dict[Path, list[str]]) -> dict[str, Visit]:
    """Open pages, each with its scripts, in one browser; return the visits by the names of the files."""
    requests = [{"page": str(path), "scripts": scripts} for path, scripts in pages.items()]
    ran = subprocess.run([PYTHON, str(DRIVER)], input=json.dumps(requests), capture_output=True, text=True, check=False, timeout=120)
    assert ran.returncode == 0, ran.stderr
    answers = json.loads(ran.stdout)
    assert all(answer["loaded"] for answer in answers)
    return {path.stem: Visit(a["results"], a["requests"], a["messages"]) for path, a in zip(pages, answers, strict=True)}
