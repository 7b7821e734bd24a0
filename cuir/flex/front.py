"""`flex_attention`: FlexAttention's call, of dense and of nested tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.compiler import is_dynamo_compiling
from torch.nn.attention.flex_attention import AuxOutput, AuxRequest

from ..attn.api.dense_calls import run_new
from ..attn.api.prepared_calls import run_warm
from ..attn.api.scaled_calls import Scales, attend_scaled
from ..attn.capture.attention_request import SOFTMAX, AttentionRequest, Level, Weighting
from ..attn.capture.call_inputs import Seeded, make_scale_positive, prepare_dropout, wrong
from ..attn.capture.dispatcher_calls import is_dispatched
from ..attn.capture.kernel_operands import autocast, autocasts
from ..attn.outputs.output_table import REQUEST_FIELDS, describe_outputs
from ..attn.serving.varlen import attend_nested
from ..spec.specification import Normalize
from ..syntax.caller_values import plain_number

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

# six times as fast as a query by device
_ANY_AUTOCAST: Callable[[], bool] = getattr(torch._C, "_is_any_autocast_enabled", lambda: True)
# the outputs of AuxOutput's fields behind LSE
_NAMES_OF_FIELDS = tuple(dict(REQUEST_FIELDS).get(field, "") for field in AuxOutput._fields[1:])


def flex_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: Callable[..., Any] | None = None,
    block_mask: BlockMask | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: Mapping[str, object] | None = None,
    *,
    return_aux: AuxRequest | None = None,
    backend: str = "auto",
    verify: Level = "quick",
    normalize: Normalize = "softmax",
    sink: torch.Tensor | float | None = None,
    dropout_p: float = 0.0,
    dropout_seed: torch.Tensor | None = None,
    batch_invariant: bool = False,
    q_scale: torch.Tensor | float | None = None,
    k_scale: torch.Tensor | float | None = None,
    v_scale: torch.Tensor | float | None = None,
) -> Any:
    """Compute attention with a score_mod and a mask, as torch.nn.attention.flex_attention does.

    It runs on an expert kernel for Hopper, with gradients of query, key, value and of tensors that mods capture.

    Args:
        query: [B, H, M, D], f16, bf16 or f32. Strides are arbitrary: a tensor that no kernel can read in place is
            copied in the call (`packed_copies` counts these).
        key: [B, HK, N, D], or [1, HK, N, D] for all batches.
        value: [B, HK, N, DV], or [1, HK, N, DV] for all batches. D and DV are from 1 to 576.
        score_mod: score_mod(score, b, h, q_idx, kv_idx), the new score from scale * dot(q, k), in f32.
        block_mask: a result of `create_block_mask`, ours or PyTorch's.
        scale: 1 / sqrt(D) by default. If `scale <= 0`, query is copied on every call.
        enable_gqa: H may be a multiple of HK.
        return_lse: also return LSE.
        kernel_options: accepted for PyTorch's interface; without effect.
        return_aux: PyTorch's AuxRequest. The result is then (O, AuxOutput) with LSE and max_scores, the largest score
            of each query [B, H, M], f32, as requested.
        backend: "auto" runs on the Hopper GPU that holds the tensors; "interpret" runs the kernel in the interpreter,
            slowly, on any machine.
        verify: how much a new kernel is verified on the CPU before it first runs on a GPU: "quick", "full" or "off".
            The verdict is kept in the cache folder.
        normalize: "softmax", or beyond FlexAttention "sigmoid" or "relu" (see `Specification`).
        sink: a logit of each head, floats [H] or a number (see `Specification`).
        dropout_p: the probability that a weight becomes 0, as in scaled_dot_product_attention; the others are divided
            by 1 - dropout_p.
        dropout_seed: int32 [2], on the query's device; drawn from its default generator by default. `cuir.dropout_mask`
            returns the same mask as a tensor.
        batch_invariant: add up the keys of a query in an order that depends on them alone: neither on the batch nor on
            the other queries. Gradients are not included.
        q_scale: for float8_e4m3fn or float8_e5m2 inputs, as `cuir.quantize_fp8` makes them: a number, or f32 [] for
            all, [B, H], or [B, H, blocks of 128 queries]. A number times its scale is a query. O is then bfloat16.
        k_scale: a number, or f32 [], [B, HK], or [B, HK, blocks of 128 keys].
        v_scale: a number, or f32 [] or [B, HK].

    Returns:
        O [B, H, M, DV] with the order of query's strides, and with return_lse also LSE [B, H, M], f32, in natural
        logarithms. A query without keys has O = 0 and LSE = -inf, as in PyTorch.

    Mods of the same code share a kernel: captured tensors are launch arguments, and lengths are no part of the kernel.
    torch.compile takes the call as an operator, without a graph break; CUDA graphs capture it once it has been called.
    Raises CuirError: U4xx for arguments that do not fit, X1xx for mods that cannot be traced, U5xx for a missing device
    or tool, and the findings of verification.
    """
    aux_names: tuple[str, ...] = ()
    if return_aux is not None:
        aux_names = _list_requested(return_aux, return_lse)
    if q_scale is not None or k_scale is not None or v_scale is not None:
        weights = Weighting(normalize, plain_number(sink), aux_names, dropout_p != 0.0)
        scaled = AttentionRequest(
            query, key, value, score_mod, block_mask, plain_number(scale), enable_gqa, backend, verify, weights, None, batch_invariant
        )
        o, lse = attend_scaled(scaled, Scales(plain_number(q_scale), plain_number(k_scale), plain_number(v_scale)))
        if return_aux is not None:
            return o, AuxOutput(lse=lse if return_aux.lse else None)
        return (o, lse) if return_lse else o
    if _ANY_AUTOCAST() and autocasts(query):
        with torch.autocast(query.device.type, enabled=False):
            query, key, value = (autocast(x, query.device.type) for x in (query, key, value))
            return flex_attention(
                query,
                key,
                value,
                score_mod,
                block_mask,
                scale,
                enable_gqa,
                return_lse,
                kernel_options,
                return_aux=return_aux,
                backend=backend,
                verify=verify,
                normalize=normalize,
                sink=sink,
                dropout_p=dropout_p,
                dropout_seed=dropout_seed,
                batch_invariant=batch_invariant,
            )
    if scale is not None:
        query, scale = make_scale_positive(query, plain_number(scale))
    dropout: Seeded | None = None
    weighting = SOFTMAX
    if sink is not None or aux_names or normalize != "softmax" or dropout_p != 0.0 or dropout_seed is not None:
        dropout = None if dropout_p == 0.0 and dropout_seed is None else prepare_dropout(dropout_p, dropout_seed, query)
        weighting = Weighting(normalize, plain_number(sink), aux_names, dropout is not None)
    outputs: tuple[torch.Tensor, ...] | None = None
    dispatched = is_dynamo_compiling() or is_dispatched(query)
    if not dispatched:
        options = type(scale), scale, enable_gqa, backend, verify, batch_invariant
        outputs = run_warm(query, key, value, score_mod, block_mask, options, weighting, dropout)
    if outputs is None:
        request = AttentionRequest(
            query, key, value, score_mod, block_mask, scale, enable_gqa, backend, verify, weighting, dropout, batch_invariant
        )
        if dispatched and isinstance(query, torch.Tensor) and query.is_nested:
            if aux_names:
                wrong("U413", f"{describe_outputs(aux_names)} of nested tensors are not there", "AuxRequest(lse=True)")
            outputs = attend_nested(request)
        else:
            outputs = run_new(request, dispatched)
    if return_aux is None:
        return outputs[:2] if return_lse else outputs[0]
    fields = [outputs[1] if return_aux.lse else None]
    for name in _NAMES_OF_FIELDS:  # half the time of a comprehension
        fields.append(outputs[2 + aux_names.index(name)] if name in aux_names else None)
    return outputs[0], AuxOutput(*fields)


def _list_requested(return_aux: object, return_lse: bool) -> tuple[str, ...]:
    """Check what is requested beside O; return the names of further outputs. Raises CuirError U413."""
    if not isinstance(return_aux, AuxRequest):
        wrong("U413", f"return_aux must be an AuxRequest, found {return_aux!r}", "AuxRequest(lse=True)")
    if return_lse:
        wrong("U413", "return_lse and return_aux both say what is given beside O", "AuxRequest(lse=True)")
    names: tuple[str, ...] = ()
    for field, name in REQUEST_FIELDS:
        if getattr(return_aux, field, False):
            names += (name,)
    return names


__all__ = ["flex_attention"]
