"""Causal attention of the last few tokens over keys and values in pages, in parts by the keys."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from cuir.spec import FunctionSpecification


def paged_decode() -> FunctionSpecification:
    """OS f32 [SP, B, H, M, D] and LS f32 [SP, B, H, M]: output and LSE over each of SP parts of a sequence's blocks of BN keys; 0 and -inf for a part without keys.

    Sequence b has len_k[b] keys, PAGE of them in page page[b, i] of K and V [NP, HK, PAGE, D]; query q is its token len_k[b] - M + q, and sees it and what
    comes before. G query heads share a key head, and a tile of 64 rows holds them: M <= 64 // G.
    """

    def reference(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, page: torch.Tensor, len_k: torch.Tensor, scale: float, SP: int, BN: int, G: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        B, H, M, D = q.shape
        parts = q.new_zeros(SP, B, H, M, D), q.new_full((SP, B, H, M), -torch.inf)
        for b, n in enumerate(len_k.tolist()):
            keys, values = (x[page[b].long()].transpose(0, 1).flatten(1, 2)[:, :n].repeat_interleave(G, 0) for x in (k, v))
            s = (q[b] @ keys.mT * scale).masked_fill(torch.arange(n) > torch.arange(M)[:, None] + (n - M), -torch.inf)
            blocks = -(-n // BN)
            for part in range(SP):
                first, last = (blocks * x // SP * BN for x in (part, part + 1))
                own = s[..., first:last]
                lse = own.logsumexp(-1)
                weights = (own - lse.masked_fill(lse == -torch.inf, 0.0)[..., None]).exp()
                parts[0][part, b], parts[1][part, b] = weights @ values[:, first:last], lse
        return parts

    def sizes(drawn: Mapping[str, int]) -> dict[str, int]:
        MP = 6 * drawn["MP"] + 7
        return {"H": drawn["HK"] * drawn["G"], "M": min(drawn["M"], 64 // drawn["G"]), "MP": MP, "NP": drawn["B"] * MP + 1}

    def inputs(sizes: Mapping[str, int], generator: torch.Generator) -> dict[str, torch.Tensor]:
        order = torch.randperm(sizes["NP"], generator=generator)  # no page is of two sequences
        most = sizes["MP"] * sizes["PAGE"]
        lengths = torch.randint(most + 1, (sizes["B"],), generator=generator)
        lengths[0] = most
        short = torch.randint(sizes["M"] + 1, (sizes["B"],), generator=generator)  # queries before the first token see no key
        lengths = torch.where(torch.rand(sizes["B"], generator=generator) < 0.3, short, lengths)
        return {"page": order[: sizes["B"] * sizes["MP"]].view(sizes["B"], -1), "len_k": lengths}

    return FunctionSpecification("paged_decode", reference, inputs, sizes, doc=paged_decode.__doc__ or "")
