"""Registers and operands: how the values of an operand are read for a group of threads, and how results are kept.

A register is an unsigned vector of its type's bits, or a vector of bools.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..isa.instruction_table import DTYPES, UnknownForm, get_width
from ..module import Address, FloatNumber, Operand
from .groups import Group

Array = np.ndarray
Fetch = Callable[[Group], Array]
Store = Callable[[Group, Array], None]
SPECIAL = re.compile(  # the special registers that the machine has
    r"%n?(?:cta|t)id\.[xyz]|%laneid|%n?warpid|%n?smid|%gridid|%lanemask_(?:eq|lt|le|gt|ge)|%clock(?:64|_hi)?|%globaltimer(?:_lo|_hi)?"
    r"|%(?:dynamic|total)_smem_size|%cluster_n?ctaid\.[xyz]|%n?clusterid\.[xyz]|%cluster_n?ctarank|%is_explicit_cluster|WARP_SZ"
)
STORAGE = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


@dataclass
class RegisterFile:
    """Registers of all functions of a program, numbered.

    Attributes:
        numbers: Number of a register, by function and name.
        types: Storage of each register.
    """

    numbers: dict[tuple[str, str], int] = field(default_factory=dict)
    types: list[type[np.generic]] = field(default_factory=list)

    def add(self, function: str, name: str, type_name: str) -> None:
        self.numbers[function, name] = len(self.types)
        self.types.append(np.bool_ if type_name == "pred" else STORAGE[get_width(type_name) // 8])


@dataclass
class Reader:
    """Reader of the operands of one function; it notes which registers an instruction reads and writes.

    Attributes:
        symbols: Addresses of variables and functions.
        named: Those that an instruction names.
    """

    function: str
    file: RegisterFile
    symbols: dict[str, int]
    reads: set[int] = field(default_factory=set)
    writes: set[int] = field(default_factory=set)
    named: set[str] = field(default_factory=set)

    def find_register(self, name: str) -> int | None:
        return self.file.numbers.get((self.function, name))

    def fits(self, register: int, dtype: np.dtype) -> bool:
        """Return whether a register's values are those of a type, bit by bit."""
        stored = np.dtype(self.file.types[register])
        return stored.itemsize == dtype.itemsize and (stored == np.bool_) == (dtype == np.bool_)

    def fetch(self, operand: Operand, type_name: str) -> Fetch:
        """Return a function that reads an operand as a type. Raises UnknownForm."""
        dtype = np.dtype(DTYPES[type_name])
        if isinstance(operand, (int, FloatNumber)):
            constant = make_constant(operand, type_name)
            return lambda g: constant
        if isinstance(operand, str):
            if operand.startswith("!"):
                inner = self.fetch(operand[1:], "pred")
                return lambda g: ~inner(g)
            i = self.find_register(operand)
            if i is not None:
                self.reads.add(i)
                stored = np.dtype(self.file.types[i])
                if stored == dtype:
                    return lambda g: g.regs[i]
                if stored.itemsize == dtype.itemsize and stored != np.bool_ and dtype != np.bool_:
                    return lambda g: g.regs[i].view(dtype)
                if stored.itemsize > dtype.itemsize and dtype != np.bool_:
                    part = np.dtype(f"u{dtype.itemsize}")
                    return lambda g: g.regs[i].astype(part).view(dtype)
                raise UnknownForm(f"the register `{operand}` as .{type_name}")
            if operand in self.symbols:
                self.named.add(operand)
                address = np.array(self.symbols[operand], np.uint64).astype(f"u{dtype.itemsize}").view(dtype)
                return lambda g: address
            if SPECIAL.fullmatch(operand):
                return lambda g: g.read_special(operand).astype(dtype)
        raise UnknownForm(f"the operand `{operand}`")

    def fetch_address(self, operand: Operand) -> Fetch:
        """Return a function that computes an address, as i64."""
        if not isinstance(operand, Address):
            raise UnknownForm(f"the address `{operand}`")
        offset = operand.offset
        if isinstance(operand.base, int):
            fixed = np.array(operand.base + offset, np.int64)
            return lambda g: fixed
        i = self.find_register(operand.base)
        if i is None:
            if operand.base not in self.symbols:
                raise UnknownForm(f"the address of `{operand.base}`")
            self.named.add(operand.base)
            symbol = np.array(self.symbols[operand.base] + offset, np.int64)
            return lambda g: symbol
        self.reads.add(i)
        if np.dtype(self.file.types[i]).itemsize == 8:
            return (lambda g: g.regs[i].view(np.int64) + offset) if offset else (lambda g: g.regs[i].view(np.int64))
        return lambda g: g.regs[i].astype(np.int64) + offset

    def store(self, operand: Operand, type_name: str) -> Store:
        """Return a function that keeps a result of a type in a register."""
        if operand == "_":
            return lambda g, v: None
        i = self.find_register(operand) if isinstance(operand, str) else None
        if i is None:
            raise UnknownForm(f"the destination `{operand}`")
        self.writes.add(i)
        stored, dtype = np.dtype(self.file.types[i]), np.dtype(DTYPES[type_name])
        if stored == dtype:
            return lambda g, v: g.keep(i, v)
        if stored.itemsize == dtype.itemsize:
            return lambda g, v: g.keep(i, v.view(stored))
        if stored.itemsize > dtype.itemsize and stored != np.bool_:
            wide = np.dtype(f"{'i' if type_name[0] == 's' else 'u'}{stored.itemsize}")
            narrow = np.dtype(f"{'i' if type_name[0] == 's' else 'u'}{dtype.itemsize}")
            return lambda g, v: g.keep(i, v.view(narrow).astype(wide).view(stored))
        raise UnknownForm(f"the register `{operand}` as .{type_name}")


def make_constant(operand: int | FloatNumber, type_name: str) -> Array:
    """Return a number as a type."""
    dtype = np.dtype(DTYPES[type_name])
    if dtype == np.bool_:
        return np.array(bool(operand))
    if isinstance(operand, int):
        if dtype.kind == "f":
            return np.array(operand, dtype)
        return np.array(operand % (1 << 8 * dtype.itemsize), f"u{dtype.itemsize}").view(dtype)
    if operand.width == 8 * dtype.itemsize:
        return np.array(operand.bits, f"u{dtype.itemsize}").view(dtype)
    value = struct.unpack("<d" if operand.width == 64 else "<f", operand.bits.to_bytes(operand.width // 8, "little"))[0]
    if dtype.kind != "f":
        raise UnknownForm(f"a floating-point number as .{type_name}")
    return np.array(value, dtype)


def list_parts(operand: Operand) -> Sequence[Operand]:
    """Return the elements of a vector operand, or the operand alone."""
    return operand if isinstance(operand, tuple) else (operand,)
