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

Made from `cuir/lowering/passes` by `cuir lower --passes --markdown`; do not edit. How the lowering works, and how to write a pass: [lowering.md](lowering.md).

Passes run in this order on the IR of every kernel. `cuir lower FILE --stages DIR` writes the IR behind each that changed it, `--validate` compares the results before and behind
each, `--without NAME` leaves one out. *Needed*: nothing can be printed without it. *Rounds*: sums and products may be rounded otherwise than before; all other passes keep every bit.

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
    """Return all passes as one page: the order, then each once with its module's docstring."""
    rows = [f"| {n} | `{p.name}` | {p.purpose} | {kind(p)} |" for n, p in numbered()]
    parts = [_HEAD + "\n".join(rows)]
    for p in {p.name: p for _, p in numbered()}.values():
        docstring = inspect.getdoc(p.module) or ""
        parts.append(f"## {p.name}\n\n`cuir/lowering/passes/{p.name}.py`\n\n{docstring}")
    return "\n\n".join(parts) + "\n"
