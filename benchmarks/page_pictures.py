"""Pictures of pages for docs/img, by headless Chromium: `python -m benchmarks.page_pictures docs/img`.

Needs the extra `browser`, here or in the Python that CUIR_BROWSER_PYTHON names.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

import cuir
from cuir.checking.checked import Checked
from cuir.interp import Trace
from cuir.lowering.layouts.tile_layouts import Fragment
from cuir.pages.bench_page import render_bench_page
from cuir.pages.fragment_picture import render_fragment_layout
from cuir.pages.listing_html import map_code, render_map
from cuir.pages.mask_picture import render_block_mask
from cuir.pages.page import Section, render_page
from cuir.pages.run_section import render_trace
from cuir.performance.suites.results import read
from cuir.text.diagnostics import CuirError

ROOT = Path(__file__).parent.parent
TUTORIAL = ROOT / "docs/tutorials/first_kernel.md"
QUALITY = 45  # of WebP: text stays sharp


@dataclass(frozen=True)
class Shot:
    """A picture: the page, what is clicked before, the part that is shown, and its size."""

    make: Callable[[], str]
    clip: str
    script: str = ""
    size: tuple[int, int] = (1000, 1600)


def read_gemm() -> str:
    """Return the GEMM of the tutorial."""
    blocks = re.findall(r"```\w*\n(.*?)```", TUTORIAL.read_text(encoding="utf-8"), re.S)
    return next(b for b in blocks if "mbarrier(WG, stages=STAGES)" in b)


def check_gemm(text: str) -> Checked:
    """Check the GEMM for tiles of 64 rows."""
    return cuir.check(cuir.parse(text, "gemm.cuir"), consts={"BM": 64})


def make_hang() -> str:
    """Return the page of the deadlock of the tutorial."""
    checked, trace = check_gemm(read_gemm().replace("mbarrier(WG, stages=STAGES)", "mbarrier(2, stages=STAGES)")), Trace()
    a, b = torch.ones(64, 256).half(), torch.ones(64, 256).half()
    try:
        cuir.run(checked, {"A": a, "B": b, "bias": torch.zeros(64), "C": torch.empty(64, 64).half()}, trace=trace)
    except CuirError as error:
        fault = error.diagnostics[0]
        line = fault.span.line if fault.span is not None else None
        return render_page("gemm", "wrong", [Section("Workers over time", render_trace(trace, fault, line))])
    raise AssertionError("the GEMM with a wrong count does not hang")


def make_map() -> str:
    """Return the page of a GEMM beside its CUDA."""
    return render_page("gemm", "", [Section("Code", render_map(map_code(cuir.lower(check_gemm(read_gemm())))))])


def make_shown() -> str:
    """Return a block mask and a fragment layout, as a notebook has them."""
    mask = cuir.create_block_mask(lambda b, h, q, k: (q >= k) & (q - k < 500), None, None, 1024, 1024, device="cpu")
    cells = (render_block_mask(mask), render_fragment_layout(Fragment(16, 16, 32)))
    return render_page("shown", "", [Section("Shown", f'<div class="columns"><div>{cells[0]}</div><div>{cells[1]}</div></div>')])


def make_bench() -> str:
    """Return the page of recorded results."""
    return render_bench_page(*read(ROOT / "benchmarks/results/smoke-h200-2026-11-23.jsonl"))


SHOTS = {
    "hang_page": Shot(
        make_hang,
        ".run",
        "document.querySelector('.run .code').style.maxHeight = '13em'; document.querySelector('[data-step=last]').click()",
    ),
    "code_map": Shot(
        make_map,
        ".map",
        "document.querySelectorAll('.map .code').forEach(x => x.style.maxHeight = '22em'); const x = document.querySelector('.program [data-cuir=\"38\"]'); x.click(); x.closest('.code').scrollTop = x.offsetTop - x.closest('.code').offsetTop - 100",
    ),
    "notebook": Shot(make_shown, "#shown .columns", size=(860, 900)),
    "bench_page": Shot(make_bench, "#rows", size=(760, 900)),
}


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", help="of pictures; left out: all")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        visits = []
        for name, shot in SHOTS.items():
            if options.names and name not in options.names:
                continue
            page = Path(folder) / f"{name}.html"
            page.write_text(shot.make(), encoding="utf-8")
            picture = str((options.folder / f"{name}.webp").resolve())
            visits.append(
                {"page": str(page), "scripts": [shot.script], "picture": picture, "clip": shot.clip, "size": shot.size, "quality": QUALITY}
            )
        python = os.environ.get("CUIR_BROWSER_PYTHON", sys.executable)
        subprocess.run(
            [python, str(ROOT / "benchmarks/browser.py")], input=json.dumps(visits), text=True, check=True, stdout=subprocess.DEVNULL
        )


if __name__ == "__main__":
    main()
