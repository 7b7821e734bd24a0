"""Specifications of backward kernels of attention: gradients by autograd, and the rows that they read.

Evaluated in float64 or in the kernel's dtype.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..ops.meaning.tiles import round_operand, split_operands
from ..text.diagnostics import CuirError
from .function_specification import FunctionSpecification, Value
from .specification import Lengths, Specification, lengths_of

ROWS = 128  # the rows of L and DL are a multiple of it
COLUMNS = 16  # those of dQ that is laid out in blocks are
ABSENT = -1  # the length of a dim that a kernel lacks
Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Extra = Callable[[Lengths], Mapping[str, Value]]
Learned = Callable[[Lengths], tuple[Specification, Mapping[str, tuple[torch.Tensor, Sequence[int]]]]]


@dataclass(frozen=True)
class Arithmetic:
    """Arithmetic of a forward pass and its gradients.

    Attributes:
        separate_row_sum: Compute gradients as kernels, PyTorch's too, do: row_sum(O * dO) is separate from the product
            dO V^T, whose rounding to TF32 it does not share.
        product: Function of a product of matrices.
        o: The stored output from which row_sum(O * dO) is computed.
        exact_scores: Scores keep the precision of their products beyond the dtype of q; gradients are rounded.
    """

    separate_row_sum: bool = False
    product: Product = torch.matmul
    o: torch.Tensor | None = None
    exact_scores: bool = False


def gradients(
    spec: Specification,
    extra: Extra | None = None,
    learned: Learned | None = None,
    queries_alone: bool = False,
    keys_alone: bool = False,
    exact_scores: bool = False,
) -> FunctionSpecification:
    """Return the specification of a backward kernel of an attention variant.

    The kernel computes, for dO [B, H, M, DV]: dQ / scale [B, H, M, D], or [B, H, MD] as `lay_out_sums` has it (accumulated; none with QUERIES=False), dK [B,
    HK, N, D] and dV [B, HK, N, DV] (none with KEYS=False), and gradients of captured tensors (accumulated).
    The kernel reads L, each query's LSE as a base-2 logit, inf for one without keys and after the last, and DL =
    row_sum(O * dO), with PARTS=1 of dO rounded to TF32, both f32 [B, H, MP], MP the multiple of 128 from M on; with PREPARES=True it writes these, and
    reads FO, O in its dtype, and FL, LSE [B, H, M].

    Args:
        spec: the forward pass.
        extra: returns, for lengths, the additional inputs.
        learned: returns, for lengths, the specification over tensors that require a gradient, and by the kernel's name
            for its gradient each of these, with its shape there, at least the tensor's shape.
        queries_alone: the kernel computes only dQ, without the division by scale.
        keys_alone: the kernel never computes dQ.
        exact_scores: in half precision, too, the mods see scores that are not rounded.

    Raises:
        CuirError: X109 for weights that are not a softmax.
    """
    require_softmax(spec)

    def reference(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        do: torch.Tensor,
        scale: float,
        MP: int,
        QUERIES: bool = True,
        KEYS: bool = True,
        PARTS: int = 0,
        PREPARES: bool = False,
        FO: torch.Tensor | None = None,
        MD: int = ABSENT,
    ) -> dict[str, torch.Tensor]:
        q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
        variant, leaves = (spec, {}) if learned is None else learned(lengths_of(q, k))
        forward_values = FO if PREPARES else None
        o, lse = forward(variant, q, k, v, scale, Arithmetic(PARTS == 1, o=forward_values, exact_scores=exact_scores))
        tensors = [leaf for leaf, _ in leaves.values()]
        dq, dk, dv, *leaf_gradients = torch.autograd.grad(
            (o * do.to(o.dtype)).sum(), (q, k, v, *tensors), allow_unused=True, materialize_grads=True
        )
        if queries_alone:
            return {"dQ": dq} | (_rows(forward_values, do, lse, MP) if forward_values is not None else {})
        captured_gradients = {name: _pad_with_nan(x, shape) for (name, (_, shape)), x in zip(leaves.items(), leaf_gradients, strict=True)}
        sums = lay_out_sums(dq / scale, MD) if MD != ABSENT else dq / scale
        return captured_gradients | ({"dK": dk, "dV": dv} if KEYS else {}) | ({"dQ": sums} if QUERIES and not keys_alone else {})

    def inputs(
        sizes: Mapping[str, int],
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        do: torch.Tensor,
        scale: float,
        L: torch.Tensor | None = None,
    ) -> dict[str, Value]:
        with torch.no_grad():  # as the forward pass stores it, with the same scores: of TF32, or almost exact
            product = _tf32_product if sizes.get("PARTS") == 1 else torch.matmul
            o, lse = forward(spec, q.double(), k.double(), v.double(), scale, Arithmetic(product=product))
        forward_values = {"FO": o, "FL": lse} if L is None else _rows(o, do.double(), lse, sizes["MP"], sizes.get("PARTS", 0))
        return forward_values | dict(extra(lengths_of(q, k)) if extra is not None else {})

    prefix = "query_" if queries_alone else "key_" if keys_alone else ""
    variant = spec if extra is None and learned is None else None
    return FunctionSpecification(f"{spec.name}_{prefix}gradients", reference, inputs, _sizes, doc=gradients.__doc__ or "", variant=variant)


def require_softmax(spec: Specification) -> None:
    """Raise CuirError X109 for weights that are not a softmax."""
    if spec.normalize != "softmax":
        raise CuirError.of(
            "X109",
            f"there is a backward pass of a softmax, and `{spec.name}` has normalize={spec.normalize!r}",
            hint="call it under torch.no_grad(), or with detached tensors",
        )


def attention_rows() -> FunctionSpecification:
    """Return the specification of the rows that backward kernels read of each query.

    The kernel computes L and DL f32 [B, H, MP], and zeros in dQ f32 [B, H, M, D] or [B, H, MD] (not with
    QUERIES=False, nor in a kernel without dQ), from O and dO [B, H, M, DV] and LSE [B, H, M]. L is LSE as a base-2 logit, inf where that is -inf and after the last query; DL
    is row_sum(O * dO), 0 there, with PARTS=1 of dO rounded to TF32. MP is the multiple of 128 from M on.
    """

    def reference(
        o: torch.Tensor,
        do: torch.Tensor,
        lse: torch.Tensor,
        MP: int,
        D: int = ABSENT,
        QUERIES: bool = True,
        PARTS: int = 0,
        MD: int = ABSENT,
    ) -> dict[str, torch.Tensor]:
        rows = _rows(o, do, lse, MP, PARTS)
        if not QUERIES or D == MD == ABSENT:
            return rows
        return rows | {"dQ": o.new_zeros(*o.shape[:2], MD) if MD != ABSENT else o.new_zeros(*o.shape[:-1], D)}

    return FunctionSpecification("attention_rows", reference, sizes=_sizes, doc=attention_rows.__doc__ or "")


def forward(
    spec: Specification,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float,
    arithmetic: Arithmetic = Arithmetic(),
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute O and LSE, with gradients: in float64, or with products and weights in the dtype of q.

    The rest is in float32. A query without keys has O = 0, and no gradient.
    """
    product, o = arithmetic.product, arithmetic.o
    lengths = lengths_of(q, k)
    k, v = (x.repeat_interleave(lengths.H // max(1, lengths.HK), 1) for x in (k, v))
    wide = torch.promote_types(q.dtype, torch.float32)
    products = product(q, k.mT).to(wide)
    if arithmetic.exact_scores:
        products = products + (product(q.to(wide), k.mT.to(wide)) - products).detach()
    s = spec.scores(products * scale, lengths)
    is_empty = (s.detach() == -torch.inf).all(-1, keepdim=True)
    alive = torch.where(is_empty, 0.0, s)  # a softmax of only -inf is NaN, as is its gradient
    lse = alive.logsumexp(-1)
    if spec.sink is not None:
        sink = spec.sinks(lengths).to(s)[:, None]
        lse = torch.where(is_empty[..., 0], sink, torch.logaddexp(lse, sink))
    p = torch.where(is_empty, 0.0, torch.exp(alive - lse[..., None]))
    dead = is_empty[..., 0] if spec.sink is None else torch.zeros_like(is_empty[..., 0])
    shares = None if spec.dropout is None else spec.dropout.apply(torch.ones_like(p), lengths)
    if arithmetic.separate_row_sum or o is not None:
        out = _WithRowSum.apply(alive, p.detach().to(q.dtype), v, o, None if shares is None else shares.to(q.dtype))
    else:
        out = product((p if shares is None else p * shares).to(q.dtype), v)
    return out, lse.detach().masked_fill(dead, -torch.inf)


def _tf32_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Compute the product in float64 of the operands rounded from f32 to TF32."""
    x, y = split_operands(a.float(), b.float(), 1)
    return x.double() @ y.double()


class _WithRowSum(torch.autograd.Function):
    """O of weights [.., M, N] and values [.., N, DV]; its gradient is passed on to the logits.

    shares: the factors by which dropout multiplies weights.
    """

    @staticmethod
    def forward(
        ctx: Any, logits: torch.Tensor, p: torch.Tensor, v: torch.Tensor, stored: torch.Tensor | None, shares: torch.Tensor | None
    ) -> torch.Tensor:
        o = (p if shares is None else p * shares) @ v
        ctx.save_for_backward(p, v, o if stored is None else stored, shares)
        return o

    @staticmethod
    def backward(ctx: Any, do: torch.Tensor) -> tuple[torch.Tensor, None, torch.Tensor, None, None]:
        p, v, o, shares = ctx.saved_tensors
        wide = torch.promote_types(p.dtype, torch.float32)
        rows = (do.to(wide) * o.to(wide)).sum(-1, keepdim=True)
        passed, used = (do @ v.mT).to(wide), p
        if shares is not None:
            passed, used = passed * shares.to(wide), p * shares
        return p.to(wide) * (passed - rows), None, used.mT @ do, None, None


def rows_of(lse: torch.Tensor, rows: int) -> torch.Tensor:
    """Compute L from LSE [B, H, M]: [B, H, rows]."""
    return _pad_rows(torch.where(lse > -torch.inf, lse / math.log(2.0), torch.inf), rows, math.inf)


def _rows(o: torch.Tensor, do: torch.Tensor, lse: torch.Tensor, rows: int, parts: int = 0) -> dict[str, torch.Tensor]:
    """Compute L and DL.

    parts: 1 where dO V^T is a product in one number of TF32. Its errors by dO cancel in dO V^T - DL if DL has them, too: O is of
    rounded values already.
    """
    factor = round_operand(do.float()).to(do.dtype) if parts == 1 else do
    return {"L": rows_of(lse, rows), "DL": _pad_rows((o * factor).sum(-1), rows, 0.0)}


def pad_rows(M: int) -> int:
    """Return the number of rows of L and DL for M queries."""
    return -(-M // ROWS) * ROWS


def count_sums(M: int, D: int) -> int:
    """Return the length of dQ as `lay_out_sums` has it."""
    return pad_rows(M) * _pad_columns(D)


def lay_out_sums(dq: torch.Tensor, length: int) -> torch.Tensor:
    """Lay dQ [B, H, M, D] out as warps add it up: [B, H, length], in blocks of 8 x 8, whose lanes have neighbours."""
    B, H, M, D = dq.shape
    width = _pad_columns(D)
    padded = torch.nn.functional.pad(dq, (0, width - D, 0, length // width - M))
    blocks = padded.view(B, H, -1, 4, 2, width // 8, 8)  # rows by block, pair and place in it, columns by block
    return blocks.permute(0, 1, 2, 5, 4, 6, 3).reshape(B, H, length)


def gather_sums(sums: torch.Tensor, M: int, D: int) -> torch.Tensor:
    """Return dQ [B, H, M, D] of what `lay_out_sums` made of it."""
    B, H, length = sums.shape
    width = _pad_columns(D)
    blocks = sums.view(B, H, -1, width // 8, 2, 8, 4).permute(0, 1, 2, 6, 4, 3, 5)
    return blocks.reshape(B, H, length // width, width)[:, :, :M, :D]


def _pad_columns(D: int) -> int:
    return -(-D // COLUMNS) * COLUMNS


def _pad_with_nan(x: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Pad a gradient to the shape of the kernel's tensor by NaN; a scalar gets one dim.

    Elements that are NaN are not compared.
    """
    gradient = x if x.ndim else x[None]
    padded = gradient.new_full(tuple(shape), math.nan)
    padded[tuple(slice(n) for n in gradient.shape)] = gradient
    return padded


def _pad_rows(x: torch.Tensor, rows: int, value: float) -> torch.Tensor:
    return torch.nn.functional.pad(x, (0, rows - x.shape[-1]), value=value)


def _sizes(drawn: dict[str, int]) -> dict[str, int]:
    heads = {"H": max(1, drawn["H"] // max(1, drawn["HK"])) * drawn["HK"]} if "HK" in drawn else {}
    sums = {"MD": count_sums(drawn["M"], drawn["D"])} if "MD" in drawn else {}
    return {"MP": pad_rows(drawn["M"]), **heads, **sums}


__all__ = ["attention_rows", "forward", "gradients", "pad_rows", "require_softmax", "rows_of"]
