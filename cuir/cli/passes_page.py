"""Passes of the lowering for people, as data, and as the page docs/passes.md.

The purpose of a pass stands in the pipeline and in its module.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from ..lowering.passes.pipeline import PASSES, Pass

_HEAD = """\
# Passes of the lowering

This page is generated from `cuir/lowering/passes`, where the file of each pass states all of its conditions. [The lowering](lowering.md) explains the IR, and how to write a pass.

The first column gives the order: some passes run several times. Without a *needed* pass, no CUDA can be printed; `cuir lower FILE --without NAME` leaves out any other pass.
A pass that *rounds* may change the last bits of sums and products. Other passes keep every bit.

| order | pass | what the pass does | |
|---|---|---|---|
"""


def number_passes() -> Iterator[tuple[int, Pass]]:
    """Return the passes in order, from 1."""
    return enumerate(PASSES, 1)


def kind(p: Pass) -> str:
    """Return the mark of a pass: "needed" to print the kernel, "rounds" if it may change results, else ""."""
    return "needed" if p.needed else "rounds" if p.rounding else ""


def as_json() -> list[dict[str, Any]]:
    """Return the passes as JSON data."""
    return [{"number": n, "name": p.name, "purpose": p.purpose, "needed": p.needed, "rounds": p.rounding} for n, p in number_passes()]


def markdown() -> str:
    """Return all passes as one page.

    It has a table with each one's places in the order, then the next paragraph of each one's docstring, after the
    summary.
    """
    places: dict[str, list[int]] = {}
    for n, p in number_passes():
        places.setdefault(p.name, []).append(n)
    passes = {p.name: p for p in PASSES}.values()
    rows = [f"| {', '.join(map(str, places[p.name]))} | [`{p.name}`](#{p.name}) | {p.purpose} | {kind(p)} |" for p in passes]
    parts = [_HEAD + "\n".join(rows)]
    for p in passes:
        summary, _, details = (inspect.getdoc(p.module) or "").partition("\n\n")
        paragraph = details.partition("\n\n")[0]
        parts.append(f"## {p.name}\n\n{' '.join((paragraph or summary).split())}")
    return "\n\n".join(parts) + "\n"
