"""Launches of an attention kernel that show in which order one query adds up its keys.

All scores are equal, so that O is the mean of the values. Each column of V is a probe, which reads one number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch

from ...arguments.binding import TORCH
from ...checking.checked import Checked
from ...interp import run
from ...syntax.types import BF16, F32
from ..tracing.splice_names import CACHE_LENGTHS

HEADS = 4  # key heads of a launch, each with probes of its own
OTHERS = 77  # keys of the shortest other sequence


class Surroundings(NamedTuple):
    """Surroundings of a query in a launch, which must not decide the order of its sums.

    Attributes:
        before, after: numbers of other sequences.
        earlier, later: queries of the same sequence before and behind it.
    """

    before: int = 0
    after: int = 0
    earlier: int = 0
    later: int = 0

    def __str__(self) -> str:
        if self == Surroundings():
            return "alone"
        batch = f"sequence {self.before} of {self.before + self.after + 1}" if self.before + self.after else ""
        queries = f"query {self.earlier} of {self.earlier + self.later + 1}" if self.earlier + self.later else ""
        return ", ".join(filter(None, (batch, queries)))


@dataclass(frozen=True)
class QueryProbes:
    """A kernel whose sums for one query are read.

    Attributes:
        keys: keys of the query, from 0 on.
    """

    checked: Checked
    keys: int

    @property
    def dims(self) -> tuple[int, int]:
        """Head dims of queries and of values."""
        D, DV = (self.checked.consts.get(n, 64) for n in ("D", "DV"))
        assert isinstance(D, int) and isinstance(DV, int)
        return D, DV

    @property
    def columns(self) -> int:
        """Probes of a launch."""
        return HEADS * self.dims[1]

    def read(self, values: torch.Tensor, around: Surroundings) -> torch.Tensor | None:
        """Return the sums of the columns of values [keys, columns], f64; None if the query has not these keys alone.

        Raises CuirError for a fault of the kernel.
        """
        D, DV = self.dims
        group = self.checked.consts.get("GROUP", 1)
        assert isinstance(group, int)
        names = {t.name for t in self.checked.tensors}
        M, N, B = around.earlier + around.later + 1, self.keys + around.later, around.before + around.after + 1
        dtype = TORCH[next(t.dtype for t in self.checked.tensors if t.name == "Q")]
        rows = torch.zeros(HEADS, N, DV, dtype=dtype)
        rows[:, : self.keys] = values.view(self.keys, HEADS, DV).transpose(0, 1).to(dtype)
        sizes = _Sizes(B, M, N, D, HEADS * group, around.before)
        make = _make_cached if CACHE_LENGTHS in names else _make_packed if "QSTART" in names else _make_dense
        arguments, place = make(self.checked, rows, sizes)
        run(self.checked, arguments)
        h = torch.arange(HEADS) * group
        o, lse = (cast(torch.Tensor, arguments[name])[place] for name in ("O", "LSE"))
        o, lse = o[:, around.earlier], lse[:, around.earlier]
        seen = lse[h].double().exp().round()
        return (o[h].double() * seen[:, None]).flatten() if bool((seen == self.keys).all()) else None


class _Sizes(NamedTuple):
    """Sequences, queries and keys of the probed one, head dim, query heads, and its place in the batch."""

    B: int
    M: int
    N: int
    D: int
    H: int
    place: int

    def lengths(self) -> list[int]:
        """Return the keys of each sequence; those of others have other numbers."""
        return [self.N if b == self.place else OTHERS + 64 * b for b in range(self.B)]


Place = int | tuple[slice, slice]
Arguments = dict[str, torch.Tensor | float | int]


def is_forward(checked: Checked) -> bool:
    """Return whether a kernel computes O and LSE of queries."""
    return {"Q", "O", "LSE"} <= {t.name for t in checked.tensors} and {"O", "LSE"} <= {t.name for t in checked.outputs}


def find_obstacle(checked: Checked) -> str:
    """Return why no launch shows the order of a kernel's sums; empty if launches do."""
    tensors = {t.name: t for t in checked.tensors if not t.scratch}
    cached, packed = CACHE_LENGTHS in tensors, "QSTART" in tensors
    known = {"Q", "K", "V", "O", "LSE", "KEYS", "VALUES", "PAGES", CACHE_LENGTHS, "ORDER", "QSTART", "QEND", "KSTART", "KEND"}
    if not is_forward(checked) or set(tensors) - known or {s.name for s in checked.scalars} - {"scale", "LONGEST"}:
        return "it is for the forward pass of an attention without captured values"
    if not all(t.dtype in (BF16, F32) for t in tensors.values() if t.name in ("Q", "K", "V", "KEYS", "VALUES")):
        return "it needs values of bfloat16 or float32"
    consts = checked.consts
    if consts.get("SPLITS", 1) != 1 or (packed and consts.get("CHUNK", 0)) or (cached and "VALUES" not in tensors):
        return "it is for kernels with a tensor of values, whose launch joins all shares"
    return ""


def _make_dense(checked: Checked, values: torch.Tensor, sizes: _Sizes) -> tuple[Arguments, Place]:
    B, M, N, D, H, place = sizes
    v = torch.ones(B, *values.shape, dtype=values.dtype)
    v[place] = values
    zeros = {"Q": torch.zeros(B, H, M, D, dtype=values.dtype), "K": torch.zeros(B, HEADS, N, D, dtype=values.dtype)}
    return {**zeros, "V": v, **_make_outputs(B, H, M, v), "scale": 1.0}, place


def _make_cached(checked: Checked, values: torch.Tensor, sizes: _Sizes) -> tuple[Arguments, Place]:
    B, M, N, D, H, place = sizes
    page = max(8, int(checked.consts["CHUNK"]))  # type: ignore[arg-type]
    lengths = sizes.lengths()
    pages = -(-max(lengths) // page)
    table = torch.randperm(B * pages, generator=torch.Generator().manual_seed(0)).view(B, pages).int()
    cache = torch.ones(B * pages, HEADS, page, values.shape[2], dtype=values.dtype)
    padded = torch.nn.functional.pad(values, (0, 0, 0, pages * page - N))
    cache[table[place].long()] = padded.view(HEADS, pages, page, -1).transpose(0, 1)
    arguments: Arguments = {
        "Q": torch.zeros(B, H, M, D, dtype=values.dtype),
        "KEYS": torch.zeros(B * pages, HEADS, page, D, dtype=values.dtype),
        "VALUES": cache,
        "PAGES": table,
        CACHE_LENGTHS: torch.tensor(lengths, dtype=torch.int32),
        "ORDER": torch.arange(B, dtype=torch.int32),
    }
    return {**arguments, **_make_outputs(B, H, M, cache), "scale": 1.0}, place


def _make_packed(checked: Checked, values: torch.Tensor, sizes: _Sizes) -> tuple[Arguments, Place]:
    B, M, _, D, H, place = sizes
    lengths = sizes.lengths()
    queries = [M if b == place else 1 + 3 * b for b in range(B)]
    (qends, kends) = (torch.tensor(x, dtype=torch.int32).cumsum(0).int() for x in (queries, lengths))
    qstarts, kstarts = (ends - torch.tensor(x, dtype=torch.int32) for ends, x in ((qends, queries), (kends, lengths)))
    v = torch.ones(1, HEADS, sum(lengths), values.shape[2], dtype=values.dtype)
    v[0, :, int(kstarts[place]) : int(kends[place])] = values
    arguments: Arguments = {
        "Q": torch.zeros(H, sum(queries), D, dtype=values.dtype),
        "K": torch.zeros(1, HEADS, sum(lengths), D, dtype=values.dtype),
        "V": v,
        "PAGES": torch.zeros(B, 1, dtype=torch.int32),
        **{"QSTART": qstarts, "QEND": qends, "KSTART": kstarts, "KEND": kends, "LONGEST": max(queries), "scale": 1.0},
    }
    o, lse = (x[0] for x in _make_outputs(1, H, sum(queries), v).values())
    return {**arguments, "O": o, "LSE": lse}, (slice(None), slice(int(qstarts[place]), int(qends[place])))


def _make_outputs(B: int, H: int, M: int, values: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"O": torch.full((B, H, M, values.shape[-1]), torch.nan, dtype=values.dtype), "LSE": torch.full((B, H, M), torch.nan)}


def list_surroundings() -> Sequence[Surroundings]:
    """Return launches that differ in what they hold beside a query."""
    return (Surroundings(1, 1, 130, 70), Surroundings(2, 1), Surroundings(0, 2), Surroundings(earlier=6), Surroundings(earlier=63, later=6))


__all__ = ["QueryProbes", "Surroundings", "find_obstacle", "is_forward", "list_surroundings"]
