"""Launches of an attention kernel that show in which order one query adds up its keys.

In a probe, the addends of two keys of the query are opposite and so large that they absorb others, the leaves. Where all
scores are equal, a column of V is a probe. 8-bit values are not large enough, and weights of shares only cancel if their
sums are equal: there a query head is a probe, for which two keys have a high score.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch

from ...arguments.binding import TORCH
from ...checking.checked import Checked, Const
from ...interp import run
from ...syntax.types import BF16, F32
from ..tracing.splice_names import CACHE_LENGTHS, SELECTED_TOKENS

HEADS = 4  # key heads of a launch whose columns are probes
LARGE = 2.0**100  # a value that absorbs numbers up to 2^75 in f32
HIGH = 60.0  # a score whose weight, e^60, does so too
OTHERS = 77  # keys of the shortest other sequence

Pair = tuple[int, int]
# O of shares, their LSE, O, a kernel's consts, its architecture -> LSE; O is written
Join = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Mapping[str, Const], str], torch.Tensor]


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
        leaves: keys that are counted; the values of all others are 0.
        keys: keys of the query, from 0 on.
        join: joins the results of shares of the keys, for kernels with several.
    """

    checked: Checked
    leaves: Sequence[int]
    keys: int
    join: Join | None = None

    @property
    def dims(self) -> tuple[int, int]:
        """Head dims of queries and of values."""
        D, DV = (self.checked.consts.get(n, 64) for n in ("D", "DV"))
        assert isinstance(D, int) and isinstance(DV, int)
        return D, DV

    @property
    def by_scores(self) -> bool:
        """Return whether query heads serve as probes, instead of columns of values."""
        values = next((t for t in self.checked.tensors if t.name in ("V", "VALUES")), None)
        return values is None or values.dtype not in (BF16, F32) or self.checked.consts.get("SPLITS", 1) != 1

    def count(self, pairs: Sequence[Pair], around: Surroundings) -> list[int] | None:
        """Return for each pair how many leaves are added behind the place where it meets.

        None if the query has not these keys alone. Raises CuirError for a fault of the kernel.
        """
        most = len(pairs) if self.by_scores else HEADS * self.dims[1]
        counts = list[int]()
        for begin in range(0, len(pairs), most):
            some = self._count(pairs[begin : begin + most], around)
            if some is None:
                return None
            counts += some
        return counts

    def _count(self, pairs: Sequence[Pair], around: Surroundings) -> list[int] | None:
        query, keys, values = self._raise_scores(pairs) if self.by_scores else self._enlarge_values(pairs)
        keys, values = (torch.nn.functional.pad(x, (0, 0, 0, around.later)) for x in (keys, values))  # other queries see more keys
        o, lse = self._launch(_Batch(query, keys, values, around))
        sums = o.double() * lse.double().exp()[:, None]
        if float(lse[-1].double().exp().round()) != self.keys:  # all scores of the last head are equal
            return None
        if self.by_scores:
            found = sums[range(len(pairs)), [self.leaves.index(j) for _, j in pairs]]
        else:
            found = sums[:: len(sums) // HEADS].flatten()[: len(pairs)]
        return found.round().int().tolist()

    def _enlarge_values(self, pairs: Sequence[Pair]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return queries, keys and values; in the i-th column of values, of all key heads, those of the i-th pair are large."""
        D, DV = self.dims
        group = self.checked.consts.get("GROUP", 1)
        assert isinstance(group, int)
        values = torch.zeros(self.keys, HEADS * DV)
        values[list(self.leaves)] = 1.0
        for column, (i, j) in enumerate(pairs):
            values[i, column], values[j, column] = LARGE, -LARGE
        zeros = torch.zeros(HEADS * group, D), torch.zeros(HEADS, self.keys, D)
        return *zeros, values.view(self.keys, HEADS, DV).transpose(0, 1)

    def _raise_scores(self, pairs: Sequence[Pair]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return queries, keys and values; for the i-th query head the scores of the i-th pair are high.

        The n-th leaf is counted negative in column n. The last columns of keys have a number for each leaf; these are
        at most half of them, as the first columns of a latent vector are values.
        """
        D, DV = self.dims
        count = len(self.leaves)
        places = {leaf: D - count + n for n, leaf in enumerate(self.leaves)}
        query, keys, values = torch.zeros(len(pairs) + 1, D), torch.zeros(1, self.keys, D), torch.zeros(1, self.keys, DV)
        for head, (i, j) in enumerate(pairs):
            query[head, [places[i], places[j]]] = HIGH
        for n, leaf in enumerate(self.leaves):
            keys[0, leaf, places[leaf]] = 1.0
            values[0, leaf, :count] = 1.0
            values[0, leaf, n] = -1.0
        return query, keys, values

    def _launch(self, batch: _Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return O [H, DV] and LSE [H] of the query."""
        names = {t.name for t in self.checked.tensors}
        make = _make_cached if CACHE_LENGTHS in names else _make_packed if "QSTART" in names else _make_dense
        arguments, place = make(self.checked, batch)
        o, lse = (cast(torch.Tensor, arguments[name]) for name in ("O", "LSE"))
        shares = int(self.checked.consts.get("SPLITS", 1))  # type: ignore[arg-type]
        if shares == 1:
            run(self.checked, arguments)
        else:
            assert self.join is not None
            parts, sums = (torch.full((x.shape[0] * shares, *x.shape[1:]), torch.nan) for x in (o, lse))
            run(self.checked, {**arguments, "O": parts, "LSE": sums})
            lse = self.join(parts, sums, o, self.checked.consts, self.checked.arch)
        return o[place][:, batch.around.earlier], lse[place][:, batch.around.earlier]


@dataclass(frozen=True)
class _Batch:
    """Sequences of a launch, of which one is probed. Queries of others are 0, values 1.

    Attributes:
        query: [H, D], the probed one.
        keys, values: [HK, N, D] and [HK, N, DV], of its sequence.
    """

    query: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    around: Surroundings

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Sequences, query heads, queries and keys of the probed sequence."""
        a = self.around
        return a.before + a.after + 1, len(self.query), a.earlier + a.later + 1, self.keys.shape[1]

    @property
    def lengths(self) -> list[int]:
        """Keys of each sequence; those of others have other numbers."""
        B, _, _, N = self.sizes
        return [N if b == self.around.before else OTHERS + 64 * b for b in range(B)]

    def make_table(self, page: int) -> torch.Tensor:
        """Return a table of pages, which lie in no order."""
        B, pages = len(self.lengths), -(-max(self.lengths) // page)
        return torch.randperm(B * pages, generator=torch.Generator().manual_seed(0)).view(B, pages).int()

    def fill_pages(self, rows: torch.Tensor, table: torch.Tensor, page: int) -> torch.Tensor:
        """Return pages with rows [HK, N, ..] of the probed sequence, and ones of the others."""
        pages = table.shape[1]
        cache = torch.ones(table.numel(), len(rows), page, rows.shape[2])
        padded = torch.nn.functional.pad(rows, (0, 0, 0, pages * page - rows.shape[1]))
        cache[table[self.around.before].long()] = padded.view(len(rows), pages, page, -1).transpose(0, 1)
        return cache


Place = int | tuple[slice, slice]
Arguments = dict[str, torch.Tensor | float | int]


def is_forward(checked: Checked) -> bool:
    """Return whether a kernel computes O and LSE of queries."""
    return {"Q", "O", "LSE"} <= {t.name for t in checked.tensors} and {"O", "LSE"} <= {t.name for t in checked.outputs}


def find_obstacle(checked: Checked, join: Join | None = None) -> str:
    """Return why no launch shows the order of a kernel's sums; empty if launches do. `join`: as in `QueryProbes`."""
    tensors = {t.name: t for t in checked.tensors if not t.scratch}
    known = {
        "Q",
        "K",
        "V",
        "O",
        "LSE",
        "KEYS",
        "VALUES",
        "PAGES",
        CACHE_LENGTHS,
        SELECTED_TOKENS,
        "ORDER",
        "QSTART",
        "QEND",
        "KSTART",
        "KEND",
    }
    if not is_forward(checked) or set(tensors) - known - {"KSCALE", "VSCALE"} or {s.name for s in checked.scalars} - {"scale", "LONGEST"}:
        return "it is for the forward pass of an attention without captured values"
    if tensors["Q"].dtype not in (BF16, F32):
        return "it needs queries of bfloat16 or float32"
    if checked.consts.get("SPLITS", 1) != 1 and (join is None or checked.consts.get("G") != F32):
        return "several shares of the keys are joined by another kernel, in float32"
    return ""


def _make_dense(checked: Checked, batch: _Batch) -> tuple[Arguments, Place]:
    B, H, M, _ = batch.sizes
    place = batch.around.before
    v = torch.ones(B, *batch.values.shape)
    q, k = torch.zeros(B, H, M, batch.query.shape[1]), torch.zeros(B, *batch.keys.shape)
    v[place], k[place], q[place, :, batch.around.earlier] = batch.values, batch.keys, batch.query
    arguments: Arguments = {**_convert(checked, {"Q": q, "K": k, "V": v}), **_make_outputs(checked, (B, H, M), batch), "scale": 1.0}
    return arguments, place


def _make_cached(checked: Checked, batch: _Batch) -> tuple[Arguments, Place]:
    B, H, M, _ = batch.sizes
    place, names = batch.around.before, {t.name for t in checked.tensors}
    page = max(8, int(checked.consts.get("CHUNK", 1)))  # type: ignore[arg-type]
    table = batch.make_table(page)
    q = torch.zeros(B, H, M, batch.query.shape[1])
    q[place, :, batch.around.earlier] = batch.query
    if "VALUES" in names:
        caches = {"KEYS": batch.fill_pages(batch.keys, table, page), "VALUES": batch.fill_pages(batch.values, table, page)}
    else:  # latent vectors
        keys = batch.keys.clone()
        keys[..., : batch.values.shape[2]] += batch.values
        caches = {"KEYS": batch.fill_pages(keys, table, page)}
    scales = (len(table.flatten()), len(batch.keys), page) if checked.consts.get("TOKENS") else (1, len(batch.keys), 1)
    arguments: Arguments = {
        **_convert(checked, {"Q": q, **caches}),
        **{name: torch.ones(scales) for name in ("KSCALE", "VSCALE") if name in names},
        "PAGES": table,
        CACHE_LENGTHS: torch.tensor(batch.lengths, dtype=torch.int32),
    }
    if SELECTED_TOKENS in names:  # lists of all tokens
        arguments[SELECTED_TOKENS] = torch.arange(max(batch.lengths), dtype=torch.int32).expand(B, M, -1)
    else:
        arguments["ORDER"] = torch.arange(B, dtype=torch.int32)
    return {**arguments, **_make_outputs(checked, (B, H, M), batch), "scale": 1.0}, place


def _make_packed(checked: Checked, batch: _Batch) -> tuple[Arguments, Place]:
    B, H, M, _ = batch.sizes
    place, lengths = batch.around.before, batch.lengths
    counts = [M if b == place else 1 + 3 * b for b in range(B)]
    qends, kends = (torch.tensor(x, dtype=torch.int32).cumsum(0).int() for x in (counts, lengths))
    qstarts, kstarts = (ends - torch.tensor(x, dtype=torch.int32) for ends, x in ((qends, counts), (kends, lengths)))
    q = torch.zeros(H, sum(counts), batch.query.shape[1])
    q[:, int(qstarts[place]) + batch.around.earlier] = batch.query
    chunk = int(checked.consts.get("CHUNK", 0))  # type: ignore[arg-type]
    if chunk:  # keys in pages
        page = max(8, chunk)
        table = batch.make_table(page)
        k, v = (batch.fill_pages(rows, table, page) for rows in (batch.keys, batch.values))
        kstarts, kends = torch.zeros_like(kstarts), torch.tensor(lengths, dtype=torch.int32)
    else:
        table = torch.zeros(B, 1, dtype=torch.int32)
        k, v = (torch.ones(1, len(rows), sum(lengths), rows.shape[2]) for rows in (batch.keys, batch.values))
        for x, rows in ((k, batch.keys), (v, batch.values)):
            x[0, :, int(kstarts[place]) : int(kends[place])] = rows
    bounds = {"QSTART": qstarts, "QEND": qends, "KSTART": kstarts, "KEND": kends}
    arguments: Arguments = {**_convert(checked, {"Q": q, "K": k, "V": v}), "PAGES": table, **bounds, "LONGEST": max(counts), "scale": 1.0}
    of_sequence = slice(None), slice(int(qstarts[place]), int(qends[place]))
    return {**arguments, **_make_outputs(checked, (H, sum(counts)), batch)}, of_sequence


def _convert(checked: Checked, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    dtypes = {t.name: TORCH[t.dtype] for t in checked.tensors}
    return {name: x.to(dtypes[name]) for name, x in tensors.items()}


def _make_outputs(checked: Checked, rows: tuple[int, ...], batch: _Batch) -> dict[str, torch.Tensor]:
    dtype = TORCH[next(t.dtype for t in checked.tensors if t.name == "Q")]
    return {"O": torch.full((*rows, batch.values.shape[2]), torch.nan, dtype=dtype), "LSE": torch.full(rows, torch.nan)}


def list_surroundings(few: bool) -> Sequence[Surroundings]:
    """Return launches that differ in what they hold beside a query; `few`: no more than some queries."""
    queries = ((8, 4), (16, 6)) if few else ((130, 70), (63, 6))
    return (
        Surroundings(1, 1, *queries[0]),
        Surroundings(2, 1),
        Surroundings(0, 2),
        Surroundings(earlier=6),
        Surroundings(0, 0, *queries[1]),
    )


__all__ = ["Join", "Pair", "QueryProbes", "Surroundings", "find_obstacle", "is_forward", "list_surroundings"]
