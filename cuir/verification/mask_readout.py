"""Readout of the mask of a running kernel, exact for each pair.

With equal products the weights do not depend on K, and with one-hot V each output tells whether one key was kept. No
splice points are needed, so programs from anywhere can be read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from ..arguments.binding import TORCH
from ..arguments.requirements import pad_arguments
from ..attn.splicing.captured_arguments import compute_captured_arguments
from ..attn.verification.contracts import describe_difference, get_result_span, has_splice_points
from ..attn.verification.numeric import add_note
from ..attn.verification.problems import Case, get_dtype, get_head_dims, make_outputs, make_value_scales
from ..attn.verification.splice_evaluator import Evaluator, collect_kernel_values
from ..checking.checked import Checked
from ..interp import run
from ..spec.dropout_hash import dropout_mask
from ..spec.function_specification import FunctionSpecification
from ..spec.specification import LENGTHS, Lengths, Specification
from ..syntax.nodes import Call, Name, Program
from ..syntax.walk import walk
from ..text.diagnostics import CuirError, Diagnostic, Note
from ..text.source import Span
from .blame import find_stores
from .inputs import FunctionLaunch, collect_readable, make_function_launch
from .lengths import convert_case

_READABLE = 2.0**-14  # smallest weight, relative to the largest of its query, that half precision shows
_VISIBLE = 2.0**-20  # smallest output that half precision shows
# a product of all queries and keys that gives a kept pair a weight
_PRODUCT = {"softmax": 0.0, "sigmoid": 0.0, "relu": 1.0}


@dataclass(frozen=True)
class Readout:
    """Numbers of pairs that were read, and of pairs whose weight is too small to be seen.

    A steep score_mod makes weights small.
    """

    read: int
    hidden: int


def check_mask(program: Program, checked: Checked, spec: Specification, lengths: Lengths) -> Readout:
    """Read the mask of batch 0 for every head and query in one launch.

    It has a batch entry for each DV keys. Raises CuirError V305 with the first pair that differs from the
    specification's mask, or a fault of the program.
    """
    dtype, dims = TORCH[get_dtype(checked)], get_head_dims(checked)
    dim = dims[1]  # a column of V for each key
    passes = max(1, -(-lengths.N // dim))
    lengths_of_launch = Lengths(passes, lengths.H, lengths.HK, lengths.M, lengths.N)
    expected, visible = _compute_expected(spec, lengths_of_launch)
    if bool((expected == expected[:1]).all()):
        runs = [(lengths_of_launch, list(range(passes)))]
    else:  # the mask depends on the batch: one launch for each DV keys, of batch 0
        lengths_of_launch = Lengths(1, lengths.H, lengths.HK, lengths.M, lengths.N)
        expected, visible = _compute_expected(spec, lengths_of_launch)
        runs = [(lengths_of_launch, [p]) for p in range(passes)]
    mask, readable = torch.zeros(2, lengths.H, lengths.M, passes * dim, dtype=torch.bool)
    captured = compute_captured_arguments(program, checked.origin, spec, lengths_of_launch, consts=checked.consts)
    for sizes, windows in runs:
        masks = _run_probe(checked, spec, sizes, windows, dtype, dims, pad_arguments(checked, captured))
        for b, p in enumerate(windows):
            window = slice(p * dim, min(lengths.N, (p + 1) * dim))
            mask[:, :, p * dim : (p + 1) * dim] = masks[b]
            readable[:, :, window] = visible[b, :, :, window]  # a score_mod may give each batch weights of its own
    mask, readable = mask[:, :, : lengths.N], readable[:, :, : lengths.N]
    _compare(_Read(program, checked, spec.name, lengths, captured), mask[None], expected[:1], readable[None])
    return Readout(int(readable.sum()), int((~readable).sum()))


def check_function_mask(program: Program, checked: Checked, spec: FunctionSpecification, lengths: Lengths) -> Readout | None:
    """Read which keys each query attends to, of a kernel and of a function, by the same probe.

    None where the output is not linear in V, judged in float64, so that the probe does not apply. Raises CuirError
    V305, a fault of the program or of the specification.
    """
    dims = get_head_dims(checked)
    dim = dims[1]
    case = convert_case(checked, spec, Case("mask", lengths))
    launch = make_function_launch(checked, spec, case)
    admitted = Lengths(*(case.sizes[n] for n in LENGTHS))
    if not _is_linear(checked, spec, launch):
        return None
    read, weights = [], []
    for p in range(max(1, -(-admitted.N // dim))):
        probed = launch.fresh()
        probe = _make_probe(admitted, [p] * admitted.B, TORCH[get_dtype(checked)], dims, 1.0)
        probed.inputs = {**launch.inputs, **pad_arguments(checked, probe), "scale": 1.0}
        try:
            run(checked, probed.arguments())
        except CuirError as error:
            raise add_note(error, "while the mask was read out with products alike and one-hot V") from error
        read.append(probed.outputs["O"] != 0)
        weights.append(spec.exact(collect_readable(checked, probed), list(probed.before))["O"])
    mask, weight = (torch.cat(x, -1)[..., : admitted.N] for x in (read, weights))
    weight = weight.abs()
    # NaN, and so not readable, where the function gives NaN
    expected, largest = weight != 0, weight.amax(-1, keepdim=True)
    readable_pairs = (largest > 0) & (~expected | (weight >= _READABLE * largest) & (weight >= _VISIBLE))
    _compare(_Read(program, checked, spec.name, admitted, collect_readable(checked, launch)), mask, expected, readable_pairs)
    return Readout(int(readable_pairs.sum()), int((~readable_pairs).sum()))


def _is_linear(checked: Checked, spec: FunctionSpecification, launch: FunctionLaunch) -> bool:
    """Return whether O is linear in V, tried with two random values of it in float64."""
    values = collect_readable(checked, launch)
    v = values["V"]
    assert isinstance(v, torch.Tensor)
    second = torch.randn(v.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    a, b, pair, empty = (
        spec.exact({**values, "V": x}, list(launch.before)).get("O")
        for x in (v.double(), second, v.double() - 3 * second, torch.zeros_like(second))
    )
    if a is None or b is None or pair is None or empty is None:
        return False
    return torch.allclose(pair, a - 3 * b, rtol=1e-9, atol=1e-9, equal_nan=True) and not bool(empty.any() and empty.nan_to_num().any())


@dataclass(frozen=True)
class _Read:
    """The program whose mask was read, and the values of what its splice points read."""

    program: Program
    checked: Checked
    name: str
    at: Lengths
    values: Mapping[str, Any]

    def cause(self, pair: tuple[int, int, int, int], attends: bool) -> tuple[Span, list[Note]]:
        """Return the statement that may be wrong for a pair with the wrong mask, and notes on it.

        The value of `keep` for the pair tells whether `keep`, `kv_count` or the call of `keep` is to blame.

        Args:
            pair: batch entry, head, query and key.
            attends: the kernel attends to the key.
        """
        kernel, funcs = self.checked.origin, self.program.funcs()
        stores = find_stores(self.checked, "O")
        if not has_splice_points(self.program):
            return stores[0] if stores else kernel.span, []
        try:
            is_kept = bool(
                Evaluator(self.program, collect_kernel_values(kernel, asdict(self.at), self.checked.consts, self.values)).call(
                    "keep", *pair
                )
            )
        except CuirError:
            return kernel.span, []
        if is_kept == attends:
            return get_result_span(funcs["keep"]), [Note(f"`keep` is {str(is_kept).lower()} for this pair")]
        if is_kept:
            return get_result_span(funcs["kv_count"]), [
                Note("`keep` is true for this pair: its block is not visited, or its weight is lost")
            ]
        body = [*(s for f in funcs.values() for s in f.body), *kernel.body]
        calls = [n for s in body for n in walk(s) if isinstance(n, Call) and n.func == Name("keep")]
        return calls[0].span if calls else get_result_span(funcs["kv_count"]), [
            Note("`keep` is false for this pair: its block is visited without the mask, or the mask is not applied")
        ]


def _compare(read: _Read, mask: torch.Tensor, expected: torch.Tensor, readable_pairs: torch.Tensor) -> None:
    """Compare masks [B, H, M, N] where they are readable. Raises CuirError V305 with the first difference."""
    differs = (mask != expected) & readable_pairs
    if not differs.any():
        return
    b, h, q, k = torch.nonzero(differs)[0].tolist()
    also = bool(mask[b, h, q, k])
    hint = describe_difference((mask & readable_pairs)[b, h].numpy(), (expected & readable_pairs)[b, h].numpy())
    place = f"head {h}" if not b else f"batch {b}, head {h}"
    message = f"query {q} {'also attends' if also else 'does not attend'} to key {k} ({place}); {int(differs.sum())} of {int(readable_pairs.sum())} pairs read differ from `{read.name}`"
    span, notes = read.cause((b, h, q, k), also)
    raise CuirError([Diagnostic("V305", message, span, (*notes, Note(f"read out with M={read.at.M}, N={read.at.N}")), hint)])


def _make_probe(lengths: Lengths, windows: list[int], dtype: torch.dtype, dims: tuple[int, int], product: float) -> dict[str, torch.Tensor]:
    """Return Q, K and V with equal products and one-hot V, from whose output the mask can be read.

    Batch entry b has a 1 in V for each key of window windows[b], and each of these keys has a separate column.

    Args:
        dims: head dims of Q and K, and of V.
        product: value of every product of a query and a key.
    """
    shapes, dim = ((lengths.H, lengths.M, dims[0]), (lengths.HK, lengths.N, dims[0]), (lengths.HK, lengths.N, dims[1])), dims[1]
    q, k, v = (torch.zeros(lengths.B, *shape, dtype=dtype) for shape in shapes)
    q[..., 0], k[..., 0] = product, 1.0
    for b, p in enumerate(windows):
        keys = torch.arange(p * dim, min(lengths.N, (p + 1) * dim))
        v[b, :, keys, keys - p * dim] = 1.0
    return {"Q": q, "K": k, "V": v}


def _compute_expected(spec: Specification, lengths: Lengths) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the mask, and the pairs for which an output shows whether they are kept; bool [B, H, M, N]."""
    if spec.dropout is not None:
        expected, visible = _compute_expected(replace(spec, dropout=None), lengths)
        return expected & dropout_mask(spec.dropout.seed_for(lengths), spec.dropout.p, lengths.B, lengths.H, lengths.M, lengths.N), visible
    expected = spec.mask(lengths)
    if spec.score_mod is None and spec.normalize == "softmax" and spec.sink is None:
        return expected, torch.ones_like(expected)
    products = torch.full(expected.shape, _PRODUCT[spec.normalize], dtype=torch.float64)
    logits = replace(spec, mask_mod=None).scores(products, lengths)
    expected = expected & (logits > -math.inf)
    if spec.normalize != "softmax":
        return expected, spec.weights(logits, lengths)[0] >= _VISIBLE
    masked = logits.masked_fill(~expected, -math.inf)
    top = masked.amax(-1, keepdim=True) if lengths.N else logits
    readable = (logits - top >= math.log(_READABLE)) | (top == -math.inf)
    if spec.sink is not None:  # a pair beside all that are kept and the sink
        readable &= torch.exp(logits - torch.logaddexp(spec.weights(masked, lengths)[1][..., None], logits)) >= _VISIBLE
    return expected, readable


def _run_probe(
    checked: Checked,
    spec: Specification,
    lengths: Lengths,
    windows: list[int],
    dtype: torch.dtype,
    dims: tuple[int, int],
    captured: Mapping[str, Any],
) -> torch.Tensor:
    probe = pad_arguments(checked, _make_probe(lengths, windows, dtype, dims, _PRODUCT[spec.normalize]))
    poisoned = make_outputs(checked, probe["Q"])
    try:
        run(checked, {**probe, **poisoned, "scale": 1.0, **make_value_scales(checked, lengths), **captured})
    except CuirError as error:
        raise add_note(error, "while the mask was read out with products alike and one-hot V") from error
    return poisoned["O"] != 0


def choose_readout_lengths(BM: int, BN: int, marks: list[int], level: str) -> list[Lengths]:
    """Return sizes that contain an edge of the mask: past the captured numbers if they are not too large."""
    near, far = ([m for m in marks if low < m <= high][:2] for low, high in ((0, 6 * BN), (6 * BN, 32 * BN)))
    lengths = [Lengths(1, 2, 1, BM + 21, 2 * BN + 13)]
    lengths += [Lengths(1, 1, 1, min(3 * BM, m + 45), m + 83) for m in near] + [Lengths(1, 1, 1, 37, m + 83) for m in far]
    if level == "full":
        lengths += [Lengths(1, 2, 2, 2 * BM + 3, BN + 1), Lengths(1, 1, 1, 5, 3 * BN + 7), Lengths(1, 1, 1, 3 * BM + 1, 3 * BN + 1)]
    return lengths
