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

Made from `cuir/lowering/passes`, a file for each pass, by `cuir lower --passes --markdown`; do not edit. How the lowering works, and how to write a pass: [lowering.md](lowering.md).

The numbers give the order. *Needed*: nothing can be printed without it; others can be left out (`cuir lower FILE --without NAME`).
*Rounds*: sums and products may be rounded otherwise than before. All other passes keep every bit.

| | pass | what it does | |
|---|---|---|---|
"""


def numbered() -> Iterator[tuple[int, Pass]]:
    """Return the passes in order, from 1."""
    return enumerate(PASSES, 1)


def kind(p: Pass) -> str:
    """Return what is special about a pass, in a word."""
    return "needed" if p.needed else "rounds" if p.rounding else ""


def as_json() -> list[dict[str, Any]]:
    """Return the passes as JSON data."""
    return [{"number": n, "name": p.name, "purpose": p.purpose, "needed": p.needed, "rounds": p.rounding} for n, p in numbered()]


def markdown() -> str:
    """Return all passes as one page: a table of each with its places in the order, then what its module's docstring adds."""
    places: dict[str, list[int]] = {}
    for n, p in numbered():
        places.setdefault(p.name, []).append(n)
    passes = {p.name: p for p in PASSES}.values()
    rows = [f"| {', '.join(map(str, places[p.name]))} | [`{p.name}`](#{p.name}) | {p.purpose} | {kind(p)} |" for p in passes]
    parts = [_HEAD + "\n".join(rows)]
    for p in passes:
        summary, _, details = (inspect.getdoc(p.module) or "").partition("\n\n")
        parts.append(f"## {p.name}\n\n{details or summary}")
    return "\n\n".join(parts) + "\n"
