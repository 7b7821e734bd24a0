"""The mask read out of a running kernel, exactly: with all products alike weights do not depend on K, and with one-hot V each output tells whether one key was kept.

Owns the probe; needs no splice points, so it reads programs from anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from ..calls.binding import TORCH
from ..calls.requirements import padded
from ..checking.checked import Checked
from ..interp import run
from ..spec.dropout import dropout_mask
from ..spec.functions import FunctionSpecification
from ..spec.specification import LENGTHS, Lengths, Specification
from ..syntax.nodes import Call, Name, Program
from ..syntax.walk import walk
from ..text.diagnostics import CuirError, Diagnostic, Note
from ..text.source import Span
from ..variants import captured_arguments
from .blame import find_stores
from .contracts import describe_difference, has_splice_points, result_span
from .evaluate import Evaluator, kernel_names
from .inputs import FunctionLaunch, function_launch, readable
from .lengths import from_case
from .numeric import with_note
from .problems import Case, dtype_of, head_dims, outputs

_READABLE = 2.0**-14  # a weight beside the largest of its query that half precision still shows
_VISIBLE = 2.0**-20  # an output that half precision still shows
_PRODUCT = {"softmax": 0.0, "sigmoid": 0.0, "relu": 1.0}  # of all queries and keys: one that gives a kept pair a weight


@dataclass(frozen=True)
class Readout:
    """Pairs that were read, and pairs whose weight is too small beside others to be seen (a steep score_mod)."""

    read: int
    hidden: int


def check_mask(program: Program, checked: Checked, spec: Specification, lengths: Lengths) -> Readout:
    """Reads the mask of batch 0 for every head and query, in one launch with a batch entry for each DV keys.

    Raises CuirError V305 with the first pair that differs from the specification's mask, or a fault of the program.
    """
    dtype, dims = TORCH[dtype_of(checked.consts)], head_dims(checked.consts)
    dim = dims[1]  # a column of V for each key
    passes = max(1, -(-lengths.N // dim))
    at = Lengths(passes, lengths.H, lengths.HK, lengths.M, lengths.N)
    wanted, visible = _expected(spec, at)
    if bool((wanted == wanted[:1]).all()):
        runs = [(at, list(range(passes)))]
    else:  # the mask depends on the batch: one launch for each DV keys, of batch 0
        at = Lengths(1, lengths.H, lengths.HK, lengths.M, lengths.N)
        wanted, visible = _expected(spec, at)
        runs = [(at, [p]) for p in range(passes)]
    kept, seen = torch.zeros(2, lengths.H, lengths.M, passes * dim, dtype=torch.bool)
    captured = captured_arguments(program, checked.origin, spec, at, consts=checked.consts)
    for sizes, windows in runs:
        kept_of = _launch(checked, spec, sizes, windows, dtype, dims, padded(checked, captured))
        for b, p in enumerate(windows):
            window = slice(p * dim, min(lengths.N, (p + 1) * dim))
            kept[:, :, p * dim : (p + 1) * dim] = kept_of[b]
            seen[:, :, window] = visible[b, :, :, window]  # a score_mod may give each batch weights of its own
    kept, seen = kept[:, :, : lengths.N], seen[:, :, : lengths.N]
    _agree(_Read(program, checked, spec.name, lengths, captured), kept[None], wanted[:1], seen[None])
    return Readout(int(seen.sum()), int((~seen).sum()))


def check_function_mask(program: Program, checked: Checked, spec: FunctionSpecification, lengths: Lengths) -> Readout | None:
    """Reads which keys each query attends to, of a kernel and of a function of the inputs, by the same probe: all products alike, one-hot V.

    None where that says nothing: an output that is not linear in V, as far as float64 shows. Raises CuirError V305, a fault of the program or of the specification.
    """
    dims = head_dims(checked.consts)
    dim = dims[1]
    case = from_case(checked, spec, Case("mask", lengths))
    given = function_launch(checked, spec, case)
    at = Lengths(*(case.sizes[n] for n in LENGTHS))
    if not _linear(checked, spec, given):
        return None
    read, weights = [], []
    for p in range(max(1, -(-at.N // dim))):
        now = given.fresh()
        probe = _probe(at, [p] * at.B, TORCH[dtype_of(checked.consts)], dims, 1.0)
        now.inputs = {**given.inputs, **padded(checked, probe), "scale": 1.0}
        try:
            run(checked, now.arguments())
        except CuirError as error:
            raise with_note(error, "while the mask was read out with products alike and one-hot V") from error
        read.append(now.outputs["O"] != 0)
        weights.append(spec.exact(readable(checked, now), list(now.before))["O"])
    kept, weight = (torch.cat(x, -1)[..., : at.N] for x in (read, weights))
    weight = weight.abs()
    wanted, most = weight != 0, weight.amax(-1, keepdim=True)  # NaN, and so not seen, where the function gives NaN
    seen = (most > 0) & (~wanted | (weight >= _READABLE * most) & (weight >= _VISIBLE))
    _agree(_Read(program, checked, spec.name, at, readable(checked, given)), kept, wanted, seen)
    return Readout(int(seen.sum()), int((~seen).sum()))


def _linear(checked: Checked, spec: FunctionSpecification, given: FunctionLaunch) -> bool:
    """Whether O is linear in V: tried with two random values of it in float64."""
    values = readable(checked, given)
    v = values["V"]
    assert isinstance(v, torch.Tensor)
    other = torch.randn(v.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    a, b, both, none = (
        spec.exact({**values, "V": x}, list(given.before)).get("O")
        for x in (v.double(), other, v.double() - 3 * other, torch.zeros_like(other))
    )
    if a is None or b is None or both is None or none is None:
        return False
    return torch.allclose(both, a - 3 * b, rtol=1e-9, atol=1e-9, equal_nan=True) and not bool(none.any() and none.nan_to_num().any())


@dataclass(frozen=True)
class _Read:
    """Whose mask was read out, and for which values of what its splice points read."""

    program: Program
    checked: Checked
    name: str
    at: Lengths
    values: Mapping[str, Any]

    def cause(self, pair: tuple[int, int, int, int], kept: bool) -> tuple[Span, list[Note]]:
        """The statement to look at, by what `keep` says of a pair of which the kernel attends to the wrong one."""
        kernel, funcs = self.checked.origin, self.program.funcs()
        stores = find_stores(self.checked, "O")
        if not has_splice_points(self.program):
            return stores[0] if stores else kernel.span, []
        try:
            says = bool(
                Evaluator(self.program, kernel_names(kernel, asdict(self.at), self.checked.consts, self.values)).call("keep", *pair)
            )
        except CuirError:
            return kernel.span, []
        if says == kept:
            return result_span(funcs["keep"]), [Note(f"`keep` is {str(says).lower()} for this pair")]
        if says:
            return result_span(funcs["kv_count"]), [Note("`keep` is true for this pair: its block is not visited, or its weight is lost")]
        body = [*(s for f in funcs.values() for s in f.body), *kernel.body]
        calls = [n for s in body for n in walk(s) if isinstance(n, Call) and n.func == Name("keep")]
        return calls[0].span if calls else result_span(funcs["kv_count"]), [
            Note("`keep` is false for this pair: its block is visited without the mask, or the mask is not applied")
        ]


def _agree(read: _Read, kept: torch.Tensor, wanted: torch.Tensor, seen: torch.Tensor) -> None:
    """Compares masks [B, H, M, N] where they are seen. Raises CuirError V305 with the first pair that differs."""
    differs = (kept != wanted) & seen
    if not differs.any():
        return
    b, h, q, k = torch.nonzero(differs)[0].tolist()
    also = bool(kept[b, h, q, k])
    hint = describe_difference((kept & seen)[b, h].numpy(), (wanted & seen)[b, h].numpy())
    where = f"head {h}" if not b else f"batch {b}, head {h}"
    message = f"query {q} {'also attends' if also else 'does not attend'} to key {k} ({where}); {int(differs.sum())} of {int(seen.sum())} pairs read differ from `{read.name}`"
    span, notes = read.cause((b, h, q, k), also)
    raise CuirError([Diagnostic("V305", message, span, (*notes, Note(f"read out with M={read.at.M}, N={read.at.N}")), hint)])


def _probe(at: Lengths, windows: list[int], dtype: torch.dtype, dims: tuple[int, int], product: float) -> dict[str, torch.Tensor]:
    """Q, K and V of which all products are alike; batch entry b has a 1 in V for each key of window windows[b], in a column of its own."""
    shapes, dim = ((at.H, at.M, dims[0]), (at.HK, at.N, dims[0]), (at.HK, at.N, dims[1])), dims[1]
    q, k, v = (torch.zeros(at.B, *shape, dtype=dtype) for shape in shapes)
    q[..., 0], k[..., 0] = product, 1.0
    for b, p in enumerate(windows):
        keys = torch.arange(p * dim, min(at.N, (p + 1) * dim))
        v[b, :, keys, keys - p * dim] = 1.0
    return {"Q": q, "K": k, "V": v}


def _expected(spec: Specification, at: Lengths) -> tuple[torch.Tensor, torch.Tensor]:
    """The mask, and for which pairs an output shows whether it is kept. bool [B, H, M, N]."""
    if spec.dropout is not None:
        wanted, visible = _expected(replace(spec, dropout=None), at)
        return wanted & dropout_mask(spec.dropout.seed_for(at), spec.dropout.p, at.B, at.H, at.M, at.N), visible
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
    checked: Checked,
    spec: Specification,
    at: Lengths,
    windows: list[int],
    dtype: torch.dtype,
    dims: tuple[int, int],
    captured: Mapping[str, Any],
) -> torch.Tensor:
    probe = padded(checked, _probe(at, windows, dtype, dims, _PRODUCT[spec.normalize]))
    poisoned = outputs(checked, probe["Q"])
    try:
        run(checked, {**probe, **poisoned, "scale": 1.0, **captured})
    except CuirError as error:
        raise with_note(error, "while the mask was read out with products alike and one-hot V") from error
    return poisoned["O"] != 0


def readout_lengths(BM: int, BN: int, marks: list[int], level: str) -> list[Lengths]:
    """Sizes with an edge of the mask inside: past the captured numbers if they are not too far."""
    near, far = ([m for m in marks if low < m <= high][:2] for low, high in ((0, 6 * BN), (6 * BN, 32 * BN)))
    lengths = [Lengths(1, 2, 1, BM + 21, 2 * BN + 13)]
    lengths += [Lengths(1, 1, 1, min(3 * BM, m + 45), m + 83) for m in near] + [Lengths(1, 1, 1, 37, m + 83) for m in far]
    if level == "full":
        lengths += [Lengths(1, 2, 2, 2 * BM + 3, BN + 1), Lengths(1, 1, 1, 5, 3 * BN + 7), Lengths(1, 1, 1, 3 * BM + 1, 3 * BN + 1)]
    return lengths
