"""What a rule of attention is here: its mods for a problem of a given size, in plain PyTorch. Owns no rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

Mod = Callable[..., Any]


@dataclass(frozen=True)
class Size:
    """Of a problem: as many keys as queries, unless a rule says otherwise. `length` is a power of 4, at least 256: rules lay it out as squares and boxes."""

    batch: int
    heads: int
    length: int
    device: str = "cpu"

    @property
    def side(self) -> int:
        """Of the square that the positions fill row by row."""
        return 1 << (self.length.bit_length() - 1) // 2

    @property
    def box(self) -> tuple[int, int, int]:
        """Frames, rows and columns of the box that the positions fill."""
        bits = self.length.bit_length() - 1
        across = 1 << (bits + 1) // 3
        return self.length // (across * across), across, across

    def generator(self, seed: int) -> torch.Generator:
        """On the CPU, so that every machine draws the same data."""
        return torch.Generator().manual_seed(seed)

    def drawn(self, seed: int, most: int, *shape: int) -> torch.Tensor:
        """Integers below `most`, i32."""
        return torch.randint(most, shape, generator=self.generator(seed), dtype=torch.int32).to(self.device)

    def normal(self, seed: int, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self.generator(seed)).to(self.device)


@dataclass(frozen=True)
class Mods:
    """`mask_mod(b, h, q_idx, kv_idx)`, `score_mod(score, b, h, q_idx, kv_idx)`, or None."""

    mask_mod: Mod | None = None
    score_mod: Mod | None = None


@dataclass(frozen=True)
class Rule:
    """A name, what kind of rule it is, and its mods for a size."""

    name: str
    kind: str
    mods: Callable[[Size], Mods]


def mask(mod: Mod) -> Mods:
    return Mods(mask_mod=mod)


def score(mod: Mod) -> Mods:
    return Mods(score_mod=mod)
