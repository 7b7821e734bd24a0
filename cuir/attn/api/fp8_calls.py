"""`fp8_attention`: attention of bfloat16 tensors by products in 8 bits, with gradients.

Queries, keys, values and the gradient of O are quantised in the call, each head by its largest number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.autograd.function import FunctionCtx

from ...spec.specification import lengths_of
from ...syntax.caller_values import plain_number
from ..capture.attention_request import AttentionRequest, Level, Mod
from ..capture.call_inputs import check_options, check_tensors, word, wrong
from ..capture.dispatcher_calls import check_local
from ..capture.double_backward import differentiate_once
from ..capture.graph_breaks import break_graphs
from ..capture.kernel_operands import autocast, autocasts
from ..kernels.attention_kernel import Ready
from ..kernels.autograd import check_unwritten, versions_of
from ..kernels.fp8_gradients import WIDEST_GRADIENT, Fp8BackwardInputs, Fp8Gradients, QuantizedInputs
from .block_masks import check_mask, get_mask_mod
from .prepared_calls import prepare
from .scaled_calls import USUAL, Scales, make_scaled_score, quantize_fp8

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

KEPT = "gradients in 8 bits"


@break_graphs
def fp8_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: Mod | None = None,
    block_mask: BlockMask | None = None,
    scale: float | None = None,
    *,
    backend: str = "auto",
    verify: Level = "quick",
) -> torch.Tensor:
    """Compute attention by products of float8_e4m3fn numbers, for inference and training.

    Args:
        query: [B, H, M, D], bfloat16, with any strides. The call quantises it, as key, value and later the gradient of O.
        key: [B or 1, HK, N, D]. H is a multiple of HK.
        value: [B or 1, HK, N, DV]. D and DV are from 1 to 256, with gradients to 128.
        score_mod: as for `flex_attention`, of scores of quantised numbers.
        block_mask: as for `flex_attention`.
        scale: 1 / sqrt(D) by default, positive.
        backend: as for `flex_attention`.
        verify: as for `flex_attention`.

    Returns:
        O [B, H, M, DV], bfloat16. A query without keys has O = 0.

    Gradients pass through quantisation unchanged. O, dP = dO V^T and dV = P^T dO are products in 8 bits, dQ = dS K and dK = dS^T Q in
    bfloat16, of unquantised queries and keys. Captured tensors have no gradients (U410), nor is there a deterministic mode.
    Raises CuirError: U1xx, U4xx for arguments that do not fit, X1xx for mods, U5xx for a missing device or tool.
    """
    if autocasts(query):
        with torch.autocast(query.device.type, enabled=False):
            query, key, value = (autocast(x, query.device.type) for x in (query, key, value))
            return fp8_attention(query, key, value, score_mod, block_mask, scale, backend=backend, verify=verify)
    number = plain_number(scale)
    check_local(query, key, value)
    check_options(number, backend, verify)
    check_tensors(query, key, value, enable_gqa=True)
    if query.dtype != torch.bfloat16:
        wrong("U404", f"`query` must be bfloat16, found {word(query.dtype)}", "query.to(torch.bfloat16), and key and value alike")
    needed = torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value))
    if needed:
        _check_differentiable(query, value)
    key, value = (x.expand(query.shape[0], -1, -1, -1) for x in (key, value))
    with torch.no_grad():
        (q, q_scale), (k, k_scale), (v, v_scale) = (quantize_fp8(x) for x in (query, key, value))
        quantized = QuantizedInputs(q, k, v, q_scale, k_scale, v_scale)
        factor = query.shape[3] ** -0.5 if number is None else float(number)
        scaled = make_scaled_score(score_mod, Scales(q_scale, k_scale, None), query.shape[1] // max(1, key.shape[1]), factor >= USUAL)
        request = AttentionRequest(q, k, v, scaled, block_mask, factor, True, backend, verify)
        check_mask(block_mask, lengths_of(query, key))
        ready = prepare(request, get_mask_mod(block_mask))
    call = Fp8Call(ready, factor, backend == "interpret" or query.device.type == "cpu")
    if not needed:
        return call.launch(quantized)[0]
    call.check_captured()
    o: torch.Tensor = _Differentiable.apply(query, key, value, call, *quantized)
    return o


def _check_differentiable(query: torch.Tensor, value: torch.Tensor) -> None:
    """Raise CuirError U410 for a call that has no gradients."""
    if max(query.shape[3], value.shape[3]) > WIDEST_GRADIENT:
        dims = f"{query.shape[3]} and {value.shape[3]}"
        wrong("U410", f"gradients in 8 bits are for head dims to {WIDEST_GRADIENT}, found {dims}", "flex_attention, or torch.no_grad()")
    if torch.are_deterministic_algorithms_enabled() and not torch.is_deterministic_algorithms_warn_only_enabled():
        hint = "flex_attention, or torch.use_deterministic_algorithms(True, warn_only=True)"
        wrong("U410", "dQ of attention in 8 bits is added up in an open order, and torch.use_deterministic_algorithms asks for one", hint)


class Fp8Call(NamedTuple):
    """A call of quantised tensors, whose mods have a kernel.

    Attributes:
        ready: the forward launch.
        interprets: its kernels run in the interpreter.
    """

    ready: Ready
    scale: float
    interprets: bool

    def launch(self, quantized: QuantizedInputs) -> tuple[torch.Tensor, ...]:
        """Compute O and LSE."""
        return self.ready.with_value_scale(quantized.value_scale).outputs(*quantized[:3])

    def check_captured(self) -> None:
        """Raise CuirError U410 for a captured tensor that requires a gradient."""
        for t, name in self.ready.read:
            if t.requires_grad:
                hint = f"give {name}.detach(), or flex_attention"
                wrong("U410", f"`{name}`, which a mod captures, requires a gradient, and attention in 8 bits has none for it", hint)

    def differentiate(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        quantized: QuantizedInputs,
        outputs: tuple[torch.Tensor, torch.Tensor],
        do: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        """Compute dQ, dK and dV."""
        attention, data = self.ready.attention, self.ready.data
        assert attention is not None and data is not None
        gradients = attention.kept.get(KEPT)
        if not isinstance(gradients, Fp8Gradients):
            gradients = attention.kept[KEPT] = Fp8Gradients(attention)
        of_groups, do_scale = quantize_fp8(do.reshape(do.shape[0], key.shape[1], -1, do.shape[3]))
        inputs = Fp8BackwardInputs(query, key, quantized, *outputs, of_groups.reshape(do.shape), do_scale)
        return gradients.compute(inputs, data, self.scale, self.interprets)


class _Differentiable(torch.autograd.Function):
    """Attention in 8 bits with gradients of query, key and value."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, call: Fp8Call, *quantized: torch.Tensor
    ) -> torch.Tensor:
        o, lse = call.launch(QuantizedInputs(*quantized))
        ctx.save_for_backward(query, key, value, o, lse, *quantized)
        ctx.call, ctx.versions = call, versions_of(call.ready)  # type: ignore[attr-defined]
        return o

    @staticmethod
    def backward(ctx: FunctionCtx, do: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        call: Fp8Call = ctx.call  # type: ignore[attr-defined]
        check_unwritten(call.ready, ctx.versions)  # type: ignore[attr-defined]
        query, key, value, o, lse, *quantized = ctx.saved_tensors  # type: ignore[attr-defined]

        def first() -> tuple[torch.Tensor, ...]:
            return call.differentiate(query.detach(), key.detach(), QuantizedInputs(*quantized), (o.detach(), lse), do.detach())

        with torch.autocast(query.device.type, enabled=False):
            grads: Any = differentiate_once(first, (query, key, value, do))
        return (*grads, None, *(None for _ in quantized))


__all__ = ["fp8_attention"]
