"""The aliasing rule of a call's arguments: a tensor that a kernel writes shares no memory.

Works on addresses alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ..checking.checked import TensorParam
from ..text.diagnostics import CuirError


@dataclass(frozen=True)
class Place:
    """The memory of a tensor.

    address: of its first element, in bytes; strides: in elements.
    """

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int

    @classmethod
    def of(cls, t: torch.Tensor) -> Place:
        return cls(t.data_ptr(), tuple(t.shape), t.stride(), t.element_size())

    @property
    def dims(self) -> list[tuple[int, int]]:
        """Strides in bytes and lengths of the dims with more than one element, the smallest stride first."""
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
        """Return the elements as runs of bytes: their starts, ascending, and the length of each."""
        dims, length = self.dims, self.itemsize
        while dims and dims[0][0] == length:
            length *= dims.pop(0)[1]
        starts = np.array([self.address], dtype=np.int64)
        for stride, n in reversed(dims):
            starts = (starts[:, None] + np.arange(n, dtype=np.int64) * stride).reshape(-1)
        return np.sort(starts), length

    def overlaps_itself(self) -> bool:
        """Return whether two elements share a byte."""
        extent = self.itemsize
        for stride, n in self.dims:
            if stride < extent:
                break
            extent += stride * (n - 1)
        else:
            return False
        starts, length = self.runs()
        return bool((np.diff(starts) < length).any())

    def overlaps(self, second: Place) -> bool:
        """Return whether two tensors share a byte."""
        if 0 in self.shape or 0 in second.shape or self.end <= second.address or second.end <= self.address:
            return False
        (starts, length), (second_starts, size) = self.runs(), second.runs()
        return bool((np.searchsorted(second_starts, starts + length) > np.searchsorted(second_starts, starts - size, side="right")).any())


def refuse_shared_memory(tensors: Iterable[TensorParam], places: Mapping[str, Place]) -> None:
    """Check that a written tensor shares memory with no other argument, nor two of its elements.

    Raises CuirError U419.
    """
    ends = [(t, p, p.address, p.end) for t in tensors if 0 not in (p := places[t.name]).shape]
    for t, place, begin, end in ends:
        if not t.written:
            continue
        if place.overlaps_itself():
            raise CuirError.of(
                "U419",
                f"`{t.name}` is written, and several of its elements lie in one place of memory: strides {list(place.strides)} of shape {list(place.shape)}",
                t.span,
                f"{t.name}.contiguous(), or a new tensor, in place of an expanded one",
            )
        for other_tensor, other_place, first, last in ends:
            if other_tensor is not t and first < end and begin < last and place.overlaps(other_place):
                raise CuirError.of(
                    "U419",
                    f"`{t.name}` is written, and shares memory with `{other_tensor.name}`: nothing orders the accesses of the two",
                    t.span,
                    f"{t.name} in memory of its own; a kernel that works in place takes one tensor and reads and writes that",
                )


def are_disjoint(reaches: Sequence[tuple[int, bool]], addresses: Sequence[int]) -> bool:
    """Return whether no written tensor begins or ends inside of another's reach.

    Where one does, `refuse_shared_memory` decides whether they share a byte. Compares numbers alone, for launches of
    tensors with the layout of those of a checked one.

    reaches: of each tensor the bytes from its first element to behind its last, 0 without elements, and whether it is
    written; addresses: of their first elements.
    """
    for i, (reach, written) in enumerate(reaches):
        if written and reach:
            begin = addresses[i]
            end = begin + reach
            for j, (other_reach, _) in enumerate(reaches):
                if j != i and other_reach and addresses[j] < end and begin < addresses[j] + other_reach:
                    return False
    return True
