"""Prepared calls: the lookup of the kernel for a call's mods, and the calls that need nothing else."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch

from ...caching import Memo
from ...runtime.garbage_collection import without_full_collections
from ...spec.specification import Specification, lengths_of
from ...syntax.printer import show
from ...text.diagnostics import CuirError
from ..capture.attention_request import SOFTMAX, AttentionRequest, Level, Mod, Variant, Weighting
from ..capture.call_inputs import Seeded, check_sink, check_wrapped, dtype_of, need_warm, parts_for, precision, stand_for_others
from ..capture.capture_keys import CaptureKey, MutationGuard
from ..capture.first_call_progress import Progress
from ..kernels.attention_kernel import Attention, Ready, make_attention, name_of, trace_by_key
from ..kernels.card_kernels import WIDEST, Kind, check_invariant, choose_target, has_kernel
from ..kernels.decoding import runs_on_decode_kernel
from ..kernels.experts import Form
from ..outputs.output_table import can_merge
from ..splicing.splice import TransferResult
from ..tracing.read_ranges import trace_without_clashes
from ..tracing.traced_result import Traced
from .materialised_block_masks import is_materialised, mask_mod_from_blocks, warm

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

KNOWN_MODS = 256
KNOWN_CALLS = 256  # signatures of one pair of mods


@dataclass(frozen=True)
class KnownAttention:
    """The attention of some mods.

    Attributes:
        transferred: the transfer with these mods' numbers, and no values in place of the tensors that they capture.
        places: (index among the captured parameters, index among the mods' tensors) of each captured tensor.
        whole: the walk of the mods reaches all captured tensors. Otherwise no call may be cached, as nothing would
            notice another tensor in the place of one.
    """

    attention: Attention
    transferred: TransferResult
    places: tuple[tuple[int, int], ...]
    whole: bool

    def data(self, capture_key: CaptureKey) -> TransferResult:
        """Return the transfer with the tensors that these mods capture."""
        if not self.places:
            return self.transferred
        captured = list(self.transferred.captured)
        for parameter, place in self.places:
            captured[parameter] = captured[parameter].with_value(capture_key.tensors[place])
        return self.transferred.with_captured(tuple(captured))


@dataclass
class WarmCalls:
    """Cached calls of the same mods, valid while a guard holds."""

    guard: MutationGuard
    calls: dict[Hashable, Ready] = field(default_factory=dict)
    last: tuple[Hashable, Ready] | None = None  # options of the last call, and its prepared launch


# a hit saves tracing
_ATTENTIONS: Memo[Hashable, KnownAttention] = Memo(
    "flex.known_attentions",
    key="structure and numbers of the mods' capture key, dtype, head dims, kernel, level of verification",
    invalidation="never: captured tensors are taken from each call's capture key",
    limit=KNOWN_MODS,
)
# a hit saves the transfer
_TRACED: Memo[Hashable, Attention] = Memo(
    "flex.transferred_attentions",
    key="text of the traces, their parameters, structure of the mods, dtype, head dims, kernel, level of verification",
    invalidation="never: a pure function of its key",
    limit=KNOWN_MODS,
)
# a hit saves all checks but the guard
_WARM: Memo[tuple[int, int, int], WarmCalls] = Memo(
    "flex.warm_calls",
    key="ids of the mods and of a sink; within an entry shapes, strides, dtypes and options of the call",
    invalidation="its guard: a mod died, or something that a mod captures was replaced or written to",
    limit=KNOWN_MODS,
    counted=False,
)
_LOCK = threading.RLock()
_EMPTY = torch.empty(0)
_FLOAT32, _is_grad_enabled = torch.float32, torch.is_grad_enabled  # found once: warm calls run them


def run_warm(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: Mod | None,
    block_mask: BlockMask | None,
    options: Hashable,
    weighting: Weighting,
    dropout: Seeded | torch.Tensor | None,
) -> tuple[torch.Tensor, ...] | None:
    """Return the outputs of a call if its signature is cached with the same mod objects, else None.

    Arguments are those of an `AttentionRequest`, which no warm call makes; `options` is its `key_of_options`.
    In place of dropout there may be a scale of 8-bit values.
    """
    sink, numbers = (None, ()) if weighting is SOFTMAX else (weighting.sink_tensor, _numbers(weighting))
    mask_mod: Mod | None = None
    mask: Hashable = ()
    try:
        if block_mask is not None:  # tested here, since a function's call takes longer
            result = warm(block_mask, query, key)
            if result is None:
                return None
            mask_mod, mask = result
        cache = dict.get(_WARM, (id(mask_mod), id(score_mod), id(sink)))
        if cache is None or not cache.guard.holds(mask_mod, score_mod, sink):
            return None
        parts = parts_for(query.dtype) if query.dtype is _FLOAT32 else 0
        options = options, mask, numbers, _is_grad_enabled(), parts
    except (AttributeError, RuntimeError, TypeError):
        return None  # no dense tensors: the checks say so
    last = cache.last
    if last is not None and last[0] == options:
        outputs = last[1].replay(query, key, value)  # errors of a launch must reach the caller
        if outputs is not None:
            return outputs
    try:
        signature = _signature(query, key, value)
        ready = cache.calls.get((signature, options))
    except (AttributeError, RuntimeError, TypeError):
        return None
    if ready is None:
        return None
    if not signature[-1]:  # one with gradients cannot be replayed
        cache.last = options, ready
    ready = ready.pin_if_capturing()
    if dropout is not None:
        ready = ready.with_value_scale(dropout) if isinstance(dropout, torch.Tensor) else ready.with_dropout(dropout)
    return ready(query, key, value)


def _options(request: AttentionRequest, mask: Hashable) -> Hashable:
    """Return the part of a call's cache key without its tensors and mods, as in `run_warm`.

    `mask` is the one that `standing.warm` returns.
    """
    return request.key_of_options, mask, _numbers(request.weighting), torch.is_grad_enabled(), parts_for(request.query.dtype)


def _signature(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> tuple[Hashable, ...]:
    """Return the properties of a call's tensors that its checks and its kernel depend on."""
    gradient = torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad)
    return (
        query.shape,
        query.stride(),
        query.dtype,
        query.device,
        type(key),
        key.shape,
        key.stride(),
        key.dtype,
        key.device,
        type(value),
        value.shape,
        value.stride(),
        value.dtype,
        value.device,
        gradient,
    )


def prepare(request: AttentionRequest, mask_mod: Mod | None) -> Ready:
    """Prepare a call whose tensors are checked: look up its attention and its captured values.

    `mask_mod` is that of its mask.
    """
    query, key, value, weighting, block_mask = request.query, request.key, request.value, request.weighting, request.block_mask
    check_sink(weighting.sink, query.shape[1])
    variant, traced = Variant(mask_mod, request.score_mod, weighting), None
    capture_key, form = variant.make_capture_key(), _form(request)
    if is_materialised(block_mask):
        need_warm("looking at the blocks of a mask")
        mask_mod, traced = _mask_mod_from_blocks(request, variant, capture_key, form)
        if mask_mod is not variant.mask_mod:
            variant, traced = variant._replace(mask_mod=mask_mod), None
            capture_key = variant.make_capture_key()
    attention = lookup_attention(variant, capture_key, form, request.verify, traced)
    data = attention.data(capture_key)
    device = query.device
    for place, p in enumerate(data.captured):
        if not p.constant and isinstance(p.value, torch.Tensor) and p.value.device != device:
            _check_captured(attention.attention.own_name(place), p.value, query)
    ready = attention.attention.ready(query, key, value, request.scale, request.backend, data)
    if not attention.whole:
        return replace(ready, steady=False)
    result = warm(block_mask, query, key)
    if result is not None:
        signature = _signature(query, key, value), _options(request, result[1])
        _keep_warm(ready, capture_key, (mask_mod, request.score_mod, weighting.sink_tensor), signature)
    return ready


def find_prepared(request: AttentionRequest, mask_mod: Mod | None) -> Ready | None:
    """Return what `prepare` cached for a call without block mask of the same mods, unchanged since; None if nothing."""
    sink = request.weighting.sink_tensor
    cache = dict.get(_WARM, (id(mask_mod), id(request.score_mod), id(sink)))
    if cache is None or not cache.guard.holds(mask_mod, request.score_mod, sink):
        return None
    ready = cache.calls.get((_signature(request.query, request.key, request.value), _options(request, ())))
    return None if ready is None else ready.pin_if_capturing()


def _mask_mod_from_blocks(request: AttentionRequest, variant: Variant, capture_key: CaptureKey, form: Form) -> tuple[Mod, Traced | None]:
    """Return a mask_mod equivalent to a mask's blocks, and the mods' trace if it is the mask's own.

    `variant` and `capture_key` are those of the mask's mods.
    """
    assert request.block_mask is not None
    traces: list[Traced] = []

    def alone() -> Traced:
        entry = _ATTENTIONS.get(_mods(capture_key, form, request.verify)) if capture_key.comparable else None
        if entry is not None:
            mask_trace = entry.attention.traced.of_mask(p.value for p in entry.data(capture_key).captured)
        else:
            traces.append(trace_by_key(_specification(variant), capture_key))
            mask_trace = traces[0].of_mask(p.value for p in traces[0].parameters)
        return trace_without_clashes(Specification("mask", variant.mask_mod)) if mask_trace is None else mask_trace

    with _LOCK:
        mod = mask_mod_from_blocks(request.block_mask, lengths_of(request.query, request.key), request.query.device, alone)
    return mod, traces[0] if traces else None


def _specification(variant: Variant) -> Specification:
    return variant.specification("_".join(name_of(mod) for mod in (variant.score_mod, variant.mask_mod) if mod is not None) or "full")


def _form(request: AttentionRequest) -> Form:
    query, key, value, weighting, invariant = request.query, request.key, request.value, request.weighting, request.batch_invariant
    target = choose_target(query.device, request.backend)
    if invariant:
        check_invariant(target, weighting.dropout)
    split = not invariant and runs_on_decode_kernel(query, key) and not weighting.dropout and can_merge(weighting.outputs)
    narrow = max(query.shape[3], value.shape[3]) <= WIDEST
    kind: Kind = "decode" if split and narrow and has_kernel(target.arch, "decode", dtype_of(query.dtype)) else "forward"
    return Form(query.dtype, query.shape[3], value.shape[3], kind, precision(query.dtype), target, invariant)


def _mods(capture_key: CaptureKey, form: Form, level: Level) -> Hashable:
    """Return the cache key of calls that share a kernel."""
    return capture_key.structure, capture_key.values, form, level


def _numbers(weighting: Weighting) -> Hashable:
    """Return weights without a sink that is a tensor, and with the kind of one that is a number."""
    normalize, sink, outputs, dropout = weighting
    if sink is None and not outputs and not dropout and normalize == "softmax":
        return ()
    return normalize, None if isinstance(sink, torch.Tensor) else (type(sink), sink), outputs, dropout


def _keep_warm(
    ready: Ready, capture_key: CaptureKey, mods: tuple[Mod | None, Mod | None, torch.Tensor | None], signature: Hashable
) -> None:
    """Cache a call under its mods and sink.

    The entry is evicted when one of them dies, so that nothing that they captured stays alive.
    """
    key = id(mods[0]), id(mods[1]), id(mods[2])
    if not MutationGuard.possible(capture_key, mods):
        _WARM.pop(key, None)
        return
    warm = _WARM.get(key)
    if warm is None or not warm.guard.holds(*mods):
        try:
            warm = WarmCalls(MutationGuard(capture_key, mods, lambda dead: _WARM.pop(key, None)))
        except TypeError:  # no weak references: an object with slots
            return
    if len(warm.calls) >= KNOWN_CALLS:
        warm.calls.clear()
    warm.calls[signature] = ready
    _WARM[key] = warm


def lookup_attention(variant: Variant, capture_key: CaptureKey, form: Form, level: Level, traced: Traced | None = None) -> KnownAttention:
    """Return the attention of a variant, cached by an earlier call or made now.

    Args:
        capture_key: that of the variant.
        traced: the trace of the mods, if the caller has it.

    Raises CuirError U403, X1xx.
    """
    if stand_for_others(capture_key.tensors):
        for x in capture_key.tensors:
            check_wrapped("what a mod captures", x)
    signature = _mods(capture_key, form, level)
    entry = _ATTENTIONS.get(signature) if capture_key.comparable else None
    if entry is not None:
        return entry
    if capture_key.comparable:
        need_warm("tracing a mod")
    with _LOCK, without_full_collections():
        spec = _specification(variant)
        traced = trace_by_key(spec, capture_key) if traced is None else traced
        attention = _attention(spec, traced, capture_key, form, level)
        places, captured = [], []
        for i, (kernel_parameter, parameter) in enumerate(zip(attention.transferred.captured, traced.parameters, strict=True)):
            at = next((j for j, t in enumerate(capture_key.tensors) if t is parameter.value), None)
            if at is not None:
                places.append((i, at))
            captured.append(replace(kernel_parameter, value=parameter.value if at is None else _EMPTY))
        whole = not any(isinstance(p.value, torch.Tensor) and p.value is not _EMPTY and not p.constant for p in captured)
        entry = KnownAttention(attention, replace(attention.transferred, captured=tuple(captured)), tuple(places), whole)
        if capture_key.comparable and whole:
            _ATTENTIONS[signature] = entry
    return entry


def _attention(spec: Specification, traced: Traced, capture_key: CaptureKey, form: Form, level: Level) -> Attention:
    """Return the attention of mods with this trace.

    It is cached from other mods of the same structure, or made now.
    """
    texts = (
        spec.normalize,
        *(() if spec.dropout is None else ("dropout",)),
        *(
            "" if e is None else show(e)
            for e in (traced.keep, traced.score, traced.factor, traced.sink, traced.mask, *(traced.marked or ()))
        ),
    )
    parameters = tuple((p.name, p.dtype, p.rank) for p in traced.parameters)
    key = texts, parameters, capture_key.structure, form, level
    attention = _TRACED.get(key)
    if attention is None:
        with Progress(spec.name).step("transfer to the expert kernel"):
            attention = make_attention(spec, capture_key, form, level, traced)
        _TRACED[key] = attention
    return attention


def _check_captured(name: str, tensor: torch.Tensor, query: torch.Tensor) -> None:
    """Check that a captured tensor is on the query's device.

    Raises CuirError U407.
    """
    # PyTorch lets a number be on the CPU
    if tensor.device != query.device and (tensor.ndim or tensor.device.type != "cpu"):
        raise CuirError.of(
            "U407",
            f"`{name}`, which a mod captures, must be on the device of `query`, {query.device}, found {tensor.device}",
            hint=f"{name}.to(query.device)",
        )


__all__ = ["KnownAttention", "lookup_attention", "prepare", "run_warm"]
