"""The table of instructions: how an opcode is split, and which function gives its meaning."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

Array = np.ndarray
# Types whose bits NumPy cannot hold as numbers (bf16, pairs) stay unsigned integers.
DTYPES: dict[str, type[np.generic]] = {
    "pred": np.bool_,
    **{f"{kind}{n}": getattr(np, f"{'int' if kind == 's' else 'uint'}{n}") for kind in "bus" for n in (8, 16, 32, 64)},
    **{"f16": np.float16, "f32": np.float32, "f64": np.float64},
    **{"bf16": np.uint16, "f16x2": np.uint32, "bf16x2": np.uint32, "tf32": np.uint32},
    **{"e4m3x2": np.uint16, "e5m2x2": np.uint16, "e4m3": np.uint8, "e5m2": np.uint8, "u16x2": np.uint32, "s16x2": np.uint32},
}


class UnknownForm(Exception):
    """An instruction, or a form of it, that has no meaning here."""


@dataclass(frozen=True)
class Opcode:
    """Opcode in parts: `cvt.rn.f16.f32` has the name cvt, the modifier rn, the types f16 and f32."""

    text: str
    name: str
    modifiers: tuple[str, ...]
    types: tuple[str, ...]

    @property
    def type(self) -> str:
        """The last type."""
        if not self.types:
            raise UnknownForm(f"`{self.text}` has no type")
        return self.types[-1]

    def has(self, *modifiers: str) -> bool:
        """Return whether one of the modifiers is there."""
        return any(m in self.modifiers for m in modifiers)

    def pick(self, *modifiers: str, default: str = "") -> str:
        """Return the modifier that is there, else the default."""
        return next((m for m in self.modifiers if m in modifiers), default)

    def allow(self, *modifiers: str) -> None:
        """Raise UnknownForm for another modifier than these."""
        for m in self.modifiers:
            if m not in modifiers:
                raise UnknownForm(f"`.{m}` of `{self.text}`")


@dataclass(frozen=True)
class Meaning:
    """What an instruction computes from its operands, lane by lane.

    Attributes:
        results: Types of the destinations.
        operands: Types of the sources.
        compute: Arrays of the operands to the array of the result, or a tuple of several.
        reads_carry, writes_carry: Whether the carry flag is a last operand, a last result.
    """

    results: tuple[str, ...]
    operands: tuple[str, ...]
    compute: Callable[..., Array | tuple[Array, ...]]
    reads_carry: bool = False
    writes_carry: bool = False


TABLE: dict[str, Callable[[Opcode], Meaning]] = {}
Maker = Callable[[Opcode], Meaning]


def instruction(*names: str) -> Callable[[Maker], Maker]:
    """Enter a function that reads the opcodes of these names."""

    def enter(maker: Maker) -> Maker:
        for name in names:
            if name in TABLE:
                raise ValueError(f"`{name}` is entered twice")
            TABLE[name] = maker
        return maker

    return enter


def split_opcode(text: str) -> Opcode:
    """Split an opcode at its dots."""
    name, *parts = text.replace("::", "__").split(".")
    types = tuple(p for p in parts if p in DTYPES)
    return Opcode(text, name, tuple(p for p in parts if p not in DTYPES), types)


def find_meaning(op: Opcode) -> Meaning:
    """Return the meaning of an instruction that computes lane by lane. Raises UnknownForm."""
    maker = TABLE.get(op.name)
    if maker is None:
        raise UnknownForm(f"the instruction `{op.text}`")
    return maker(op)


def compute(text: str, *operands: Array) -> Array | tuple[Array, ...]:
    """Compute an instruction on arrays of its operands' types."""
    meaning = find_meaning(split_opcode(text))
    with np.errstate(all="ignore"):
        return meaning.compute(*(np.asarray(x).astype(DTYPES[t], copy=False) for x, t in zip(operands, meaning.operands)))


def get_width(name: str) -> int:
    """Return the bits of a type's value."""
    return 8 * np.dtype(DTYPES[name]).itemsize
