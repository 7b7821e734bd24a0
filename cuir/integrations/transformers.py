"""`attn_implementation="cuir"` for Hugging Face transformers: its attention function and its masks.

`register` enters both there. A mask is transformers' own mask function, as the mask_mod of a BlockMask that computes
nothing; no tensor of all pairs is made.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TypedDict, Unpack

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from ..attn.capture.call_inputs import check_options, wrong
from ..attn.kernels.attention_kernel import Level
from ..caching import memoize
from ..flex import create_block_mask, flex_attention
from ..text.diagnostics import CuirError

NAME = "cuir"
INSTALL = "pip install cubridge[transformers]"
Mod = Callable[..., Tensor]


class LayerOptions(TypedDict, total=False):
    """Options of some models' layers, as transformers names them; others have no effect."""

    softcap: float | None
    s_aux: Tensor | None
    position_bias: Tensor | None
    is_causal: bool | None
    output_attentions: bool | None
    cache: object


def register(*, backend: str = "auto", verify: Level = "quick", batch_invariant: bool = False) -> None:
    """Register "cuir" as an attention implementation of transformers.

    Then `from_pretrained(..., attn_implementation="cuir")` or `model.set_attn_implementation("cuir")` selects it. A
    later call replaces the options of an earlier one.

    Args:
        backend: of all calls, as for `flex_attention`; "interpret" runs on any machine, slowly.
        verify: of all calls, as for `flex_attention`.
        batch_invariant: of all calls, as for `flex_attention`.

    Models that use transformers' attention interface are supported: any mask that it makes, grouped heads, windows,
    soft caps, sinks, position biases, prepared masks of 4 dims, dynamic and static caches; f16, bf16 and f32, head dims
    up to 576. Gradients are those of `flex_attention`: of query, key and value. `attention_dropout` drops weights while
    a model trains. A cache in pages of transformers' continuous batching is refused when the model is called (U413).
    Attention weights are never returned; `output_attentions=True` warns, as with sdpa. Raises CuirError U413 for
    options, U508 without transformers.
    """
    check_options(None, backend, verify)
    try:
        from transformers import AttentionInterface, AttentionMaskInterface, __version__
        from transformers.masking_utils import sdpa_mask
        from transformers.utils import logging
    except ImportError as error:
        raise CuirError.of("U508", f"transformers cannot be imported: {error}", hint=INSTALL) from None
    if "q_offset" not in inspect.signature(sdpa_mask).parameters:  # older ones give a mask function other arguments
        raise CuirError.of("U508", f"the mask interface of transformers {__version__} is another one", hint=INSTALL)
    warn = logging.get_logger(__name__).warning_once

    def attend(
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: Tensor | BlockMask | None = None,
        scaling: float | None = None,
        dropout: float = 0.0,
        **options: Unpack[LayerOptions],
    ) -> tuple[torch.Tensor, None]:
        """Compute attention of a model's layer; return O [B, M, H, D], and no weights.

        query is [B, H, M, D], key and value are [B, HK, N, D].
        """
        _check(options)
        if options.get("output_attentions"):
            warn('attn_implementation="cuir" does not give attention weights: set it to "eager" for `output_attentions=True`')
        causal, sink, bias = options.get("is_causal"), options.get("s_aux"), options.get("position_bias")
        if causal is None:
            causal = getattr(module, "is_causal", True)
        block_mask, biases = _masks(attention_mask, query, key, causal)
        if bias is not None:
            biases = (*biases, bias)
        o = flex_attention(
            query,
            key,
            value,
            _score_mod(options.get("softcap"), biases),
            block_mask,
            scaling,
            enable_gqa=True,
            backend=backend,
            verify=verify,
            sink=sink if sink is None or sink.dim() == 1 else sink.reshape(-1),
            dropout_p=dropout if module.training else 0.0,
            batch_invariant=batch_invariant,
        )
        return o.transpose(1, 2).contiguous(), None

    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, mask_for)


def mask_for(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | torch.Tensor = 0,
    kv_offset: int = 0,
    mask_function: Mod | None = None,
    attention_mask: torch.Tensor | None = None,
    allow_is_causal_skip: bool = True,
    device: torch.device | str = "cpu",
    **_: object,
) -> BlockMask:
    """Return the mask of one forward pass, for transformers' mask interface.

    It is a BlockMask [batch_size, 1, q_length, kv_length] that computes nothing.

    Args:
        q_offset, kv_offset: the first query's and the first key's index in the sequence, a tensor for a static cache.
        mask_function: mask_function(b, h, q_idx, kv_idx) sees tokens counted from the beginning of a sequence; causal
            by default.
        attention_mask: bool [batch_size, tokens], false for padding; tokens behind these are padding, too.
        allow_is_causal_skip: false where one token is decoded over a static cache.
    """
    # The graph of such a step is made once: its mask has one form from the first to the last step.
    fixed = isinstance(q_offset, torch.Tensor) or (q_length == 1 and not allow_is_causal_skip)
    mod = _causal if mask_function is None else mask_function
    padding = None if attention_mask is None else _padding(attention_mask, kv_length + kv_offset, fixed)
    if padding is not None:
        mod = _keep_both(mod, padding)
    if fixed or q_offset or kv_offset:
        mod = _shift(mod, _on(device, q_offset), _on(device, kv_offset))
    return create_block_mask(mod, batch_size, None, q_length, kv_length, device)


def _on(device: torch.device | str, offset: int | torch.Tensor) -> torch.Tensor:
    """Return an offset as a new tensor of 32 bits.

    A static cache increments its own in place before the layers ask for the mask, and another number would be traced
    into another graph. Of 32 bits no value needs a check before a kernel reads it.
    """
    if isinstance(offset, torch.Tensor):
        return offset.to(torch.int32, copy=True)
    return torch.full((), offset, dtype=torch.int32, device=device)


def _padding(tokens: torch.Tensor, length: int, fixed: bool) -> Mod | None:
    """Return a mask_mod of the keys that are no padding; None for all keys, unless its form is fixed.

    `tokens` [B, n], bool, are the first n of `length` tokens. Contiguous tokens become bounds on kv_idx, by which a
    kernel leaves out blocks without a table; the data are read for that once a mask.
    """
    n = tokens.shape[1]
    if not torch.compiler.is_compiling():
        count, first = tokens.sum(1), tokens.to(torch.int32).argmax(1)  # of equal ones argmax gives the first
        pieces = (tokens[:, 1:] & ~tokens[:, :-1]).sum(1) + tokens[:, 0]
        fewest, most = torch.stack((count.amin(), pieces.amax())).tolist()
        if fewest == n >= length and not fixed:
            return None
        if most <= 1:
            return _between(first, first + count)
    return _look_up_token(torch.nn.functional.pad(tokens, (0, max(0, length - n))))


def _causal(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
    return kv_idx <= q_idx


def _between(first: torch.Tensor, end: torch.Tensor) -> Mod:
    return lambda b, h, q_idx, kv_idx: (kv_idx >= first[b]) & (kv_idx < end[b])


def _look_up_token(tokens: torch.Tensor) -> Mod:
    return lambda b, h, q_idx, kv_idx: tokens[b, kv_idx]


def _keep_both(first: Mod, second: Mod) -> Mod:
    return lambda b, h, q_idx, kv_idx: first(b, h, q_idx, kv_idx) & second(b, h, q_idx, kv_idx)


def _shift(mod: Mod, queries: torch.Tensor, keys: torch.Tensor) -> Mod:
    return lambda b, h, q_idx, kv_idx: mod(b, h, q_idx + queries, kv_idx + keys)


def _check(options: Mapping[str, object]) -> None:
    """Raise CuirError U413 for a cache in pages."""
    if options.get("cache") is not None:
        wrong("U413", "the pages of transformers' continuous batching are not read", 'attn_implementation="sdpa" for generate_batch')


def _masks(mask: object, query: torch.Tensor, key: torch.Tensor, causal: bool) -> tuple[BlockMask | None, tuple[torch.Tensor, ...]]:
    """Return (block_mask, biases that are added to scores) for a layer's mask.

    This is our mask, another BlockMask, a prepared tensor, or None.
    """
    if isinstance(mask, BlockMask):
        return mask, ()
    B, M, N = query.shape[0], query.shape[2], key.shape[2]
    if mask is None:  # as with sdpa, of a model that makes no mask
        return (create_block_mask(_causal, None, None, M, N, query.device) if causal and M > 1 else None), ()
    if not isinstance(mask, torch.Tensor) or mask.dim() != 4:
        description = list(mask.shape) if isinstance(mask, torch.Tensor) else type(mask).__name__
        wrong("U412", f"a prepared attention_mask is a tensor [B, H, M, N] or a BlockMask, found {description}")
    mask = mask[..., :N]
    if mask.dtype != torch.bool:
        return None, (mask,)
    return create_block_mask(_read_prepared(mask), B, None if mask.shape[1] == 1 else query.shape[1], M, N, query.device), ()


def _read_prepared(mask: torch.Tensor) -> Mod:
    read = _reading(mask)
    return lambda b, h, q_idx, kv_idx: read(b, h, q_idx, kv_idx)


def _reading(x: torch.Tensor) -> Mod:
    """Return a function that reads an element of a tensor [B or 1, H or 1, M or 1, N]."""
    batches, heads, queries = (n > 1 for n in x.shape[:3])
    return lambda b, h, q_idx, kv_idx: x[b if batches else 0, h if heads else 0, q_idx if queries else 0, kv_idx]


def _score_mod(softcap: float | None, biases: tuple[torch.Tensor, ...]) -> Mod | None:
    """Return a score_mod with the soft cap, followed by the biases."""
    if not biases:
        return None if softcap is None else _cap_scores(softcap)
    capped, read = _cap_scores(softcap) if softcap is not None else None, tuple(_reading(x) for x in biases)

    def score_mod(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        score = score if capped is None else capped(score, b, h, q_idx, kv_idx)
        for bias in read:
            score = score + bias(b, h, q_idx, kv_idx)
        return score

    return score_mod


@memoize(64)
def _cap_scores(cap: float) -> Mod:
    """Return the one mod of a soft cap: calls with cached mods are the fast ones."""
    return lambda score, b, h, q_idx, kv_idx: cap * torch.tanh(score / cap)


__all__ = ["mask_for", "register"]
