"""A server's batch over a cache in pages, as calls of `attention_with_kv_cache` of one layer.

Servers give the tokens of all sequences one behind the other: first sequences that decode, then pieces of prompts.
Those that decode, with one number of queries each, run on the kernel for few queries, the others on the one for packed
queries. Data that a batch's layers share are computed once, in `Batch.of`; nothing waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..attn.kernels.attention_kernel import Level
from ..attn.kernels.decoding import ROWS
from ..attn.serving.cached import attention_with_kv_cache


@dataclass(frozen=True)
class Some:
    """Sequences of a batch.

    Attributes:
        lengths: int32 [B], their tokens in the cache.
        table: int32 [B, pages].
        starts: int32 [B + 1], the bounds of each one's queries, at most `longest`; None if each has `each` queries.
    """

    rows: slice
    lengths: torch.Tensor
    table: torch.Tensor
    each: int = 0
    starts: torch.Tensor | None = None
    longest: int = 0


@dataclass(frozen=True)
class Batch:
    """The sequences that decode, and the others.

    `causal` says that a query sees no token behind its own.
    """

    parts: tuple[Some, ...]
    causal: bool = True

    @classmethod
    def of(
        cls,
        starts: torch.Tensor,
        counts: list[int],
        lengths: torch.Tensor,
        table: torch.Tensor,
        rows: int,
        heads: int,
        causal: bool = True,
        invariant: bool = False,
    ) -> Batch:
        """Divide a batch.

        Sequences without a query at the end of a batch of which all others decode are padding: they are treated as
        such, as far as there are rows for them.

        Args:
            starts: int32 [B + 1], the bounds of each sequence's queries.
            counts: how many queries each has, on the host.
            lengths: int32 [B], tokens in the cache, with new ones.
            table: int32 [B, pages].
            rows: rows of queries, with those that pad the batch.
            heads: query heads of a key head.
            invariant: run all sequences on one kernel, so that a token's bits do not depend on who decodes.
        """
        each = counts[0] if counts and counts[0] * heads <= ROWS and not invariant else 0
        decoding = next((i for i, n in enumerate(counts) if n != each), len(counts)) if each else 0
        if each and not any(counts[decoding:]):
            decoding = min(len(counts), rows // each)
        front, parts = decoding * each, list[Some]()
        if decoding:
            parts.append(Some(slice(0, front), lengths[:decoding], table[:decoding], each))
        if any(counts[decoding:]):
            parts.append(
                Some(
                    slice(front, rows),
                    lengths[decoding:],
                    table[decoding:],
                    0,
                    starts[decoding:] - front if front else starts,  # a CUDA graph reads the server's own tensor
                    max(counts[decoding:]),
                )
            )
        return cls(tuple(parts), causal)


@dataclass(frozen=True)
class Rules:
    """A layer's modifications of its scores, as for `flex_attention`.

    They are made once a layer, as mods have capture keys by what they are.
    """

    score_mod: Callable[..., torch.Tensor] | None = None
    mask_mod: Callable[..., torch.Tensor] | None = None
    sink: torch.Tensor | None = None


@dataclass
class CallOptions:
    """The options of all calls, as for `attention_with_kv_cache`."""

    backend: str = "auto"
    verify: Level = "quick"
    batch_invariant: bool = False


def rules_of(
    softcap: float = 0.0, slopes: torch.Tensor | None = None, window: int | None = None, sink: torch.Tensor | None = None
) -> Rules:
    """Make the rules of a layer.

    Args:
        softcap: scores become cap * tanh(score / cap), 0 for none.
        slopes: f32 [H], of ALiBi.
        window: of the tokens up to its own, a query sees the last so many.
        sink: f32 [H].
    """

    def score_mod(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor, *, M: Tensor, N: Tensor) -> Tensor:
        if softcap:
            score = softcap * torch.tanh(score / softcap)
        return score if slopes is None else score + slopes[h] * (kv_idx - (q_idx + (N - M)))

    return Rules(score_mod if softcap or slopes is not None else None, None if window is None else _last(window), sink)


def _last(window: int) -> Callable[..., Tensor]:
    def mask_mod(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor, *, M: Tensor, N: Tensor) -> Tensor:
        return kv_idx > q_idx + (N - M) - window

    return mask_mod


def attend(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    batch: Batch,
    rules: Rules,
    scale: float,
    out: torch.Tensor,
    options: CallOptions,
) -> None:
    """Compute attention of a batch's queries [rows, H, D] over pages, into out [rows, H, DV].

    The pages are [NP, HK, page size, D] and [NP, HK, page size, DV]. Rows of no sequence are undefined. Raises
    CuirError as `attention_with_kv_cache`.
    """
    for part in batch.parts:
        queries = q[part.rows]
        o = attention_with_kv_cache(
            queries if part.starts is not None else queries.unflatten(0, (-1, part.each)),
            k_cache,
            v_cache,
            cache_seqlens=part.lengths,
            page_table=part.table,
            layout="HND",
            cu_seqlens_q=part.starts,
            max_seqlen_q=part.longest if part.starts is not None else None,
            score_mod=rules.score_mod,
            block_mask=rules.mask_mod,
            causal=batch.causal,
            scale=scale,
            sink=rules.sink,
            backend=options.backend,
            verify=options.verify,
            batch_invariant=options.batch_invariant,
        )
        out[part.rows] = o if part.starts is not None else o.flatten(0, 1)


__all__ = ["Batch", "CallOptions", "Rules", "Some", "attend", "rules_of"]
