"""Causal attention within packed documents, with a table of the key blocks that each tile of queries needs."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from cuir.spec import FunctionSpecification


def causal_document_spans(length: int = 150) -> FunctionSpecification:
    """O and LSE of `causal_document` for documents `doc` [B, N] of up to `length` tokens; `span` i32 [B, MT, 3] gives for each tile of BM queries the first
    block of BN keys that it needs, and the first and last + 1 of those whose pairs are all kept. M <= N."""

    def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, doc: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        M, N, group = q.shape[2], k.shape[2], q.shape[1] // k.shape[1]
        keep = (doc[:, :M, None] == doc[:, None]) & (torch.arange(N) <= torch.arange(M)[:, None])
        s = (q @ k.repeat_interleave(group, 1).mT * scale).masked_fill(~keep[:, None], -torch.inf)
        return s.softmax(-1) @ v.repeat_interleave(group, 1), s.logsumexp(-1)

    def sizes(drawn: Mapping[str, int]) -> dict[str, int]:
        M = min(drawn["M"], drawn["N"])
        return {"M": M, "MT": -(-M // drawn["BM"])}

    def inputs(sizes: Mapping[str, int], generator: torch.Generator) -> dict[str, torch.Tensor]:
        B, M, N, BM, BN = (sizes[n] for n in ("B", "M", "N", "BM", "BN"))
        ends = torch.randint(1, length + 1, (B, N), generator=generator).cumsum(1)
        doc = torch.searchsorted(ends, torch.arange(N).expand(B, N).contiguous(), right=True)
        span = torch.zeros(B, sizes["MT"], 3, dtype=torch.int32)
        for b in range(B):
            for m in range(sizes["MT"]):
                last = min(M, m * BM + BM) - 1
                first = int((doc[b] == doc[b, m * BM]).nonzero()[0]) // BN
                one = doc[b, m * BM] == doc[b, last]  # then blocks behind the document's start and before the first query are kept whole
                start = -(-int((doc[b] == doc[b, last]).nonzero()[0]) // BN)
                end = max(start, (m * BM + 1) // BN) if one else start
                span[b, m] = torch.tensor([first, start if end > start else first, end if end > start else first])
        return {"doc": doc, "span": span}

    return FunctionSpecification("causal_document_spans", reference, inputs, sizes, doc=causal_document_spans.__doc__ or "")
