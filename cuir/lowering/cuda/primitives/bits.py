"""Tests of bits (ir/mask_words.py).

The words of a row, shifted by the thread's first column, are computed before the loop. In the loop the tested bit is
known once it is unrolled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...ir.ir_types import TileT
from ...ir.mask_words import WORD, Bits
from ..loops import Position
from ..operator_text import strip
from ..registry import element_of

if TYPE_CHECKING:
    from ..elements import Elements


@element_of("tile.bits")
def bits(elements: Elements, op: Bits, at: Position) -> str:
    """Return the test of an element's bit."""
    t = op.result.type
    assert isinstance(t, TileT)
    rows = elements.scope.fragment(t).row_values
    texts = []
    for w, word in enumerate(op.words):
        for r in range(rows):
            place = Position("", str(r), "", "")
            text = f"unsigned({strip(elements.element(word, place))})"
            if op.limit is not None:
                text = f"cuir::first_bits({text}, {strip(elements.element(op.limit, place))}, {WORD * w})"
            texts.append(f"{text} >> col")
    words = elements.hoist("unsigned", texts, at, f"({at.k}) / {WORD} * {rows} + {at.r}")
    return f"(({words} >> ({at.k}) % {WORD} & 1) != 0)"
