"""Attention of 8-bit queries, keys and values: their scales, and calls with these.

A number times its scale is a query, key or value. Scales of queries and keys become factors of the score, before the
score_mod; those of values are an argument of the kernel, which multiplies O by them. O is bfloat16.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch.compiler import is_compiling

from ...caching import Memo
from ...spec.specification import lengths_of
from ..capture.attention_request import AttentionRequest, Mod, weighting_of
from ..capture.call_inputs import NARROW, check_device, check_options, check_tensors, word, wrong
from ..capture.dispatcher_calls import check_local, has_no_numbers, is_dispatched, wraps_tensors
from ..capture.kernel_operands import autocasts, output_for, without_room
from ..capture.symbolic_sizes import have_equal_sizes
from ..kernels.attention_kernel import Ready
from .block_masks import check_mask, get_mask_mod
from .dynamo_closures import read_mods
from .operator import define, restore_variant, sink_of
from .prepared_calls import prepare, run_warm

# of scales of heads: their product with a usual scale of scores is then known to be positive, and is no work for a pair
SMALLEST, USUAL = 2.0**-56, 2.0**-8
BLOCK = 128  # positions that share a scale, if there is one for each block
KNOWN_SCORES = 64
Granularity = Literal["tensor", "head", "block"]
Factor = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]  # of a batch entry, a head and a position
# a hit lets a call find what an earlier one with the same scales prepared
_SCORES: Memo[tuple[int, int, int, int, bool], tuple[Mod, object]] = Memo(
    "flex.scaled_scores",
    key="ids of the score_mod and of the scales, query heads of a key head, whether the scores' scale is usual",
    invalidation="never: an entry holds what its key names",
    limit=KNOWN_SCORES,
)


class Scales(NamedTuple):
    """The scales of queries, keys and values.

    Each is a number, or f32 [] for all, [B, heads] or, but of values, [B, heads, blocks of 128 positions].
    """

    query: torch.Tensor | float | None
    key: torch.Tensor | float | None
    value: torch.Tensor | float | None


def attend_scaled(request: AttentionRequest, scales: Scales) -> tuple[torch.Tensor, ...]:
    """Return O and LSE of a call with scales.

    Raises CuirError: U402 for a missing scale, U404, U407, U408, U413 for one that does not fit, U109 for inputs that
    are no 8-bit floats, U413 for what the kernel lacks, X109 for gradients, and the errors of other calls.
    """
    if autocasts(request.query):
        with torch.autocast(request.query.device.type, enabled=False):
            return attend_scaled(request, scales)
    check_local(request.query, request.key, request.value)
    check_options(request.scale, request.backend, request.verify)
    check_tensors(request.query, request.key, request.value, request.enable_gqa, NARROW)
    _check_scales(request, scales)
    _check_supported(request, scales)
    query, key, value = request[:3]
    scale = query.shape[3] ** -0.5 if request.scale is None else float(request.scale)
    for number in scales[:2]:
        if isinstance(number, (int, float)):
            scale *= number
    score_mod = _find_score(request.score_mod, scales, query.shape[1] // max(1, key.shape[1]), scale >= USUAL)
    scaled = request._replace(score_mod=score_mod, scale=scale, weighting=weighting_of("softmax", request.weighting.sink))
    of_values = _as_matrix(scales.value, query.device)
    if is_compiling() or any(is_dispatched(x) or wraps_tensors(x) for x in (query, key, value)) or has_no_numbers(query):
        return _run_in_graph(scaled, of_values)
    outputs = run_warm(*scaled[:5], scaled.key_of_options, scaled.weighting, of_values)
    if outputs is None:
        check_mask(scaled.block_mask, lengths_of(query, key))
        outputs = _prepare(scaled, get_mask_mod(scaled.block_mask)).with_value_scale(of_values)(query, key, value)
    return outputs


def _prepare(request: AttentionRequest, mask_mod: Mod | None) -> Ready:
    """Prepare a call. Raises CuirError X109 if a mod captures a tensor that requires a gradient."""
    ready = prepare(request, mask_mod)
    _refuse_gradients([t for t, _ in ready.learnable])
    return ready


def _refuse_gradients(tensors: list[torch.Tensor]) -> None:
    if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
        wrong("X109", "attention of 8-bit inputs has no gradients", "cuir.fp8_attention, of tensors of bfloat16, or torch.no_grad()")


def _check_supported(request: AttentionRequest, scales: Scales) -> None:
    normalize, sink, outputs, dropout = request.weighting
    if normalize != "softmax" or outputs or dropout:
        wrong("U413", "attention of 8-bit inputs is a softmax without dropout or further outputs", "tensors of bfloat16")
    if request.batch_invariant:
        wrong("U413", "batch_invariant is not there for 8-bit inputs", "tensors of bfloat16")
    _refuse_gradients([x for x in (*request[:3], *scales, sink) if isinstance(x, torch.Tensor)])


def _check_scales(request: AttentionRequest, scales: Scales) -> None:
    query, key = request.query, request.key
    for name, scale in scales._asdict().items():
        argument = f"{name[0]}_scale"
        if scale is None:
            wrong("U402", f"scales come together: `{argument}` is missing", f"{argument}=1.0 for numbers as they are")
        if not isinstance(scale, torch.Tensor):
            if isinstance(scale, bool) or not isinstance(scale, (int, float)) or not 0 < scale < math.inf:
                wrong("U413", f"`{argument}` must be a positive number or a tensor of float32, found {scale!r}")
            continue
        check_device(argument, scale, query)
        if scale.dtype != torch.float32:
            wrong("U404", f"`{argument}` must be float32, found {word(scale.dtype)}", f"{argument}.float()")
        heads, length = (query if name == "query" else key).shape[1:3]
        shapes = [(), (query.shape[0], heads), (query.shape[0], heads, -(-length // BLOCK))]
        if name == "value":  # a sum over keys has one scale
            del shapes[-1]
        if not any(len(s) == scale.dim() and have_equal_sizes(scale.shape, s) for s in shapes):
            wrong("U408", f"`{argument}` has the shape {' or '.join(str(list(s)) for s in shapes)}, found {list(scale.shape)}")


def _as_matrix(scale: torch.Tensor | float | None, device: torch.device) -> torch.Tensor:
    """Return scales of values as the kernel takes them: [1, 1], or [B, HK]."""
    if not isinstance(scale, torch.Tensor):
        return torch.full((1, 1), scale, dtype=torch.float32, device=device)  # type: ignore[arg-type]
    return scale.reshape(1, 1) if scale.dim() == 0 else scale.contiguous()


# ---- scores
def _find_score(score_mod: Mod | None, scales: Scales, group: int, usual: bool) -> Mod | None:
    """Return the score_mod of scaled products, the same object for the same scales."""
    if not any(isinstance(x, torch.Tensor) for x in scales[:2]):
        return score_mod  # numbers are factors of the scale
    if is_compiling():
        return make_scaled_score(score_mod, scales, group, usual)
    key = id(score_mod), id(scales.query), id(scales.key), group, usual
    entry = _SCORES.get(key)
    if entry is None:
        entry = _SCORES[key] = make_scaled_score(score_mod, scales, group, usual), (score_mod, scales)
    return entry[0]


def make_scaled_score(score_mod: Mod | None, scales: Scales, group: int, usual: bool) -> Mod:
    """Return the score_mod of products of numbers without their scales, of queries and keys.

    Args:
        group: query heads of a key head.
        usual: the scores' scale is at least USUAL.
    """
    of_queries, of_keys = _make_factor(scales.query, 1, usual), _make_factor(scales.key, group, usual)

    def scaled(score: torch.Tensor, b: torch.Tensor, h: torch.Tensor, q_idx: torch.Tensor, kv_idx: torch.Tensor) -> torch.Tensor:
        if of_queries is not None:
            score = score * of_queries(b, h, q_idx)
        if of_keys is not None:
            score = score * of_keys(b, h, kv_idx)
        return score if score_mod is None else score_mod(score, b, h, q_idx, kv_idx)

    return scaled


def _make_factor(scale: torch.Tensor | float | None, group: int, usual: bool) -> Factor | None:
    """Return the function that reads a scale, None for a number."""
    if not isinstance(scale, torch.Tensor):
        return None
    if scale.dim() == 3:
        return (lambda b, h, i: scale[b, h, i // BLOCK]) if group == 1 else (lambda b, h, i: scale[b, h // group, i // BLOCK])
    read = _make_read(scale, group)
    return (lambda b, h, i: read(b, h, i).clamp(min=SMALLEST)) if usual else read


def _make_read(scale: torch.Tensor, group: int) -> Factor:
    """Return the function that reads a scale of all, or of a head."""
    if scale.dim() == 0:
        return lambda b, h, i: scale
    return (lambda b, h, i: scale[b, h]) if group == 1 else (lambda b, h, i: scale[b, h // group])


# ---- in graphs
def _run_in_graph(request: AttentionRequest, of_values: torch.Tensor) -> tuple[torch.Tensor, ...]:
    mods = read_mods(request.query, get_mask_mod(request.block_mask), request.score_mod, request.weighting)
    if mods is None:
        wrong("U418", "a mod captures what an operator cannot hold", "capture numbers and tensors")
    _refuse_gradients(list(mods.captured))
    captured = [*mods.captured, *sink_of(request.weighting.sink, request.query.shape[1], request.query.device)]
    options = request.scale, request.enable_gqa, request.backend, request.verify
    return OPERATOR(request.query, request.key, request.value, of_values, captured, mods.handle, *options)


def _run(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    of_values: torch.Tensor,
    captured: list[torch.Tensor],
    handle: str,
    *options: object,
) -> tuple[torch.Tensor, ...]:
    variant = restore_variant(handle, captured)
    request = AttentionRequest(query, key, value, variant.score_mod, None, *options)  # type: ignore[arg-type]
    request = request._replace(weighting=variant.weighting)
    return _prepare(request, variant.mask_mod).with_value_scale(of_values)(query, key, value)


def _shapes(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: object) -> tuple[torch.Tensor, torch.Tensor]:
    check_tensors(query, key, value, True, NARROW)
    return without_room(output_for(query, value.shape[3]), query), query.new_empty(query.shape[:-1], dtype=torch.float32)


OPERATOR = define(
    "flex_attention_scaled",
    "Tensor query, Tensor key, Tensor value, Tensor value_scale, Tensor[] captured, str handle, float scale, bool enable_gqa, str backend, str verify",
    _run,
    _shapes,
)


# ---- quantisation
def quantize_fp8(x: torch.Tensor, per: Granularity = "head", dtype: torch.dtype = torch.float8_e4m3fn) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise queries, keys or values to 8-bit floats; return them and the scales that `flex_attention` takes.

    Args:
        x: [B, heads, length, head dim], of any floats.
        per: a scale for the whole "tensor", each "head" of a batch entry, or each "block" of 128 positions of it.
        dtype: torch.float8_e4m3fn or torch.float8_e5m2.

    The largest number with a scale becomes the largest one of the dtype. Raises CuirError U404, U405, U413.
    """
    if dtype not in NARROW:
        wrong("U404", f"dtype must be {' or '.join(map(word, NARROW))}, found {word(dtype)}")
    if x.dim() != 4:
        wrong("U405", f"`x` must have 4 dims (batch, heads, length, head dim), found shape {tuple(x.shape)}")
    if per not in ("tensor", "head", "block"):
        wrong("U413", f'per must be "tensor", "head" or "block", found {per!r}')
    largest = torch.finfo(dtype).max
    x = x.detach()
    if not x.numel():
        most = x.new_zeros({"tensor": (), "head": x.shape[:2], "block": (*x.shape[:2], -(-x.shape[2] // BLOCK))}[per])
    elif per == "block":
        rows = torch.nn.functional.pad(x.abs().amax(-1), (0, -x.shape[2] % BLOCK))
        most = rows.unflatten(2, (-1, BLOCK)).amax(-1)
    else:
        most = x.abs().amax((2, 3)) if per == "head" else x.abs().amax()
    scale = torch.where(most > 0, most.float() / largest, 1.0)
    of_rows = scale.repeat_interleave(BLOCK, 2)[:, :, : x.shape[2], None] if per == "block" else scale[..., None, None]
    return (x.float() / of_rows).clamp_(-largest, largest).to(dtype), scale


__all__ = ["USUAL", "Scales", "attend_scaled", "make_scaled_score", "quantize_fp8"]
