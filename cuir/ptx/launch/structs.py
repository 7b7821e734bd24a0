"""Structs as arguments of a launch: their bytes, and tensors that words of them point into."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from ...text.diagnostics import CuirError
from .tensor_maps import TensorMap

WORD = 8  # bytes of an address


@dataclass(frozen=True)
class Struct:
    """A struct that a kernel takes by value.

    Attributes:
        data: Its bytes; a word that points into a tensor holds the offset there.
        pointers: Offsets of such words, each with its tensor.
    """

    data: bytes
    pointers: tuple[tuple[int, torch.Tensor], ...] = ()

    def fill(self, addresses: Iterator[int]) -> bytes:
        """Return the bytes with the addresses of the tensors, in their order, in place."""
        data = bytearray(self.data)
        for offset, _ in self.pointers:
            if not 0 <= offset <= len(data) - WORD:
                raise CuirError.of("U401", f"a struct of {len(data)} bytes has no pointer at {offset}")
            inner = int.from_bytes(data[offset : offset + WORD], "little")
            data[offset : offset + WORD] = (next(addresses) + inner).to_bytes(WORD, "little")
        return bytes(data)


PlainArgument = torch.Tensor | TensorMap | int | float | bool | bytes | None
Argument = PlainArgument | Struct


def list_inner_tensors(arguments: Sequence[Argument]) -> list[torch.Tensor]:
    """Return the tensors that structs among the arguments point to."""
    return [tensor for a in arguments if isinstance(a, Struct) for _, tensor in a.pointers]


def fill_structs(arguments: Sequence[Argument], addresses: Sequence[int]) -> list[PlainArgument]:
    """Return the arguments with structs as bytes; addresses: of the tensors that they point to."""
    left = iter(addresses)
    return [a.fill(left) if isinstance(a, Struct) else a for a in arguments]
