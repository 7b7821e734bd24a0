"""Attention of packed sequences as a function that verification can ask a kernel for: from mods, of each sequence by itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from ..spec.functions import FunctionSpecification
from ..spec.specification import Lengths, Specification
from ..variants.rebuilt import bounded

MOST = 3  # sequences that are tried
ROWS = 300  # of all of them
Arguments = Callable[[Lengths], Mapping[str, Any]]


def function_of(spec: Specification, arguments: Arguments | None = None) -> FunctionSpecification:
    """O [H, TQ, DV] and LSE [H, TQ] of packed sequences: sequence b has the rows QSTART[b] .. QEND[b] - 1 of Q [H, TQ, D], and its keys and values are the rows KSTART[b] ..
    KEND[b] - 1 of its pages, row t being row t % PAGE of page PAGES[b, t // PAGE] of K [NP, HK, PAGE, D] and V [NP, HK, PAGE, DV]: of the only page, or, with
    CHUNK > 0, of a cache, from row 0 on. `M` and `N` of a mod are its lengths. Of rows that no sequence has, nothing is asked.

    arguments: the kernel's values for what the mods capture, in a problem of some lengths. Between packed sequences there may be rows that are nobody's.
    """
    spec = bounded(spec)

    def reference(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, pages: torch.Tensor, qstart: torch.Tensor, qend: torch.Tensor, kstart: torch.Tensor,
        kend: torch.Tensor, scale: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
        B = len(qstart)
        o = q.new_full((*q.shape[:2], v.shape[3]), torch.nan)
        lse = q.new_full(q.shape[:2], torch.nan, dtype=torch.float64 if q.dtype == torch.float64 else torch.float32)
        for b, (first, last, start, end) in enumerate(zip(*(x.tolist() for x in (qstart, qend, kstart, kend)))):
            if first == last:
                continue
            of_cache = (x[pages[b].long()].transpose(0, 1).flatten(1, 2) for x in (k, v))
            one, keys, values = (x.expand(B, -1, -1, -1) for x in (q[:, first:last], *(x[:, start:end] for x in of_cache)))
            every = (spec.reference if q.dtype == torch.float64 else spec.half)(
                one, keys, values, scale
            )  # the mods see which sequence of all it is
            o[:, first:last], lse[:, first:last] = (x[b] for x in every)
        return o, lse

    def sizes(drawn: Mapping[str, int]) -> dict[str, int]:
        B, heads, chunk = min(drawn["B"], MOST), min(drawn["HK"], 2), drawn.get("CHUNK", 0)
        page = chunk * (1 + drawn["PAGE"] % 3) if chunk else min(drawn["PAGE"], ROWS)
        most = -(-min(ROWS, 64 * (1 + drawn["MP"] % 7)) // page) if chunk else 1  # pages of a sequence
        return {
            "B": B,
            "HK": heads,
            "H": heads * (1 + drawn["H"] % 2),
            "TQ": min(drawn["TQ"], ROWS),
            "PAGE": page,
            "MP": most,
            "NP": B * most + 1 if chunk else 1,
        }

    def inputs(sizes: Mapping[str, int], generator: torch.Generator) -> dict[str, Any]:
        B, rows = sizes["B"], sizes["MP"] * sizes["PAGE"]
        alone = int(torch.randint(B, (), generator=generator)) if B and torch.rand((), generator=generator) < 0.3 else None
        # of one sequence with all rows now and then: of several none may have many queries and many blocks of keys
        qstart, qend = _places(B, sizes["TQ"], generator) if alone is None else _of_one(alone, B, sizes["TQ"])
        if sizes["NP"] > 1:
            pages = torch.randperm(sizes["NP"], generator=generator)[: B * sizes["MP"]].view(B, -1).int()  # no page is of two sequences
            kstart, kend = torch.zeros(B, dtype=torch.int32), torch.randint(rows + 1, (B,), generator=generator).int()
            if alone is not None:
                kend[alone] = rows
        else:
            pages = torch.zeros(B, 1, dtype=torch.int32)
            kstart, kend = _places(B, rows, generator) if alone is None else _of_one(alone, B, rows)
        longest = [int((end - start).max()) if B else 0 for start, end in ((qstart, qend), (kstart, kend))]
        given = dict(arguments(Lengths(B, sizes["H"], sizes["HK"], *longest))) if arguments is not None else {}
        return {
            "PAGES": pages,
            "QSTART": qstart,
            "QEND": qend,
            "KSTART": kstart,
            "KEND": kend,
            "LONGEST": longest[0] + int(torch.randint(2, (), generator=generator)),
            **given,
        }

    return FunctionSpecification(f"{spec.name}_packed", reference, inputs, sizes)


def _places(B: int, rows: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Where B sequences begin and end: one behind the other, or with rows between them; of any lengths, 0 too."""
    cuts = torch.randint(rows + 1, (2 * B,), generator=generator).sort().values
    if B and (torch.rand((), generator=generator) < 0.6 or bool((cuts[0::2] == cuts[1::2]).all())):
        inner = cuts[1::2][: B - 1].clone()
        if torch.rand((), generator=generator) < 0.3:
            inner[:1] = 0  # the first sequence has none
        edges = torch.cat([torch.tensor([0]), inner, torch.tensor([rows])])
        return edges[:-1].int(), edges[1:].int()
    return cuts[0::2].int(), cuts[1::2].int()


def _of_one(alone: int, B: int, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Where B sequences begin and end of which one has all rows."""
    edges = torch.tensor([0] * (alone + 1) + [rows] * (B - alone), dtype=torch.int32)
    return edges[:-1], edges[1:]


__all__ = ["function_of"]
