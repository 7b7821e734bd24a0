"""Loads, stores, atomics and asynchronous copies: what they access, how strongly, and what an atomic computes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .float_formats import add_to_odd, decode, encode, flush, is_float
from .floats import keep_payload, make_nan_canonical
from .instruction_table import Array, Opcode, UnknownForm, get_width

SPACES = ("global", "shared", "local", "const", "param")
SCOPES = ("cta", "cluster", "gpu", "sys")
# Hints on caches and priorities change no value; `weak` is the default.
HINTS = [
    "weak",
    "ca",
    "cg",
    "cs",
    "lu",
    "cv",
    "wb",
    "wt",
    "nc",
    "uni",
    "L1__evict_normal",
    "L1__evict_unchanged",
    "L1__evict_first",
    "L1__evict_last",
    "L1__no_allocate",
    "L2__evict_last",
    "L2__evict_normal",
    "L2__evict_first",
    "L2__cache_hint",
    "L2__64B",
    "L2__128B",
    "L2__256B",
]
STRONG = ("volatile", "relaxed", "acquire", "release", "acq_rel", "mmio")


@dataclass(frozen=True)
class MemoryAccess:
    """What an instruction does to memory.

    Attributes:
        mode: "read", "write" or "atomic".
        space: State space; "" for a generic address.
        type: Type of an element.
        count: Elements of a vector.
        strong: Whether it may meet another strong access without order.
        acquires, releases: Whether it orders accesses behind, before it.
        scope: Widest threads among which it is strong.
    """

    mode: str
    space: str
    type: str
    count: int
    strong: bool
    acquires: bool
    releases: bool
    scope: str

    @property
    def element(self) -> int:
        """Bytes of an element."""
        return get_width(self.type) // 8


def read_access(op: Opcode, mode: str) -> MemoryAccess:
    """Return what a load or store accesses."""
    spaces = {"shared__cta": "shared", "shared__cluster": "shared", "param__entry": "param", "param__func": "param"}
    known = (*SPACES, *spaces, *SCOPES, *HINTS, *STRONG, "v2", "v4", "v8", "unified")
    op.allow(*known)
    space = op.pick(*SPACES, *spaces)
    return MemoryAccess(
        mode,
        spaces.get(space, space),
        op.type,
        int(op.pick("v2", "v4", "v8", default="v1")[1:]),
        op.has(*STRONG),
        op.has("acquire"),
        op.has("release"),
        op.pick(*SCOPES, default="sys"),
    )


ATOMICS = ("add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec")


def read_atomic(op: Opcode) -> MemoryAccess:
    """Return what an atomic or a reduction accesses."""
    op.allow(*ATOMICS, *SPACES, "shared__cta", "shared__cluster", *SCOPES, *HINTS, *STRONG, "noftz", "v2", "v4", "v8")
    semantics = op.pick("acquire", "release", "acq_rel", default="relaxed")
    return MemoryAccess(
        "atomic",
        "shared" if op.has("shared", "shared__cta", "shared__cluster") else op.pick("global"),
        op.type,
        int(op.pick("v2", "v4", "v8", default="v1")[1:]),
        True,
        semantics in ("acquire", "acq_rel"),
        semantics in ("release", "acq_rel"),
        op.pick(*SCOPES, default="gpu"),
    )


def find_atomic(op: Opcode, memory: str = "") -> Callable[[Array, Array, Array | None], Array]:
    """Return what an atomic stores, of the old value, its operand, and for `cas` the new value.

    memory: That of the old value, "" for what an engine combines. In global memory sums of f32 are flushed; in shared
        memory a NaN of f64 that was there stays.
    """
    name, t = op.pick(*ATOMICS), op.type
    functions: dict[str, Callable[[Array, Array, Array | None], Array]] = {
        "and": lambda old, b, _: old & b,
        "or": lambda old, b, _: old | b,
        "xor": lambda old, b, _: old ^ b,
        "exch": lambda old, b, _: b,
        "cas": lambda old, b, c: np.where(old == b, c if c is not None else b, old),
        "inc": lambda old, b, _: np.where(old >= b, old.dtype.type(0), old + old.dtype.type(1)),
        "dec": lambda old, b, _: np.where((old == 0) | (old > b), b, old - old.dtype.type(1)),
    }
    if name in functions:
        return functions[name]
    if not is_float(t):
        return {"add": lambda old, b, _: old + b, "min": lambda old, b, _: np.minimum(old, b), "max": lambda old, b, _: np.maximum(old, b)}[
            name
        ]
    if t == "f32" and name == "add":
        if memory == "global":
            return lambda old, b, _: flush(make_nan_canonical(flush(old) + flush(b)))
        return lambda old, b, _: make_nan_canonical(old + b)
    if t == "f64" and name == "add":
        add64 = keep_payload(np.add)
        return (lambda old, b, _: add64(b, old)) if memory == "shared" else (lambda old, b, _: add64(old, b))
    if name == "add":
        return lambda old, b, _: encode(add_to_odd(decode(old, t), decode(b, t)), t)
    if name in ("min", "max"):
        pick = np.fmin if name == "min" else np.fmax
        return lambda old, b, _: encode(pick(decode(old, t), decode(b, t)), t)
    raise UnknownForm(f"the operation of `{op.text}`")
