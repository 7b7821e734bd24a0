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
COUNTERPARTS = {  # names of Triton, PyTorch and CUDA that no expression of x replaces
    "sum": "`row_sum(x)` gives [R, 1], `col_sum(x)` gives [1, C]",
    "mean": "`row_sum(x) / n` of rows with n elements",
    "amax": "`row_max(x)` gives [R, 1], `col_max(x)` gives [1, C]",
    "amin": "`-row_max(-x)` gives [R, 1], `-col_max(-x)` gives [1, C]",
    "dot": "`mma(a, b, acc)`, or `mma_async` with `mma_wait`",
    "wgmma": "`mma_async(a, b, acc)`, then `mma_wait(acc)`",
    "arange": "`rows(n)` is [n, 1], `cols(n)` is [1, n]",
    "program_id": "`work = tiles(n)` before the roles, and `for t in work` in each",
    "zeros_like": "`zeros(dtype, [rows, cols])`",
    "atomic_add": "`store(place, x, add=True)`",
    "to": "`cast(x, dtype)`",
    "trans": "`store(s, x)` into shared memory, then `load(s.T)`",
    "syncthreads": "`sync()` for a role, or a `named_barrier(n)`",
    "make_tensor_descriptor": "`copy_async(box, shared, bar)` makes its tensor map itself",
    "make_block_ptr": "a view, `X[i : i + 64, :]`, which `load` and `copy_async` take",
    "fence_proxy_async": "`fence_async()`",
    "softmax": "`row_max`, `exp2` and `row_sum`: docs/tutorials/tables.md",
}
_SAME = {
    "clip": "clamp",
    "fmax": "maximum",
    "fmin": "minimum",
    "swish": "silu",
    "ln": "log",
    "matmul": "dot",
    "float": "to",
    "half": "to",
    "__syncthreads": "syncthreads",
    "transpose": "trans",
}
_AS_TENSOR = ("lgamma", "digamma", "erfinv", "i0")
_MODULES = ("math", "torch", "np", "numpy", "tl")


def describe_composition(name: str) -> str | None:
    """Describe what to write for a well-known function of this name; None if it is not one."""
    canonical = _SAME.get(name, name)
    if canonical in COMPOSITIONS:
        return f"write `{COMPOSITIONS[canonical]}`"
    if canonical in COUNTERPARTS:
        return COUNTERPARTS[canonical]
    if name in _MODULES:
        return "there are no modules: a primitive is called by its name alone"
    return f"nothing computes {name} in a kernel: give its values as a tensor parameter" if name in _AS_TENSOR else None


def find_hint(name: str, candidates: Iterable[str], otherwise: str | None = None) -> str | None:
    """Return a hint for a name that is not known."""
    close = difflib.get_close_matches(name, list(candidates), 1, 0.7)
    return describe_composition(name) or (f"did you mean `{close[0]}`?" if close else otherwise)
