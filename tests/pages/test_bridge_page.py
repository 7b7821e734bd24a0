"""The page of an adaptation: times with bars where they were measured, and a failed one."""

from __future__ import annotations

import re

import cuir
from cuir.bridging import BridgeReport, Step
from cuir.pages.bridge_page import render_bridge_page
from cuir.performance.suites.result_rows import Comparison
from cuir.text.diagnostics import CuirError
from tests.pages.html_text import assert_well_formed, read_section
from tests.pages.ring_programs import TEXT

ORIGIN = cuir.parse(TEXT)
SPEC = cuir.Specification("window", lambda b, h, q, k: q - k < 200)


def test_times_stand_beside_those_of_others() -> None:
    timing: Comparison = {
        "device": "H200",
        "problem": "B=1 <causal>",
        "rows": [
            {"what": "cuir", "milliseconds": 0.5, "tflops": 600.0},
            {"what": "sdpa", "milliseconds": 1.0, "tflops": 300.0},
            {"what": "flex", "milliseconds": None, "why": "no <Triton>"},
        ],
        "error": 1e-4,
        "yardstick": 2e-4,
        "summary": "twice as fast",
    }
    report = BridgeReport("window", steps=[Step("run", "done")], timing=timing)
    page = render_bridge_page(report, ORIGIN, None, SPEC)
    text = read_section(page, "times")
    assert all(words in text for words in ("B=1 <causal> on H200", "twice as fast", "no <Triton>", "1.00e-04", "600"))
    assert [int(w) for w in re.findall(r"width:(\d+)px", page)] == [300, 150]
    assert_well_formed(page)


def test_a_failed_transfer_shows_its_error() -> None:
    report = BridgeReport(
        "window", steps=[Step("transfer", "failed", "no <point>")], diagnostics=CuirError.of("X120", "no <point>").diagnostics
    )
    page = render_bridge_page(report, ORIGIN, None, SPEC)
    assert "failed" in page and "error[X120]: no &lt;point&gt;" in page and "Program" not in page
    assert_well_formed(page)
