"""Function specifications of serving: attention over a paged cache, to selected tokens of one, and of packed sequences.

Mods are applied to each sequence.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ...spec.function_specification import FunctionSpecification
from ...spec.specification import Lengths, Specification
from ...syntax.nodes import Kernel, Program
from ..splicing.specification_copies import bound_reads
from ..tracing.splice_names import CACHE_LENGTHS, OF_SEQUENCE, SELECTED_TOKENS

LONGEST = 5 * 64  # tokens of the longest sequence that is tried
HEADS = (1, 2, 3, 5, 16)  # query heads of a key head; 16 fill the rows of a warp
_ALIKE = 0.9  # the least cosine between queries that are alike and their mean
Arguments = Callable[[Lengths], Mapping[str, Any]]


def make_cached_specification(
    spec: Specification, arguments: Arguments | None = None, scaled: bool = False, latent: bool = False
) -> FunctionSpecification:
    """Return the specification of attention over a cache: O [B, H, M, DV] and LSE [B, H, M].

    Queries are Q [B, H, M, D]; token t of sequence b is row t % PAGE of page PAGES[b, t // PAGE] of KEYS [NP, HK, PAGE,
    D] and VALUES, and the sequence has LENGTHS[b] of them; `N` of a mod is that length. Rows without a token are not
    read.

    arguments: the kernel's values for the captured values of the mods, for lengths. scaled: KEYS and VALUES are 8-bit
    numbers, multiplied by KSCALE and VSCALE, [1, HK, 1] of heads or [NP, HK, PAGE] of tokens. latent: the values are the
    first DV columns of KEYS, and there is neither VALUES nor VSCALE.
    """
    spec = bound_reads(spec)

    def reference_latent(
        q: torch.Tensor, keys: torch.Tensor, pages: torch.Tensor, lengths: torch.Tensor, scale: float, DV: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return reference(q, keys, keys[..., :DV], pages, lengths, scale)

    def reference(
        q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, pages: torch.Tensor, lengths: torch.Tensor, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        B, H, M, _ = q.shape
        o, lse = (
            q.new_zeros(B, H, M, values.shape[-1]),
            q.new_zeros((B, H, M), dtype=torch.float64 if q.dtype == torch.float64 else torch.float32),
        )
        for b, n in enumerate(lengths.tolist()):
            k, v = (x[pages[b].long()].transpose(0, 1).flatten(1, 2)[None, :, :n] for x in (keys, values))
            all_sequences = (spec.reference if q.dtype == torch.float64 else spec.half)(
                q, k.expand(B, -1, -1, -1), v.expand(B, -1, -1, -1), scale
            )
            o[b], lse[b] = (x[b] for x in all_sequences)  # the mods see the number of the sequence
        return o, lse

    def reference_scaled(
        q: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        kscale: torch.Tensor,
        vscale: torch.Tensor,
        pages: torch.Tensor,
        lengths: torch.Tensor,
        scale: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        wide = torch.promote_types(q.dtype, torch.float32)
        k, v = ((x.to(wide) * of.to(wide)[..., None]).to(q.dtype) for x, of in ((keys, kscale), (values, vscale)))
        return reference(q, k, v, pages, lengths, scale)

    def reference_scaled_latent(
        q: torch.Tensor, keys: torch.Tensor, kscale: torch.Tensor, pages: torch.Tensor, lengths: torch.Tensor, scale: float, DV: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return reference_scaled(q, keys, keys[..., :DV], kscale, kscale, pages, lengths, scale)

    def sizes(drawn: Mapping[str, int]) -> dict[str, int]:
        B, page = min(drawn["B"], 3), drawn["CHUNK"] * (1 + drawn["PAGE"] % 3)
        MP = -(-min(LONGEST, 64 * (1 + drawn["MP"] % 7)) // page)
        return {
            "B": B,
            "BS": B,
            "HK": min(drawn["HK"], 3),
            "H": min(drawn["HK"], 3) * HEADS[drawn["H"] % len(HEADS)],
            "M": 1 + drawn["M"] % 20,
            "PAGE": page,
            "MP": MP,
            "NP": B * MP + 1,
            **({"SP": B * MP + 1, "SR": page} if drawn.get("TOKENS") else {"SP": 1, "SR": 1} if scaled else {}),
        }

    def inputs(
        sizes: Mapping[str, int],
        generator: torch.Generator,
        q: torch.Tensor,
        keys: torch.Tensor,
        kscale: torch.Tensor | None = None,
    ) -> dict[str, Any]:
        B, longest, block = sizes["B"], sizes["MP"] * sizes["PAGE"], sizes.get("BN", 64)
        order = torch.randperm(sizes["NP"], generator=generator)  # no page belongs to two sequences
        lengths = torch.randint(longest + 1, (B,), generator=generator)
        lengths[0] = longest
        # queries before the first token, and sequences without tokens
        short = torch.randint(sizes["M"] + 1, (B,), generator=generator)
        chosen = torch.rand(B, generator=generator)
        lengths = torch.where(chosen < 0.3, short.clamp(max=longest), lengths)
        # a block of keys ends between the queries, which then see different numbers of blocks
        ends = torch.randint(max(1, longest // block), (B,), generator=generator) * block
        behind = ends + torch.randint(1, max(2, sizes["M"]), (B,), generator=generator)
        lengths = torch.where(chosen > 0.7, behind.clamp(max=longest), lengths)
        captured = dict(arguments(Lengths(B, sizes["H"], sizes["HK"], sizes["M"], longest))) if arguments is not None else {}
        begun = torch.randperm(B, generator=generator)
        pages = order[: B * sizes["MP"]].view(B, -1)
        scored = keys.float() if kscale is None else keys.float() * kscale.float()[..., None]
        for b, queries in enumerate(q.flatten(1, 2)):
            if (query := _find_common_query(queries)) is not None:  # the maxima of all rows of a tile grow from block to block
                pages[b], lengths[b] = _sort_pages(pages[b], scored[:, 0] @ query, b % 2 == 0), longest
        return {"PAGES": pages, "LENGTHS": lengths, "ORDER": begun, **captured}

    of_latent = reference_scaled_latent if scaled else reference_latent
    function = of_latent if latent else reference_scaled if scaled else reference
    return FunctionSpecification(f"{spec.name}_cached", function, inputs, sizes)


def make_selected_tokens_specification(spec: Specification, arguments: Arguments | None = None) -> FunctionSpecification:
    """Return the specification of attention to selected tokens of a latent cache: O [B, H, M, DV] and LSE [B, H, M].

    Query m of sequence b attends to the tokens INDICES[b, m], of which those below 0 or from LENGTHS[b] on are none, and a token
    that is named twice counts twice; the mods decide of these pairs. Cache and lengths are as in `make_cached_specification`.

    arguments: the kernel's values for the captured values of the mods, for lengths.
    """
    spec, cached = bound_reads(spec), make_cached_specification(spec, arguments, latent=True)
    assert cached.inputs is not None and cached.sizes is not None
    draw_cache, choose_cache = cached.inputs, cached.sizes

    def reference(
        q: torch.Tensor, keys: torch.Tensor, pages: torch.Tensor, lengths: torch.Tensor, indices: torch.Tensor, scale: float, DV: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        (B, H, M, _), wide = q.shape, torch.promote_types(q.dtype, torch.float32)
        o, lse = q.new_zeros(B, H, M, DV), q.new_zeros((B, H, M), dtype=wide)
        for b, n in enumerate(lengths.tolist()):
            k = keys[pages[b].long()].transpose(0, 1).flatten(1, 2)[:, :n].repeat_interleave(H // keys.shape[1], 0)
            scores = spec.scores((q[b] @ k.mT).to(wide).expand(B, -1, -1, -1) * scale, Lengths(B, H, keys.shape[1], M, n))[b]
            listed = (indices[b] >= 0) & (indices[b] < n)
            at = indices[b].clamp(0, max(0, n - 1)).long().expand(H, -1, -1)
            if not n:
                scores, k = scores.new_zeros(H, M, 1), k.new_zeros(H, 1, k.shape[2])
            chosen = scores.gather(-1, at).masked_fill(~listed, -torch.inf)
            of_pairs, sums = spec.weights(chosen.expand(B, -1, -1, -1), Lengths(B, H, keys.shape[1], M, n))
            weights = of_pairs.new_zeros(scores.shape).scatter_add_(-1, at, of_pairs[b])
            o[b], lse[b] = weights.to(q.dtype) @ k[..., :DV], sums[b]
        return o, lse

    def sizes(drawn: Mapping[str, int]) -> dict[str, int] | None:
        chosen = choose_cache({**drawn, "CHUNK": 1 + drawn["PAGE"] % 40})
        return None if chosen is None else {**chosen, "M": 1 + drawn["M"] % 5, "TOPK": 1 + drawn["TOPK"] % LONGEST}

    def inputs(sizes: Mapping[str, int], generator: torch.Generator, q: torch.Tensor, keys: torch.Tensor) -> dict[str, Any]:
        drawn = dict(draw_cache(sizes, generator, q, keys))
        del drawn["ORDER"]
        pages = drawn["PAGES"]
        assert isinstance(pages, torch.Tensor)
        shape, longest = (sizes["B"], sizes["M"], sizes["TOPK"]), sizes["MP"] * sizes["PAGE"]
        tokens = torch.randint(-2, longest + 2, shape, generator=generator).int()
        return {**drawn, SELECTED_TOKENS: sort_tokens(tokens, q, keys, pages)}

    return FunctionSpecification(f"{spec.name}_selected_tokens", reference, inputs, sizes)


def _sort_pages(pages: torch.Tensor, scores: torch.Tensor, descending: bool) -> torch.Tensor:
    """Return pages in the order of their largest scores; scores: of the rows of all pages [NP, PAGE]."""
    return pages[scores[pages].amax(-1).argsort(descending=descending)]


def sort_tokens(tokens: torch.Tensor, q: torch.Tensor, keys: torch.Tensor, pages: torch.Tensor) -> torch.Tensor:
    """Return lists of tokens [B, M, TOPK], in the order of their scores where the heads of a query are alike.

    Scores are those of the first key head. They rise in even lists, counted over sequences and queries, and fall in odd
    ones. An entry that is no token has a place among the others.
    """
    tokens = tokens.clone()
    for b, m in itertools.product(*map(range, tokens.shape[:2])):
        if (query := _find_common_query(q[b, :, m])) is not None:
            scores = (keys[pages[b], 0].float() @ query).flatten()
            order = scores[tokens[b, m].clamp(0, len(scores) - 1)].argsort(descending=(b + m) % 2 == 1)
            tokens[b, m] = tokens[b, m, order]
    return tokens


def _find_common_query(q: torch.Tensor) -> torch.Tensor | None:
    """Return the mean of several queries [R, D] that all have almost its direction, else None."""
    mean = q.float().mean(0)
    alike = len(q) > 1 and bool((torch.cosine_similarity(q.float(), mean, dim=-1) > _ALIKE).all())
    return mean if alike else None


MOST = 3  # the largest number of sequences
ROWS = 300  # rows of all sequences


def make_packed_specification(spec: Specification, arguments: Arguments | None = None) -> FunctionSpecification:
    """Return the specification of attention over packed sequences: O [H, TQ, DV] and LSE [H, TQ].

    Sequence b has the rows QSTART[b] .. QEND[b] - 1 of Q [H, TQ, D], and its keys and values are the rows KSTART[b] ..
    KEND[b] - 1 of its pages, row t being row t % PAGE of page PAGES[b, t // PAGE] of K [NP, HK, PAGE, D] and V [NP, HK,
    PAGE, DV]: of the only page, or, with CHUNK > 0, of a cache, from row 0 on. `M` and `N` of a mod are its lengths.
    Rows of no sequence are not compared; there may be such rows between packed sequences.

    arguments: the kernel's values for the captured values of the mods, for lengths.
    """
    spec = bound_reads(spec)

    def reference(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        pages: torch.Tensor,
        qstart: torch.Tensor,
        qend: torch.Tensor,
        kstart: torch.Tensor,
        kend: torch.Tensor,
        scale: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        B = len(qstart)
        o = q.new_full((*q.shape[:2], v.shape[3]), torch.nan)
        lse = q.new_full(q.shape[:2], torch.nan, dtype=torch.float64 if q.dtype == torch.float64 else torch.float32)
        for b, (first, last, start, end) in enumerate(zip(*(x.tolist() for x in (qstart, qend, kstart, kend)))):
            if first == last:
                continue
            of_cache = (x[pages[b].long()].transpose(0, 1).flatten(1, 2) for x in (k, v))
            queries, keys, values = (x.expand(B, -1, -1, -1) for x in (q[:, first:last], *(x[:, start:end] for x in of_cache)))
            all_sequences = (spec.reference if q.dtype == torch.float64 else spec.half)(
                queries, keys, values, scale
            )  # the mods see the number of the sequence
            o[:, first:last], lse[:, first:last] = (x[b] for x in all_sequences)
        return o, lse

    def sizes(drawn: Mapping[str, int]) -> dict[str, int]:
        B, heads, chunk = min(drawn["B"], MOST), min(drawn["HK"], 2), drawn.get("CHUNK", 0)
        page = chunk * (1 + drawn["PAGE"] % 3) if chunk else min(drawn["PAGE"], ROWS)
        pages_of_sequence = -(-min(ROWS, 64 * (1 + drawn["MP"] % 7)) // page) if chunk else 1
        return {
            "B": B,
            "HK": heads,
            "H": heads * (1 + drawn["H"] % 2),
            "TQ": min(drawn["TQ"], ROWS),
            "PAGE": page,
            "MP": pages_of_sequence,
            "NP": B * pages_of_sequence + 1 if chunk else 1,
        }

    def inputs(sizes: Mapping[str, int], generator: torch.Generator) -> dict[str, Any]:
        B, rows = sizes["B"], sizes["MP"] * sizes["PAGE"]
        full_sequence = int(torch.randint(B, (), generator=generator)) if B and torch.rand((), generator=generator) < 0.3 else None
        # sometimes one sequence has all rows: of several none may have many queries and many blocks of keys
        qstart, qend = (
            _draw_places(B, sizes["TQ"], generator) if full_sequence is None else _make_single_sequence(full_sequence, B, sizes["TQ"])
        )
        if sizes["NP"] > 1:
            pages = (
                torch.randperm(sizes["NP"], generator=generator)[: B * sizes["MP"]].view(B, -1).int()
            )  # no page belongs to two sequences
            kstart, kend = torch.zeros(B, dtype=torch.int32), torch.randint(rows + 1, (B,), generator=generator).int()
            if full_sequence is not None:
                kend[full_sequence] = rows
        else:
            pages = torch.zeros(B, 1, dtype=torch.int32)
            kstart, kend = _draw_places(B, rows, generator) if full_sequence is None else _make_single_sequence(full_sequence, B, rows)
        longest = [int((end - start).max()) if B else 0 for start, end in ((qstart, qend), (kstart, kend))]
        captured = dict(arguments(Lengths(B, sizes["H"], sizes["HK"], *longest))) if arguments is not None else {}
        return {
            "PAGES": pages,
            "QSTART": qstart,
            "QEND": qend,
            "KSTART": kstart,
            "KEND": kend,
            "LONGEST": longest[0] + int(torch.randint(2, (), generator=generator)),
            **captured,
        }

    return FunctionSpecification(f"{spec.name}_packed", reference, inputs, sizes)


def knows_lengths_of_sequences(program: Program, kernel: Kernel) -> bool:
    """Return whether a kernel over a cache or of packed sequences reads the length of each sequence."""
    return any(p.name == CACHE_LENGTHS for p in kernel.params) or all(name in program.funcs() for name in OF_SEQUENCE.values())


def make_bounds_of_sequences(lengths: Lengths) -> dict[str, torch.Tensor]:
    """Return what these kernels read of sequences that all have M queries and N keys, by parameter."""
    starts = torch.arange(lengths.B, dtype=torch.int32)
    bounds = {
        f"{which}{end}": (starts + later) * n
        for which, n in (("Q", lengths.M), ("K", lengths.N))
        for end, later in (("START", 0), ("END", 1))
    }
    tokens = torch.arange(lengths.N, dtype=torch.int32).expand(lengths.B, lengths.M, -1)  # a list of all, in their order
    return {CACHE_LENGTHS: torch.full_like(starts, lengths.N), SELECTED_TOKENS: tokens, **bounds}


def _draw_places(B: int, rows: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Return starts and ends of B sequences: contiguous, or with rows between them; of any lengths, 0 too."""
    cuts = torch.randint(rows + 1, (2 * B,), generator=generator).sort().values
    if B and (torch.rand((), generator=generator) < 0.6 or bool((cuts[0::2] == cuts[1::2]).all())):
        inner = cuts[1::2][: B - 1].clone()
        if torch.rand((), generator=generator) < 0.3:
            inner[:1] = 0  # the first sequence is empty
        edges = torch.cat([torch.tensor([0]), inner, torch.tensor([rows])])
        return edges[:-1].int(), edges[1:].int()
    return cuts[0::2].int(), cuts[1::2].int()


def _make_single_sequence(full_sequence: int, B: int, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return starts and ends of B sequences of which one has all rows."""
    edges = torch.tensor([0] * (full_sequence + 1) + [rows] * (B - full_sequence), dtype=torch.int32)
    return edges[:-1], edges[1:]


__all__ = [
    "make_cached_specification",
    "make_packed_specification",
    "make_selected_tokens_specification",
    "sort_tokens",
]
