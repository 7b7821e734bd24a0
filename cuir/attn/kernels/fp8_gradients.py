"""Gradients of attention in 8 bits: the kernels, their settings and launches.

dO is quantised with a scale for each key head. Captured tensors have no gradients.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from ...checking.checked import Const
from ...spec.gradients import pad_rows
from ...spec.specification import lengths_of
from ...syntax.types import BF16, F8E4M3
from ...syntax.walk import names_read
from ..capture.call_inputs import need_gpu
from ..capture.kernel_operands import as_kernels_read, output_for, without_room
from ..splicing.derivative import dscore
from ..splicing.splice import TransferResult
from .autograd import join_arguments, make_sums
from .backward_kernels import KERNEL, NARROW_DIM, Attention, Part, Step
from .card_kernels import find_kernel
from .experts import origin_of
from .step_kernels import StepKernels
from .transfers import transfer_backward_to_expert

WIDEST_GRADIENT = NARROW_DIM


class QuantizedInputs(NamedTuple):
    """Queries, keys and values in 8 bits, with the scale of each head: f32 [B, H], [B, HK], [B, HK]."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    query_scale: torch.Tensor
    key_scale: torch.Tensor
    value_scale: torch.Tensor


class Fp8BackwardInputs(NamedTuple):
    """Tensors that a backward pass in 8 bits reads.

    Attributes:
        query: [B, H, M, D], bfloat16, before it was quantised; key [B, HK, N, D] alike.
        o: [B, H, M, DV], bfloat16, and lse, f32 [B, H, M]: the outputs of the forward pass.
        do: the gradient of O in 8 bits, and do_scale, f32 [B, HK].
    """

    query: torch.Tensor
    key: torch.Tensor
    quantized: QuantizedInputs
    o: torch.Tensor
    lse: torch.Tensor
    do: torch.Tensor
    do_scale: torch.Tensor


class Fp8Gradients:
    """The backward pass of an attention in 8 bits whose score has the scales of queries and keys as factors."""

    def __init__(self, attention: Attention):
        """Plan the pass.

        Raises CuirError X109 for a score whose derivative is unknown.
        """
        self.attention, fixed = attention, attention.fixed
        name = find_kernel(attention.arch, "keys", F8E4M3)
        # derivatives of a head are finite, but those that depend on the pair may not be where no pair is
        sloped = not names_read(dscore(*attention.traced.differentiated)).isdisjoint({"S", "q", "k"})
        setting: dict[str, Const] = {"SLOPES": sloped, "LATER": not sloped}
        transferred = transfer_backward_to_expert(name, attention.spec, attention.traced, ())
        finishing = origin_of(find_kernel(attention.arch, "keys", BF16))
        self.part = Part(attention, transferred, setting)
        steps = {
            "prepare": Step(origin_of(name), "prepare", {"D": fixed["D"], "DV": fixed["DV"]}),
            KERNEL: self.part.step,
            **{f"finish {n}": Step(finishing, "finish", {"T": BF16, "D": fixed[n]}) for n in ("D", "DV")},
        }
        self.kernels = StepKernels(attention.spec.name, steps, (self.part,))

    def compute(
        self, inputs: Fp8BackwardInputs, data: TransferResult, scale: float, interpret: bool
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Compute dQ, dK and dV, bfloat16.

        data: the captured values of the forward call's mods.
        """
        query, key, quantized = inputs[:3]
        at = lengths_of(query, key)
        gq, gk = output_for(query, query.shape[3]), output_for(key, key.shape[3])
        gv = output_for(key, quantized.value.shape[3])
        if not min(query.numel(), key.numel()):
            return gq.zero_(), gk.zero_(), gv.zero_()
        if not interpret:
            need_gpu(query.device, self.attention.arch)
        runs = self.kernels.interpreted if interpret else self.kernels.compiled
        q8, k8, v8, do, qh, kh, o = as_kernels_read(*quantized[:3], inputs.do, query, key, inputs.o)
        L, DL = (torch.empty(at.B, at.H, pad_rows(at.M), dtype=torch.float32, device=query.device) for _ in range(2))
        sums, value_sums = make_sums(query), make_sums(quantized.value).zero_()
        gradient = {"dO": do, "DOSCALE": inputs.do_scale, "L": L, "DL": DL}
        runs["prepare"].launch({"O": o, "LSE": inputs.lse, "dQ": sums, **gradient})
        scales = {"QSCALE": quantized.query_scale, "KSCALE": quantized.key_scale, "VSCALE": quantized.value_scale}
        captured = join_arguments(self.part.arguments(data, at, query.device))
        tensors = {"Q": q8, "K": k8, "V": v8, "QH": qh, "KH": kh, **scales, **gradient}
        runs[KERNEL].launch({**tensors, "dQ": sums, "dK": gk, "dV": value_sums, "scale": scale, **captured})
        runs["finish D"].launch({"dQ": sums, "GQ": gq, "scale": scale})
        runs["finish DV"].launch({"dQ": value_sums, "GQ": gv, "scale": 1.0})
        return without_room(gq, query), without_room(gk, key), without_room(gv, key)


__all__ = ["WIDEST_GRADIENT", "Fp8BackwardInputs", "Fp8Gradients", "QuantizedInputs"]
