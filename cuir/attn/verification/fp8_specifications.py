"""Function specifications of the kernels of an 8-bit attention's gradients.

Inputs of products in 8 bits have scales, by which their numbers are multiplied. In float64 nothing else is rounded; in the
kernels' dtypes weights are rounded to 8 bits, and derivatives to 16.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ...spec.function_specification import FunctionSpecification
from ...spec.gradients import pad_rows, rows_of
from ...spec.specification import Lengths, Specification, lengths_of
from ..splicing.specification_copies import bound_reads

Arguments = Callable[[Lengths], Mapping[str, Any]]
SHIFT = 8  # of base-2 logits: kernels round weights times 2^8, so that small ones are normal numbers of 8 bits
LARGEST = 2.0**SHIFT


def make_fp8_gradients(spec: Specification, arguments: Arguments | None = None) -> FunctionSpecification:
    """Return the specification of the kernel of dQ, dK and dV.

    Q, K, V and dO are of 8 bits, QH and KH are queries and keys in 16 bits, by which derivatives are multiplied. Values have
    the scale VSCALE, f32 [1 or B, 1 or HK], and dO DOSCALE, f32 [B, HK]. Derivatives of scores are divided by QSCALE, f32 [B, H],
    and KSCALE, f32 [B, HK]. The kernel reads L, the base-2 logit of each query's LSE less 8, inf for one without keys, and
    DL = row_sum(O * dO) / 256, both f32 [B, H, MP]. It computes dK, dV and dQ / scale, the last two f32 and added up.

    arguments: the kernel's values for the captured values of the mods, for lengths.
    """
    spec = bound_reads(spec)

    def reference(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, do: torch.Tensor, scale: float, **others: Any
    ) -> dict[str, torch.Tensor]:
        halves, at = others["QH"].dtype, lengths_of(q, k)
        wide, narrow = torch.promote_types(halves, torch.float32), q.dtype
        q, k, v, do, qh, kh = (x.to(wide) for x in (q, k, v, do, others["QH"], others["KH"]))
        group, of_values = at.H // max(1, at.HK), others["VSCALE"].to(wide).expand(at.B, at.HK)
        v_scale, do_scale, k_scale = (
            x.to(wide).repeat_interleave(group, 1)[..., None, None] for x in (of_values, others["DOSCALE"], others["KSCALE"])
        )
        k, v, kh = (x.repeat_interleave(group, 1) for x in (k, v, kh))
        products = (q @ k.mT * scale).detach().requires_grad_()
        with torch.enable_grad():
            scores = spec.scores(products, at)
            finite = torch.where(scores > -torch.inf, scores, 0.0).sum() + 0.0 * products.sum()  # a score may not depend on its product
            (slopes,) = torch.autograd.grad(finite, products)
        logits, delta = (others[n][..., : at.M, None].to(wide) for n in ("L", "DL"))
        p = torch.exp2(torch.clamp(scores.detach() / math.log(2.0) - logits, max=SHIFT))
        passed = p / LARGEST * (do @ v.mT * (v_scale * do_scale) - delta * LARGEST)
        ds = slopes * passed / (k_scale * others["QSCALE"].to(wide)[..., None, None])
        p, ds = p.to(narrow).to(wide) / LARGEST, ds.to(halves).to(wide)
        dk, dv = (x.unflatten(1, (at.HK, group)).sum(2) for x in (ds.mT @ qh, p.mT @ (do * do_scale)))
        return {"dQ": ds @ kh, "dK": dk * scale, "dV": dv}

    def inputs(
        sizes: Mapping[str, int],
        generator: torch.Generator,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        do: torch.Tensor,
        scale: float,
    ) -> dict[str, Any]:
        at = lengths_of(q, k)
        scales = {
            "QSCALE": _draw_scales(generator, at.B, at.H),
            "KSCALE": _draw_scales(generator, at.B, at.HK),
            "VSCALE": _draw_scales(generator, sizes["VB"], sizes["VH"]),
            "DOSCALE": _draw_scales(generator, at.B, at.HK),
        }
        group = at.H // max(1, at.HK)
        keys, values = (x.double().repeat_interleave(group, 1) for x in (k, v))
        with torch.no_grad():
            weights, lse = spec.weights(spec.scores(q.double() @ keys.mT * scale, at), at)
            o = weights @ values * scales["VSCALE"].double().expand(at.B, at.HK).repeat_interleave(group, 1)[..., None, None]
        rows = compute_fp8_rows(o, do.double(), scales["DOSCALE"].double(), lse, sizes["MP"])
        return {**scales, **rows, **(arguments(at) if arguments is not None else {})}

    variant = spec if arguments is None else None
    return FunctionSpecification(
        f"{spec.name}_gradients_f8", reference, inputs, _choose_sizes, doc=make_fp8_gradients.__doc__ or "", variant=variant
    )


def make_fp8_rows() -> FunctionSpecification:
    """Return the specification of the kernel of L and DL, as `make_fp8_gradients` has them, and of zeros in dQ f32 [B, H, M, D].

    The kernel reads O [B, H, M, DV] in 16 bits, dO in 8, DOSCALE [B, HK] and LSE [B, H, M].
    """

    def reference(o: torch.Tensor, do: torch.Tensor, doscale: torch.Tensor, lse: torch.Tensor, MP: int, D: int) -> dict[str, torch.Tensor]:
        wide = torch.promote_types(lse.dtype, torch.float32)
        return compute_fp8_rows(o.to(wide), do.to(wide), doscale, lse, MP) | {"dQ": lse.new_zeros(*lse.shape, D)}

    return FunctionSpecification("attention_rows_f8", reference, _draw_row_scales, _choose_sizes, doc=make_fp8_rows.__doc__ or "")


def compute_fp8_rows(o: torch.Tensor, do: torch.Tensor, do_scale: torch.Tensor, lse: torch.Tensor, rows: int) -> dict[str, torch.Tensor]:
    """Compute L and DL, f32 or float64 [B, H, rows], of O and dO, which has a scale for each key head."""
    of_heads = do_scale.repeat_interleave(o.shape[1] // max(1, do_scale.shape[1]), 1)[..., None]
    delta = (o * do).sum(-1) * of_heads / LARGEST
    return {"L": rows_of(lse, rows) - SHIFT, "DL": torch.nn.functional.pad(delta, (0, rows - o.shape[2]))}


def _draw_scales(generator: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.exp2(torch.randn(shape, generator=generator) * 2)


def _draw_row_scales(sizes: Mapping[str, int], generator: torch.Generator) -> dict[str, torch.Tensor]:
    return {"DOSCALE": _draw_scales(generator, sizes["B"], sizes["HK"])}


def _choose_sizes(drawn: Mapping[str, int]) -> dict[str, int]:
    """Return lengths for those drawn: scales of values are of all, of batch entries, or of heads."""
    heads = {"H": max(1, drawn["H"] // max(1, drawn["HK"])) * drawn["HK"], "MP": pad_rows(drawn["M"])}
    of_values = {n: drawn[of] if drawn[n] % 2 else 1 for n, of in (("VB", "B"), ("VH", "HK")) if n in drawn}
    return heads | of_values


__all__ = ["LARGEST", "SHIFT", "compute_fp8_rows", "make_fp8_gradients", "make_fp8_rows"]
