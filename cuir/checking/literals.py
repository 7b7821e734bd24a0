"""Range checks of literals against the dtypes that were inferred for them."""

from __future__ import annotations

from collections.abc import Iterable

from ..syntax.nodes import Literal
from ..syntax.types import I32, Scalar
from ..text.diagnostics import Sink


def check_literals(literals: Iterable[Literal], sink: Sink) -> None:
    """Report each number (T175) that its dtype does not hold."""
    for e in literals:
        t = e.type
        if not isinstance(t, Scalar) or isinstance(e.value, bool):
            continue
        if t.dtype == I32 and not -(2**31) <= e.value < 2**31:
            hint = "numbers from -2147483648 to 2147483647; an f32 is written with a point: 4e9"
            sink.error("T175", f"an i32 has 32 bits, found {shorten(e.value)}", e.span, hint)
        elif t.dtype.is_float and not abs(e.value) < t.dtype.overflows:
            message = f"{shorten(e.value)} is beyond the largest {t.dtype}, {t.dtype.largest}"
            sink.error("T175", message, e.span, "write `inf` for infinity")


def shorten(value: float) -> str:
    """Format a number as text of bounded length."""
    text = str(value)
    return text if len(text) <= 40 else f"{text[:20]}... ({len(text)} digits)"
