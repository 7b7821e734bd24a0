"""Hints for well-known functions that are no primitives: compositions of primitives."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_SIGMOID = "1.0 / (1.0 + exp2(x * -1.4426950408889634))"
COMPOSITIONS = {  # of x and, in this order, y and z
    "rsqrt": "1.0 / sqrt(x)",
    "exp": "exp2(x * 1.4426950408889634)",
    "expm1": "exp2(x * 1.4426950408889634) - 1.0",
    "log": "log2(x) * 0.6931471805599453",
    "log10": "log2(x) * 0.3010299956639812",
    "tan": "sin(x) / cos(x)",
    "ceil": "-floor(-x)",
    "pow": "power(x, y)",
    "square": "x * x",
    "reciprocal": "1.0 / x",
    "sigmoid": _SIGMOID,
    "silu": f"x * ({_SIGMOID})",
    "gelu": "0.5 * x * erfc(x * -0.7071067811865476)",
    "softplus": "max(x, 0.0) + log2(1.0 + exp2(abs(x) * -1.4426950408889634)) * 0.6931471805599453",
    "relu": "max(x, 0.0)",
    "clamp": "min(max(x, y), z)",
    "fma": "x * y + z",
    "maximum": "max(x, y)",
    "minimum": "min(x, y)",
}
_SAME = {"clip": "clamp", "fmax": "maximum", "fmin": "minimum", "swish": "silu", "ln": "log"}
_AS_TENSOR = ("lgamma", "digamma", "erfinv", "i0")
_MODULES = ("math", "torch", "np", "numpy", "tl")


def describe_composition(name: str) -> str | None:
    """Describe what to write for a well-known function of this name; None if it is not one."""
    canonical = _SAME.get(name, name)
    if canonical in COMPOSITIONS:
        return f"write `{COMPOSITIONS[canonical]}`"
    if name in _MODULES:
        return "there are no modules: a primitive is called by its name alone"
    return f"nothing computes {name} in a kernel: give its values as a tensor parameter" if name in _AS_TENSOR else None


def find_hint(name: str, candidates: Iterable[str], otherwise: str | None = None) -> str | None:
    """Return a hint for a name that is not known."""
    close = difflib.get_close_matches(name, list(candidates), 1, 0.7)
    return describe_composition(name) or (f"did you mean `{close[0]}`?" if close else otherwise)
