"""Attention over a paged cache as a function specification: mods applied per sequence to its tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from ...spec.function_specification import FunctionSpecification
from ...spec.specification import Lengths, Specification
from ..splicing.specification_copies import bound_reads

LONGEST = 5 * 64  # tokens of the longest sequence that is tried
Arguments = Callable[[Lengths], Mapping[str, Any]]


def make_cached_specification(spec: Specification, arguments: Arguments | None = None, scaled: bool = False) -> FunctionSpecification:
    """Return the specification of attention over a cache: O [B, H, M, DV] and LSE [B, H, M].

    Queries are Q [B, H, M, D]; token t of sequence b is row t % PAGE of page PAGES[b, t // PAGE] of KEYS [NP, HK, PAGE,
    D] and VALUES, and the sequence has LENGTHS[b] of them; `N` of a mod is that length. Rows without a token are not
    read.

    arguments: the kernel's values for the captured values of the mods, for lengths. scaled: KEYS and VALUES are 8-bit
    numbers, multiplied by KSCALE and VSCALE, [1, HK, 1] of heads or [NP, HK, PAGE] of tokens.
    """
    spec = bound_reads(spec)

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

    def sizes(drawn: Mapping[str, int]) -> dict[str, int]:
        B, page = min(drawn["B"], 3), drawn["CHUNK"] * (1 + drawn["PAGE"] % 3)
        MP = -(-min(LONGEST, 64 * (1 + drawn["MP"] % 7)) // page)
        return {
            "B": B,
            "BS": B,
            "HK": min(drawn["HK"], 3),
            "H": min(drawn["HK"], 3) * (1 + drawn["H"] % 5),
            "M": 1 + drawn["M"] % 20,
            "PAGE": page,
            "MP": MP,
            "NP": B * MP + 1,
            **({"SP": B * MP + 1, "SR": page} if drawn.get("TOKENS") else {"SP": 1, "SR": 1} if scaled else {}),
        }

    def inputs(sizes: Mapping[str, int], generator: torch.Generator) -> dict[str, Any]:
        B, longest = sizes["B"], sizes["MP"] * sizes["PAGE"]
        order = torch.randperm(sizes["NP"], generator=generator)  # no page belongs to two sequences
        lengths = torch.randint(longest + 1, (B,), generator=generator)
        lengths[0] = longest
        # queries before the first token, and sequences without tokens
        short = torch.randint(sizes["M"] + 1, (B,), generator=generator)
        lengths = torch.where(torch.rand(B, generator=generator) < 0.3, short.clamp(max=longest), lengths)
        captured = dict(arguments(Lengths(B, sizes["H"], sizes["HK"], sizes["M"], longest))) if arguments is not None else {}
        begun = torch.randperm(B, generator=generator)
        return {"PAGES": order[: B * sizes["MP"]].view(B, -1), "LENGTHS": lengths, "ORDER": begun, **captured}

    return FunctionSpecification(f"{spec.name}_cached", reference_scaled if scaled else reference, inputs, sizes)


__all__ = ["make_cached_specification"]
