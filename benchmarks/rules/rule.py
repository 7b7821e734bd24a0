"""Rule of attention: its mods for a problem of a given size, in plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

Mod = Callable[..., Any]


@dataclass(frozen=True)
class Size:
    """Size of a problem: as many keys as queries.

    `length` is a power of 4, at least 256: rules lay it out as squares and boxes.
    """

    batch: int
    heads: int
    length: int
    device: str = "cpu"

    @property
    def side(self) -> int:
        """Side of the square that the positions fill row by row."""
        return 1 << (self.length.bit_length() - 1) // 2

    @property
    def box(self) -> tuple[int, int, int]:
        """Frames, rows and columns of the box that the positions fill."""
        bits = self.length.bit_length() - 1
        across = 1 << (bits + 1) // 3
        return self.length // (across * across), across, across

    def generator(self, seed: int) -> torch.Generator:
        """Return a generator on the CPU, so that every machine draws the same data."""
        return torch.Generator().manual_seed(seed)

    def draw(self, seed: int, most: int, *shape: int) -> torch.Tensor:
        """Return random integers below `most`, i32."""
        return torch.randint(most, shape, generator=self.generator(seed), dtype=torch.int32).to(self.device)

    def normal(self, seed: int, *shape: int) -> torch.Tensor:
        """Return normal floats."""
        return torch.randn(shape, generator=self.generator(seed)).to(self.device)


@dataclass(frozen=True)
class Mods:
    """Mods `mask_mod(b, h, q_idx, kv_idx)`, `score_mod(score, b, h, q_idx, kv_idx)`, or None."""

    mask_mod: Mod | None = None
    score_mod: Mod | None = None


@dataclass(frozen=True)
class Rule:
    """Rule: a name, its kind, and its mods for a size."""

    name: str
    kind: str
    mods: Callable[[Size], Mods]


def mask(mod: Mod) -> Mods:
    """Return mods with a mask."""
    return Mods(mask_mod=mod)


def score(mod: Mod) -> Mods:
    """Return mods with a score rule."""
    return Mods(score_mod=mod)
