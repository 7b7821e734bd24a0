"""The mask read out of a running kernel, exactly: with all products alike weights do not depend on K, and with one-hot V each output tells whether one key was kept.

Owns the probe; needs no splice points, so it reads programs from anywhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from ..bind import TORCH
from ..checked import Checked
from ..diagnostics import CuirError, Diagnostic, Note
from ..interp import run
from ..nodes import Program
from ..spec import Lengths, Specification
from ..transfer import captured_arguments
from .contracts import describe_difference
from .numeric import with_note
from .problems import dtype_of, outputs

_READABLE = 2.0**-14  # a weight beside the largest of its query that half precision still shows
_VISIBLE = 2.0**-20  # an output that half precision still shows
_PRODUCT = {"softmax": 0.0, "sigmoid": 0.0, "relu": 1.0}  # of all queries and keys: one that gives a kept pair a weight


@dataclass(frozen=True)
class Readout:
    """Pairs that were read, and pairs whose weight is too small beside others to be seen (a steep score_mod)."""

    read: int
    hidden: int


def check_mask(program: Program, checked: Checked, spec: Specification, lengths: Lengths) -> Readout:
    """Reads the mask of batch 0 for every head and query, in one launch with a batch entry for each D keys.

    Raises CuirError V305 with the first pair that differs from the specification's mask, or a fault of the program.
    """
    dtype, dim = TORCH[dtype_of(checked.consts)], int(checked.consts["D"])  # type: ignore[arg-type]
    passes = max(1, -(-lengths.N // dim))
    at = Lengths(passes, lengths.H, lengths.HK, lengths.M, lengths.N)
    wanted, readable = _expected(spec, at)
    if bool((wanted == wanted[:1]).all()):
        runs = [(at, list(range(passes)))]
    else:  # the mask depends on the batch: one launch for each D keys, of batch 0
        at = Lengths(1, lengths.H, lengths.HK, lengths.M, lengths.N)
        wanted, readable = _expected(spec, at)
        runs = [(at, [p]) for p in range(passes)]
    kept = torch.zeros(lengths.H, lengths.M, passes * dim, dtype=torch.bool)
    for sizes, windows in runs:
        kept_of = _launch(program, checked, spec, sizes, windows, dtype, dim)
        for b, p in enumerate(windows):
            kept[:, :, p * dim : (p + 1) * dim] = kept_of[b]
    kept = kept[:, :, : lengths.N]
    wanted, readable = wanted[0], readable[0]
    differs = (kept != wanted) & readable
    if differs.any():
        h, q, k = torch.nonzero(differs)[0].tolist()
        also = bool(kept[h, q, k])
        hint = describe_difference((kept & readable)[h].numpy(), (wanted & readable)[h].numpy())
        message = f"query {q} {'also attends' if also else 'does not attend'} to key {k} (head {h}); {int(differs.sum())} of {int(readable.sum())} pairs read differ from `{spec.name}`"
        raise CuirError([Diagnostic("V305", message, checked.origin.span, (Note(f"read out with M={lengths.M}, N={lengths.N}"),), hint)])
    return Readout(int(readable.sum()), int((~readable).sum()))


def _expected(spec: Specification, at: Lengths) -> tuple[torch.Tensor, torch.Tensor]:
    """The mask, and for which pairs an output shows whether it is kept. bool [B, H, M, N]."""
    wanted = spec.mask(at)
    if spec.score_mod is None and spec.normalize == "softmax" and spec.sink is None:
        return wanted, torch.ones_like(wanted)
    products = torch.full(wanted.shape, _PRODUCT[spec.normalize], dtype=torch.float64)
    logits = replace(spec, mask_mod=None).scores(products, at)
    wanted = wanted & (logits > -math.inf)
    if spec.normalize != "softmax":
        return wanted, spec.weights(logits, at)[0] >= _VISIBLE
    masked = logits.masked_fill(~wanted, -math.inf)
    top = masked.amax(-1, keepdim=True) if at.N else logits
    readable = (logits - top >= math.log(_READABLE)) | (top == -math.inf)
    if spec.sink is not None:  # a pair beside all that are kept and the sink
        readable &= torch.exp(logits - torch.logaddexp(spec.weights(masked, at)[1][..., None], logits)) >= _VISIBLE
    return wanted, readable


def _launch(
    program: Program, checked: Checked, spec: Specification, at: Lengths, windows: list[int], dtype: torch.dtype, dim: int
) -> torch.Tensor:
    q, k = torch.zeros(at.B, at.H, at.M, dim, dtype=dtype), torch.zeros(at.B, at.HK, at.N, dim, dtype=dtype)
    v = torch.zeros_like(k)
    q[..., 0], k[..., 0] = _PRODUCT[spec.normalize], 1.0
    for b, p in enumerate(windows):
        keys = torch.arange(p * dim, min(at.N, (p + 1) * dim))
        v[b, :, keys, keys - p * dim] = 1.0
    o, lse = outputs(q)
    try:
        run(
            checked,
            {
                "Q": q,
                "K": k,
                "V": v,
                "O": o,
                "LSE": lse,
                "scale": 1.0,
                **captured_arguments(program, checked.origin, spec, at, consts=checked.consts),
            },
        )
    except CuirError as error:
        raise with_note(error, "while the mask was read out with products alike and one-hot V") from error
    return o != 0


def readout_lengths(BM: int, BN: int, marks: list[int], level: str) -> list[Lengths]:
    """Sizes with an edge of the mask inside: past the captured numbers if they are not too far."""
    near, far = ([m for m in marks if low < m <= high][:2] for low, high in ((0, 6 * BN), (6 * BN, 32 * BN)))
    found = [Lengths(1, 2, 1, BM + 21, 2 * BN + 13)]
    found += [Lengths(1, 1, 1, min(3 * BM, m + 45), m + 83) for m in near] + [Lengths(1, 1, 1, 37, m + 83) for m in far]
    if level == "full":
        found += [Lengths(1, 2, 2, 2 * BM + 3, BN + 1), Lengths(1, 1, 1, 5, 3 * BN + 7), Lengths(1, 1, 1, 3 * BM + 1, 3 * BN + 1)]
    return found
