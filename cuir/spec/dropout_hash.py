"""Dropout of attention weights: a counter-based hash selects the retained pairs.

It is made of PyTorch operations on 64-bit integers. The kernels' own text of the same function is in
`cuir/attn/splicing/dropout_splice.py`; verification compares the two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from ..text.diagnostics import CuirError

WORDS = 2  # of 32 bits, in a seed
_BITS = 0xFFFFFFFF
_HALF = 1 << 31
# Odd factors of the head, the query and the key. Those of query and key give each pair of a window of 51,000 x 51,000
# another counter.
_HEADS = (0x9E3779B1, 0x85EBCA77)
_QUERIES = (0x27D4EB2F, 0xC2B2AE3D)
_KEYS = 0x9E3779B1
_MIXERS = (0x7FEB352D, 0x846CA68B)


def seed_of_lengths(lengths: object) -> torch.Tensor:
    """Compute a seed from the lengths of a problem, so that verification tries many."""
    B, H, HK, M, N = (getattr(lengths, name) for name in ("B", "H", "HK", "M", "N"))
    words = torch.tensor([B + 7919 * M + 104729 * N, H + 131 * HK + 65537 * M], dtype=torch.int64)
    return _to_signed(_scramble(words)).to(torch.int32)


@dataclass(frozen=True)
class Dropout:
    """Dropout of attention weights, after the softmax.

    p: the probability that a weight becomes 0; the others are divided by 1 - p. seed: two words, int32 [2], or a
    function `Lengths -> seed`.
    """

    p: float = 0.25
    seed: torch.Tensor | Callable[..., torch.Tensor] = field(default=seed_of_lengths, compare=False)

    def __post_init__(self) -> None:
        _check("X103", self.p, self.seed if isinstance(self.seed, torch.Tensor) else None)

    def seed_for(self, lengths: object) -> torch.Tensor:
        """Return the seed of a problem of these lengths."""
        return self.seed if isinstance(self.seed, torch.Tensor) else self.seed(lengths)

    def apply(self, weights: torch.Tensor, lengths: object) -> torch.Tensor:
        """Drop and rescale weights [B, H, M, N]."""
        mask = dropout_mask(self.seed_for(lengths).to(weights.device), self.p, *weights.shape)
        return torch.where(mask, weights * factor_of(self.p), 0.0)


def threshold_of(p: float) -> int:
    """Compute the i32 threshold below which a hash retains its pair.

    p: the dropout probability, from 0 to 1, rounded to a multiple of 2^-32.
    """
    return min(round((1.0 - p) * (1 << 32)), _BITS) - _HALF


def factor_of(p: float) -> float:
    """Compute the factor of retained weights; 0 where none is retained."""
    return 1.0 / (1.0 - p) if p < 1.0 else 0.0


def draw_dropout_seed(device: torch.device | str) -> torch.Tensor:
    """Draw a seed, int32 [2], from the default generator of a device, as PyTorch's random functions do.

    Nothing waits for the device.
    """
    return torch.randint(-_HALF, _HALF, (WORDS,), dtype=torch.int32, device=device)


def dropout_mask(seed: torch.Tensor, p: float, B: int, H: int, M: int, N: int, *, query_start: int = 0, key_start: int = 0) -> torch.Tensor:
    """Compute the attention weights that a call with this seed retains: bool [B, H, M, N].

    The mask is on the seed's device.

    query_start, key_start: the first query and key, to compute a window of a larger mask.

    Raises:
        CuirError: U413, an invalid probability or seed.
    """
    _check("U413", p, seed)
    b, h, q, k = (torch.arange(n, device=seed.device).view([-1 if i == d else 1 for i in range(4)]) for d, n in enumerate((B, H, M, N)))
    q, k, (low, high) = q + query_start, k + key_start, seed.long().unbind()
    head = b * H + h
    counter = _scramble(_scramble(low + head * _HEADS[0]) ^ (high & _BITS)) + q * _QUERIES[0] + k * _KEYS
    tweak = _scramble(_scramble(high + head * _HEADS[1]) ^ (low & _BITS)) + q * _QUERIES[1]
    hashed = _hash(counter, tweak & _BITS)
    return _to_signed(hashed) < threshold_of(p)


def _check(code: str, p: object, seed: object) -> None:
    """Raise CuirError for an invalid probability or seed."""
    if not isinstance(p, (int, float)) or isinstance(p, bool) or not 0.0 <= p <= 1.0:
        raise CuirError.of(code, f"the probability of dropout is a number from 0 to 1, found {p!r}")
    if seed is None and code == "X103":  # a function of the lengths
        return
    if not isinstance(seed, torch.Tensor) or seed.dtype != torch.int32 or seed.shape != (WORDS,):
        description = f"{str(seed.dtype).removeprefix('torch.')} {list(seed.shape)}" if isinstance(seed, torch.Tensor) else repr(seed)
        raise CuirError.of(
            code, f"a seed of dropout is a tensor int32 [{WORDS}], found {description}", hint="cuir.draw_dropout_seed(device)"
        )


def _hash(counter: torch.Tensor, tweak: torch.Tensor | int = 0) -> torch.Tensor:
    """Mix 32-bit words by two multiplications; the tweak enters between them."""
    x = counter & _BITS
    x = (x ^ (x >> 16)) * _MIXERS[0] & _BITS
    return (x ^ (x >> 15) ^ tweak) * _MIXERS[1] & _BITS


def _scramble(words: torch.Tensor) -> torch.Tensor:
    """Permute 32-bit words so that each bit depends on all."""
    x = _hash(words)
    return x ^ (x >> 16)


def _to_signed(words: torch.Tensor) -> torch.Tensor:
    """Convert 32-bit words to two's complement."""
    return words - ((words & _HALF) << 1)


__all__ = ["WORDS", "Dropout", "draw_dropout_seed", "dropout_mask", "factor_of", "seed_of_lengths", "threshold_of"]
