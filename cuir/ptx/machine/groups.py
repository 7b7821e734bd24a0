"""A group: threads that stand at the same place and run a block together, with their registers as vectors."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray


def find_slice(slots: Array) -> slice | Array:
    """Return increasing numbers as a slice if they follow one another: NumPy is faster by that."""
    first, last = int(slots[0]), int(slots[-1])
    return slice(first, last + 1) if last - first == len(slots) - 1 else slots


def list_distinct(numbers: Array) -> list[int]:
    """Return each of the numbers of a list in order; of others some may come again."""
    return [*numbers[:1].tolist(), *numbers[1:][numbers[1:] != numbers[:-1]].tolist()]


class PartRegisters(dict[int, Array]):
    """Registers of some threads, which are copied from those of all when they are first read."""

    __slots__ = ("part", "whole")

    def __init__(self, whole: list[Array], slots: Array):
        self.whole, self.part = whole, find_slice(slots)

    def __missing__(self, register: int) -> Array:
        value = self[register] = self.whole[register][self.part].copy()
        return value

    def peek(self, register: int) -> Array:
        """Return the values of a register, to be read once."""
        value = self.get(register)
        return self.whole[register][self.part] if value is None else value


class Group:
    """Threads that run together.

    Attributes:
        slots: Their numbers among the threads of the machine, increasing.
        regs: Registers by number, a vector of the group's length each.
    """

    __slots__ = ("_ctas", "_warps", "machine", "n", "regs", "slots")

    def __init__(self, machine: Any, slots: Array, regs: Any):  # the Machine, whose module imports this one
        self.machine, self.slots, self.n = machine, slots, len(slots)
        self.regs: dict[int, Array] = regs  # or a list: all that is done with it is indexing
        self._ctas: Array | None = None
        self._warps: tuple[int, Array | None] | None = None

    @property
    def ctas(self) -> Array:
        """The CTA of each thread, counted among those of the machine."""
        if self._ctas is None:
            self._ctas = self.slots // self.machine.width
        return self._ctas

    def keep(self, register: int, values: Array) -> None:
        """Set a register."""
        self.regs[register] = values if values.ndim else np.full(self.n, values)

    def read_special(self, name: str) -> Array:
        """Return the values of a special register."""
        return self.machine.read_special(name, self.slots)

    def spread(self, values: Array) -> Array:
        """Return values in full vectors, one for each thread."""
        return values if values.ndim else np.full(self.n, values)

    def take(self, chosen: Array) -> Group:
        """Return the group of some of the threads, without registers."""
        return Group(self.machine, self.slots[chosen], {})

    # ---- warps
    def find_places_in_warps(self) -> tuple[int, Array | None]:
        """Return the number of warps, and where each thread lies in an array [warps * 32]; None if the warps are whole."""
        if self._warps is None:
            self._warps = self._find_places()
        return self._warps

    def _find_places(self) -> tuple[int, Array | None]:
        """Find the warps of the group."""
        if self.n % 32 == 0 and self.slots[0] % 32 == 0 and self.slots[-1] - self.slots[0] == self.n - 1:
            return self.n // 32, None
        warps, index = np.unique(self.slots >> 5, return_inverse=True)
        if len(warps) * 32 == self.n:
            return len(warps), None
        return len(warps), index * 32 + (self.slots & 31)

    def as_warps(self, values: Array) -> Array:
        """Return values as [warps, 32], 0 for lanes that are not in the group."""
        count, places = self.find_places_in_warps()
        values = self.spread(values)
        if places is None:
            return values.reshape(-1, 32)
        full = np.zeros(count * 32, values.dtype)
        full[places] = values
        return full.reshape(-1, 32)

    def of_warps(self, values: Array) -> Array:
        """Return the values of the group's lanes in an array [warps, 32]."""
        _, places = self.find_places_in_warps()
        flat = values.reshape(-1)
        return flat if places is None else flat[places]
