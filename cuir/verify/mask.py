"""The mask read out of a running kernel, exactly: with Q = 0 weights do not depend on K, and with one-hot V each output tells whether one key was kept.

Owns the probe; needs no splice points, so it reads programs from anywhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

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
    wanted, weights = _weights(spec, at)
    if bool((wanted == wanted[:1]).all()):
        runs = [(at, list(range(passes)))]
    else:  # the mask depends on the batch: one launch for each D keys, of batch 0
        at = Lengths(1, lengths.H, lengths.HK, lengths.M, lengths.N)
        wanted, weights = _weights(spec, at)
        runs = [(at, [p]) for p in range(passes)]
    kept = torch.zeros(lengths.H, lengths.M, passes * dim, dtype=torch.bool)
    for sizes, windows in runs:
        kept_of = _launch(program, checked, spec, sizes, windows, dtype, dim)
        for b, p in enumerate(windows):
            kept[:, :, p * dim : (p + 1) * dim] = kept_of[b]
    kept = kept[:, :, : lengths.N]
    wanted, weights = wanted[0], weights[0]
    largest = weights.masked_fill(~wanted, 0.0).amax(-1, keepdim=True) if lengths.N else weights
    readable = (weights >= _READABLE * largest) & (largest > 0) | (largest == 0)
    differs = (kept != wanted) & readable
    if differs.any():
        h, q, k = torch.nonzero(differs)[0].tolist()
        also = bool(kept[h, q, k])
        hint = describe_difference((kept & readable)[h].numpy(), (wanted & readable)[h].numpy())
        message = f"query {q} {'also attends' if also else 'does not attend'} to key {k} (head {h}); {int(differs.sum())} of {int(readable.sum())} pairs read differ from `{spec.name}`"
        raise CuirError([Diagnostic("V305", message, checked.origin.span, (Note(f"read out with M={lengths.M}, N={lengths.N}"),), hint)])
    return Readout(int(readable.sum()), int((~readable).sum()))


def _weights(spec: Specification, at: Lengths) -> tuple[torch.Tensor, torch.Tensor]:
    """The mask, and the weights of all pairs for Q = 0 relative to the largest of the query's kept ones."""
    wanted = spec.mask(at)
    if spec.score_mod is None:
        return wanted, torch.ones(wanted.shape)
    unmasked = Specification(spec.name, None, spec.score_mod, spec.captured)
    logits = unmasked.scores(torch.zeros(wanted.shape, dtype=torch.float64), at)
    top = logits.masked_fill(~wanted, -math.inf).amax(-1, keepdim=True) if at.N else logits
    return wanted & (logits > -math.inf), torch.exp(torch.clamp(logits - top.clamp(min=-1e300), max=0.0))


def _launch(
    program: Program, checked: Checked, spec: Specification, at: Lengths, windows: list[int], dtype: torch.dtype, dim: int
) -> torch.Tensor:
    q, k = torch.zeros(at.B, at.H, at.M, dim, dtype=dtype), torch.zeros(at.B, at.HK, at.N, dim, dtype=dtype)
    v = torch.zeros_like(k)
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
        raise with_note(error, "while the mask was read out with Q = 0 and one-hot V") from error
    return o != 0


def readout_lengths(BM: int, BN: int, marks: list[int], level: str) -> list[Lengths]:
    """Sizes with an edge of the mask inside: past the captured numbers if they are not too far."""
    near, far = ([m for m in marks if low < m <= high][:2] for low, high in ((0, 6 * BN), (6 * BN, 32 * BN)))
    found = [Lengths(1, 2, 1, BM + 21, 2 * BN + 13)]
    found += [Lengths(1, 1, 1, min(3 * BM, m + 45), m + 83) for m in near] + [Lengths(1, 1, 1, 37, m + 83) for m in far]
    if level == "full":
        found += [Lengths(1, 2, 2, 2 * BM + 3, BN + 1), Lengths(1, 1, 1, 5, 3 * BN + 7), Lengths(1, 1, 1, 3 * BM + 1, 3 * BN + 1)]
    return found
