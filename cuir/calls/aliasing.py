"""Which arguments of a call lie in the same memory: a tensor that a kernel writes shares none. Owns that one rule, on addresses alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ..checking.checked import TensorParam
from ..text.diagnostics import CuirError


@dataclass(frozen=True)
class Place:
    """Where a tensor lies. address: of its first element, in bytes; strides: in elements."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int

    @classmethod
    def of(cls, t: torch.Tensor) -> Place:
        return cls(t.data_ptr(), tuple(t.shape), t.stride(), t.element_size())

    @property
    def dims(self) -> list[tuple[int, int]]:
        """Strides in bytes and lengths of the dims that have more than one element, the smallest stride first."""
        return sorted((s * self.itemsize, n) for s, n in zip(self.strides, self.shape) if n > 1)

    @property
    def reach(self) -> int:
        """Bytes from the first element to behind the last."""
        return sum(s * (n - 1) for s, n in self.dims) + self.itemsize

    @property
    def end(self) -> int:
        """The address behind the last byte."""
        return self.address + self.reach

    def runs(self) -> tuple[np.ndarray, int]:
        """The elements as runs of bytes: where they start, ascending, and how long each is."""
        dims, length = self.dims, self.itemsize
        while dims and dims[0][0] == length:
            length *= dims.pop(0)[1]
        starts = np.array([self.address], dtype=np.int64)
        for stride, n in reversed(dims):
            starts = (starts[:, None] + np.arange(n, dtype=np.int64) * stride).reshape(-1)
        return np.sort(starts), length

    def twice(self) -> bool:
        """Do two elements share a byte?"""
        extent = self.itemsize
        for stride, n in self.dims:
            if stride < extent:
                break
            extent += stride * (n - 1)
        else:
            return False
        starts, length = self.runs()
        return bool((np.diff(starts) < length).any())

    def meets(self, other: Place) -> bool:
        """Do two tensors share a byte?"""
        if 0 in self.shape or 0 in other.shape or self.end <= other.address or other.end <= self.address:
            return False
        (mine, length), (theirs, size) = self.runs(), other.runs()
        return bool((np.searchsorted(theirs, mine + length) > np.searchsorted(theirs, mine - size, side="right")).any())


def refuse_shared_memory(tensors: Iterable[TensorParam], places: Mapping[str, Place]) -> None:
    """Raises CuirError U419 if a tensor that the kernel writes shares memory with another argument, or two of its elements do."""
    ends = [(t, p, p.address, p.end) for t in tensors if 0 not in (p := places[t.name]).shape]
    for t, place, begin, end in ends:
        if not t.written:
            continue
        if place.twice():
            raise CuirError.of("U419", f"`{t.name}` is written, and several of its elements lie in one place of memory: strides {list(place.strides)} of shape {list(place.shape)}",
                               t.span, f"{t.name}.contiguous(), or a new tensor, in place of an expanded one")  # fmt: skip
        for other, there, first, last in ends:
            if other is not t and first < end and begin < last and place.meets(there):
                raise CuirError.of("U419", f"`{t.name}` is written, and shares memory with `{other.name}`: nothing orders the accesses of the two", t.span,
                                   f"{t.name} in memory of its own; a kernel that works in place takes one tensor and reads and writes that")  # fmt: skip


def apart(reaches: Sequence[tuple[int, bool]], addresses: Sequence[int]) -> bool:
    """Does no tensor that is written begin or end inside of another's reach? Where it does, `refuse_shared_memory` says whether they share a byte: a look at numbers alone, for
    launches of tensors that lie as those of a checked one.

    reaches: of each tensor the bytes from its first element to behind its last, 0 without elements, and whether it is written; addresses: of their first elements.
    """
    for i, (reach, written) in enumerate(reaches):
        if written and reach:
            begin = addresses[i]
            end = begin + reach
            for j, (other, _) in enumerate(reaches):
                if j != i and other and addresses[j] < end and begin < addresses[j] + other:
                    return False
    return True
