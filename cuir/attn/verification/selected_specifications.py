"""Function specifications of attention over selected blocks of keys: its forward pass, and the kernels of its gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ...spec.function_specification import FunctionSpecification
from ...spec.gradients import pad_rows, rows_of
from ...spec.specification import Lengths, Specification, lengths_of
from ..masks.selected_blocks import SelectedBlocks, Slots, invert_blocks, select_pairs
from ..splicing.specification_copies import bound_reads

Arguments = Callable[[Lengths], Mapping[str, Any]]
LONGEST = 5 * 64  # keys, more of them only for larger blocks
MOST_TILES = 12  # of queries with a list of their own
MOST_SELECTED = 5  # blocks
HEADS = (16, 1, 2, 3, 5)  # query heads that share a list; 16 fill the rows of a warp
_ROUNDED = 0.75  # of every third query L is lower by this


def make_selected_specification(spec: Specification, arguments: Arguments | None = None) -> FunctionSpecification:
    """Return the specification of attention over selected blocks: O [B, H, M, DV] and LSE [B, H, M].

    Queries g * SPAN .. g * SPAN + SPAN - 1 of the u-th of HU groups of heads attend to the first COUNTS[b, u, g] blocks of
    BLOCKS[b, u, g], in which block j has the keys j * BLOCK .. j * BLOCK + BLOCK - 1; the mods decide of these pairs.

    arguments: the kernel's values for the captured values of the mods, for lengths.
    """
    spec = bound_reads(spec)

    def reference(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, blocks: torch.Tensor, counts: torch.Tensor, scale: float, BLOCK: int, SPAN: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return _attend(spec, q, k, v, scale, select_pairs(blocks, counts, lengths_of(q, k), BLOCK, SPAN))

    return FunctionSpecification(f"{spec.name}_selected", reference, make_inputs(arguments), choose_sizes)


def make_selected_query_gradients(spec: Specification, arguments: Arguments | None = None) -> FunctionSpecification:
    """Return the specification of dQ [B, H, M, D] of attention over selected blocks, as `make_selected_specification` has it.

    The kernel reads L, each query's LSE as a base-2 logit, inf for one without keys, and DL = row_sum(O * dO), f32 [B, H, MP].
    """
    spec = bound_reads(spec)
    lists = make_inputs(arguments)

    def reference(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, do: torch.Tensor, scale: float, **others: Any
    ) -> dict[str, torch.Tensor]:
        selected = select_pairs(others["BLOCKS"], others["COUNTS"], lengths_of(q, k), others["BLOCK"], others["SPAN"])
        _, ds = _differentiate(spec, q, k, v, do, (others["L"], others["DL"]), scale, selected)
        return {"dQ": ds.to(q.dtype) @ _per_head(k, q) * scale}

    def inputs(
        sizes: Mapping[str, int],
        generator: torch.Generator,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        do: torch.Tensor,
        scale: float,
    ) -> dict[str, Any]:
        drawn = lists(sizes, generator)
        selected = select_pairs(drawn["BLOCKS"], drawn["COUNTS"], lengths_of(q, k), sizes["BLOCK"], sizes["SPAN"])
        return drawn | _make_rows(spec, q, k, v, do, scale, selected, sizes["MP"])

    def sizes(drawn: Mapping[str, int]) -> dict[str, int] | None:
        chosen = choose_sizes(drawn)
        return None if chosen is None else {**chosen, "MP": pad_rows(chosen["M"])}

    return FunctionSpecification(f"{spec.name}_selected_query_gradients", reference, inputs, sizes)


def make_selected_key_gradients(spec: Specification, arguments: Arguments | None = None) -> FunctionSpecification:
    """Return the specification of parts of dK and dV of attention over selected blocks: f32 [PARTS, BN, D] and [PARTS, BN, DV].

    Unit t of UNITS is a key head of all batch entries, a block of BN keys, the first of its slots and their number; slot i of INVERSE
    is BM queries of each of GROUP heads; it holds the group of PER heads, the first of these, and the first query. Q and dO are
    [B, HU, PER, M, D]. Part t * WG + w sums every WG-th step of 64 rows of unit t, from the w-th on. L and DL are those of
    `make_selected_query_gradients`.
    """
    spec = bound_reads(spec)

    def reference(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, do: torch.Tensor, scale: float, **others: Any
    ) -> dict[str, torch.Tensor]:
        units, inverse = others["UNITS"], others["INVERSE"]
        BM, GROUP, BN, WG = (others[n] for n in ("BM", "GROUP", "BN", "WG"))
        per = q.shape[2]
        q, do = (x.flatten(1, 2) for x in (q, do))
        at, wide = lengths_of(q, k), torch.promote_types(q.dtype, torch.float32)
        p, ds = (x.to(q.dtype).to(wide) for x in _differentiate(spec, q, k, v, do, (others["L"], others["DL"]), scale, None))
        parts = [torch.zeros(len(units) * WG, BN, x.shape[-1], dtype=wide) for x in (k, v)]
        for t, (x, j, begin, n) in enumerate(units.tolist()):
            b, keys = x // at.HK, slice(j * BN, min(j * BN + BN, at.N))
            for i, (u, first, query) in enumerate(inverse[b, x % at.HK, begin : begin + n].tolist()):
                heads, rows = slice(u * per + first, u * per + min(first + GROUP, per)), slice(query, min(query + BM, at.M))
                part = t * WG + i // (64 // (BM * GROUP)) % WG
                for total, weights, other in zip(parts, (ds * scale, p), (q, do)):
                    total[part, : keys.stop - keys.start] += torch.einsum(
                        "hqk,hqd->kd", weights[b, heads, rows, keys], other[b, heads, rows].to(wide)
                    )
        return dict(zip(("dK", "dV"), parts))

    def inputs(
        sizes: Mapping[str, int],
        generator: torch.Generator,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        do: torch.Tensor,
        scale: float,
    ) -> dict[str, Any]:
        q, do = (x.flatten(1, 2) for x in (q, do))
        at, (way, of_lists) = lengths_of(q, k), _choose_way(sizes)
        captured = make_inputs(arguments)({**sizes, **of_lists, "BLOCK": way.block}, generator)
        lists = SelectedBlocks(captured.pop("BLOCKS"), captured.pop("COUNTS"))
        units, slots, _ = invert_blocks(lists, at, way)
        rows = _make_rows(spec, q, k, v, do, scale, select_pairs(*lists, at, way.block, way.span), sizes["MP"])
        return {"UNITS": units, "INVERSE": slots, **captured, **rows}

    def sizes(drawn: Mapping[str, int]) -> dict[str, int] | None:
        HK, M = min(drawn["HK"], 2), min(drawn["M"], MOST_TILES * drawn["BM"])
        N = min(drawn["N"], LONGEST)
        if min(M, N, drawn["B"], HK) == 0:
            return None
        HU, PER = HK * (1 + drawn["HU"] % 2), 1 + drawn["PER"] % 5
        chosen = {"B": min(drawn["B"], 2), "HK": HK, "HU": HU, "PER": PER, "H": HU * PER, "M": M, "N": N, "MP": pad_rows(M)}
        way, of_lists = _choose_way({**drawn, **chosen})
        at = Lengths(*(chosen[n] for n in ("B", "H", "HK", "M", "N")))
        entries = HU // HK * of_lists["GROUPS"] * of_lists["SELECTED"] * way.count_slots(at, HU)
        total = way.count_units(at, entries)
        return {**chosen, "ENTRIES": entries, "TOTAL": total, "PARTS": total * drawn["WG"]}

    return FunctionSpecification(f"{spec.name}_selected_key_gradients", reference, inputs, sizes)


def _choose_way(sizes: Mapping[str, int]) -> tuple[Slots, dict[str, int]]:
    """Return how a problem's lists are inverted, and their lengths: all follow from the lengths of its tensors."""
    keys = sizes["BN"]
    span = sizes["BM"] * (1 + sizes["M"] % 3)
    block = keys * (1 + (keys == 64 and sizes["N"] % 2))
    step = 64 // (sizes["BM"] * sizes["GROUP"])
    way = Slots(block, span, sizes["BM"], sizes["GROUP"], keys, sizes["WG"], (3 + 2 * (sizes["N"] % 3)) * step)
    return way, {"GROUPS": -(-sizes["M"] // span), "SELECTED": 1 + sizes["N"] % MOST_SELECTED}


def _per_head(x: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    return x.repeat_interleave(q.shape[1] // x.shape[1], 1)


def _multiply(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Multiply queries with keys, in float32 at least: half precision would overflow where no kernel does."""
    wide = torch.promote_types(q.dtype, torch.float32)
    return q.to(wide) @ _per_head(k, q).to(wide).mT


def _attend(
    spec: Specification, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, selected: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return O and LSE of the selected pairs that the mods keep."""
    lengths = lengths_of(q, k)
    scores = spec.scores(_multiply(q, k) * scale, lengths).masked_fill(~selected, -torch.inf)
    weights, lse = spec.weights(scores, lengths)
    return weights.to(q.dtype) @ _per_head(v, q), lse


def _differentiate(
    spec: Specification,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    do: torch.Tensor,
    rows: tuple[torch.Tensor, torch.Tensor],
    scale: float,
    selected: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the weights of the pairs, and the derivatives of the loss with respect to their scaled products: [B, H, M, N]."""
    lengths, wide = lengths_of(q, k), torch.promote_types(q.dtype, torch.float32)
    products = (_multiply(q, k) * scale).detach().requires_grad_()
    with torch.enable_grad():
        scores = spec.scores(products, lengths)
        scores = scores if selected is None else scores.masked_fill(~selected, -torch.inf)
        logits, delta = ((x[..., : lengths.M, None]).to(wide) for x in rows)
        p = torch.exp(torch.clamp(scores.detach() - logits * math.log(2.0), max=0.0))
        passed = p * ((do @ _per_head(v, q).mT).to(wide) - delta)
        finite = torch.where(scores.isneginf(), 0.0, scores)  # NaN passes, as in a kernel
        (ds,) = torch.autograd.grad((finite * passed.detach()).sum(), products)
    return p, ds


def _make_rows(
    spec: Specification, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, do: torch.Tensor, scale: float, selected: torch.Tensor, MP: int
) -> dict[str, torch.Tensor]:
    """Return L and DL of a problem.

    L of every third query is too low, as the rounding of large logits may leave it: weights of more than 1 count as 1.
    """
    with torch.no_grad():
        o, lse = _attend(spec, q.double(), k.double(), v.double(), scale, selected)
        delta = torch.nn.functional.pad((o * do.double()).sum(-1), (0, MP - o.shape[2]))
        too_low = torch.where(torch.arange(MP) % 3 == 1, _ROUNDED, 0.0)
        return {"L": rows_of(lse, MP) - too_low, "DL": delta}


def choose_sizes(drawn: Mapping[str, int]) -> dict[str, int] | None:
    """Return lengths that kernels of selected blocks admit, for those drawn; None if a tile had queries of two lists."""
    if drawn["SPAN"] % drawn["BM"]:
        return None
    HK = min(drawn["HK"], 2)
    HU = HK * (1 + drawn["HU"] % 2)
    M = min(drawn["M"], MOST_TILES * drawn["BM"])
    return {
        "B": min(drawn["B"], 2),
        "HK": HK,
        "HU": HU,
        "H": HU * HEADS[drawn["H"] % len(HEADS)],
        "M": M,
        "N": min(drawn["N"], max(LONGEST, 3 * drawn["BLOCK"])),
        "GROUPS": -(-M // drawn["SPAN"]),
        "SELECTED": 1 + drawn["SELECTED"] % MOST_SELECTED,
    }


def make_inputs(arguments: Arguments | None) -> Callable[..., dict[str, Any]]:
    """Return a function that draws lists: any number of blocks, the last key's first; what lies behind may be anything."""

    def inputs(sizes: Mapping[str, int], generator: torch.Generator) -> dict[str, Any]:
        lists = sizes["B"], sizes["HU"], sizes["GROUPS"]
        total, most = -(-sizes["N"] // sizes["BLOCK"]), sizes["SELECTED"]
        order = torch.rand(*lists, max(total, most), generator=generator)
        order[..., total:] = 2.0  # blocks that are not there come last
        counts = torch.randint(min(most, total) + 1, lists, generator=generator)
        drawn = order.argsort(-1)[..., :most]
        listed = torch.where(torch.arange(most) < counts[..., None], drawn, -1).sort(-1, descending=True).values
        beyond = torch.randint(-3, total + 3, listed.shape, generator=generator)
        blocks = torch.where(listed < 0, beyond, listed).int()
        lengths = Lengths(*(sizes[n] for n in ("B", "H", "HK", "M", "N")))
        captured = dict(arguments(lengths)) if arguments is not None else {}
        return {"BLOCKS": blocks, "COUNTS": counts.int(), **captured}

    return inputs


__all__ = ["make_selected_key_gradients", "make_selected_query_gradients", "make_selected_specification"]
