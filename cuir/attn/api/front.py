"""`flex_attention`: FlexAttention's call, and the lookup of the kernel for a call's mods."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch.compiler import is_compiling
from torch.nn.attention.flex_attention import AuxOutput, AuxRequest

from ...caching import Memo
from ...spec.dropout_hash import Dropout
from ...spec.specification import Normalize, Specification, lengths_of
from ...syntax.plain_numbers import plain_number
from ...syntax.printer import show
from ...text.diagnostics import CuirError
from ..capture.call_inputs import (
    Seeded,
    check_differentiable,
    check_options,
    check_ranks,
    check_sink,
    check_tensors,
    check_wrapped,
    dtype_of,
    make_scale_positive,
    need_warm,
    parts_for,
    precision,
    prepare_dropout,
    stand_for_others,
    wrong,
)
from ..capture.dispatched import check_local, has_no_numbers, is_dispatched
from ..capture.first_call_progress import Progress
from ..capture.mods import CaptureKey, MutationGuard, make_capture_key
from ..capture.packing import autocast, autocasts
from ..kernels.decoding import runs_on_decode_kernel
from ..kernels.experts import Kind
from ..kernels.kernels import Attention, Level, Ready, make_attention, name_of, traced_with
from ..splicing.splice import TransferResult
from ..tracing.read_ranges import trace_without_clashes
from ..tracing.traced import Traced
from . import operator
from .made_inside import read_mods
from .masks import LazyBlockMask, check_mask, get_mask_mod
from .operator import OPERATOR, WITH_MAX_SCORES, sink_of
from .standing import MASKS_ARE_CONSTANTS, is_materialised, mark_graph_inputs, mask_mod_from_blocks, warm


class Form(NamedTuple):
    """The properties of a call's tensors that its kernel depends on.

    Attributes:
        value_dim: head dim of value and O.
        kind: which expert kernel.
        consts: const parameters that these properties decide.
    """

    dtype: torch.dtype
    head_dim: int
    value_dim: int
    kind: Kind = "forward"
    consts: tuple[tuple[str, int], ...] = ()


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
    calls: dict[Any, Ready] = field(default_factory=dict)
    last: tuple[Any, Ready] | None = None  # options of the last call, and its prepared launch


# a hit saves tracing
_KNOWN: Memo[Any, KnownAttention] = Memo(
    "flex.known_attentions",
    key="structure and numbers of the mods' capture key, dtype, head dims, kernel, level of verification",
    invalidation="never: captured tensors are taken from each call's capture key",
    limit=KNOWN_MODS,
)
# a hit saves the transfer
_TRACED: Memo[Any, Attention] = Memo(
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
# six times as fast as a query by device
_ANY_AUTOCAST: Callable[[], bool] = getattr(torch._C, "_is_any_autocast_enabled", lambda: True)
_LOCK = threading.RLock()
_NOTHING = torch.empty(0)


def flex_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: Callable[..., Any] | None = None,
    block_mask: Any = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: Mapping[str, Any] | None = None,
    *,
    return_aux: Any = None,
    backend: str = "auto",
    verify: Level = "quick",
    normalize: Normalize = "softmax",
    sink: torch.Tensor | float | None = None,
    dropout_p: float = 0.0,
    dropout_seed: torch.Tensor | None = None,
) -> Any:
    """Compute attention with a score_mod and a mask, as torch.nn.attention.flex_attention does.

    It runs on an expert kernel for Hopper, with gradients of query, key, value and of tensors that mods capture.

    Args:
        query: [B, H, M, D], f16, bf16 or f32. Strides are arbitrary: a tensor that no kernel can read in place is
            copied in the call (`packed_copies` counts these).
        key: [B, HK, N, D], or [1, HK, N, D] for all batches.
        value: [B, HK, N, DV], or [1, HK, N, DV] for all batches. D and DV are from 1 to 256.
        score_mod: score_mod(score, b, h, q_idx, kv_idx), the new score from scale * dot(q, k), in f32.
        block_mask: a result of `create_block_mask`, ours or PyTorch's.
        scale: 1 / sqrt(D) by default. If `scale <= 0`, query is copied on every call.
        enable_gqa: H may be a multiple of HK.
        return_lse: also return LSE.
        kernel_options: accepted for PyTorch's interface; without effect.
        return_aux: PyTorch's AuxRequest. The result is then (O, AuxOutput) with LSE and max_scores, the largest score
            of each query [B, H, M], f32, as requested.
        backend: "auto" runs on the Hopper GPU that holds the tensors; "interpret" runs the kernel in the interpreter,
            slowly, on any machine.
        verify: how much a new kernel is verified on the CPU before it first runs on a GPU: "quick", "full" or "off".
            The verdict is kept in the cache folder.
        normalize: "softmax", or beyond FlexAttention "sigmoid" or "relu" (see `Specification`).
        sink: a logit of each head, floats [H] or a number (see `Specification`).
        dropout_p: the probability that a weight becomes 0, as in scaled_dot_product_attention; the others are divided
            by 1 - dropout_p.
        dropout_seed: int32 [2], on the query's device; drawn from its default generator by default. `cuir.dropout_mask`
            returns the same mask as a tensor.

    Returns:
        O [B, H, M, DV] with the order of query's strides, and with return_lse also LSE [B, H, M], f32, in natural
        logarithms. A query without keys has O = 0 and LSE = -inf, as in PyTorch.

    Mods of the same code share a kernel: captured tensors are launch arguments, and lengths are no part of the kernel.
    torch.compile takes the call as an operator, without a graph break; CUDA graphs capture it once it has been called.
    Raises CuirError: U4xx for arguments that do not fit, X1xx for mods that cannot be traced, U5xx for a missing device
    or tool, and the findings of verification.
    """
    most = False
    if return_aux is not None:
        if not isinstance(return_aux, AuxRequest):
            wrong("U413", f"return_aux must be an AuxRequest, found {return_aux!r}", "AuxRequest(lse=True)")
        if return_lse:
            wrong("U413", "return_lse and return_aux both say what is given beside O", "AuxRequest(lse=True)")
        most = bool(getattr(return_aux, "max_scores", False))
    if _ANY_AUTOCAST() and autocasts(query):
        with torch.autocast(query.device.type, enabled=False):
            query, key, value = (autocast(x, query.device.type) for x in (query, key, value))
            return flex_attention(
                query,
                key,
                value,
                score_mod,
                block_mask,
                scale,
                enable_gqa,
                return_lse,
                kernel_options,
                return_aux=return_aux,
                backend=backend,
                verify=verify,
                normalize=normalize,
                sink=sink,
                dropout_p=dropout_p,
                dropout_seed=dropout_seed,
            )
    if scale is not None:
        query, scale = make_scale_positive(query, plain_number(scale))
    dropout: Seeded | None = None
    weights: tuple[Any, ...] = ()
    if sink is not None or most or normalize != "softmax" or dropout_p != 0.0 or dropout_seed is not None:
        sink = plain_number(sink)
        dropout = None if dropout_p == 0.0 and dropout_seed is None else prepare_dropout(dropout_p, dropout_seed, query)
        if dropout is not None:
            weights = (normalize, sink, most, True)
        elif sink is not None or most or normalize != "softmax":
            weights = (normalize, sink, most)
    if is_compiling() or is_dispatched(query, key, value):
        if isinstance(query, torch.Tensor) and query.is_nested:
            return _nested(
                query,
                key,
                value,
                score_mod,
                block_mask,
                scale,
                enable_gqa,
                return_lse,
                return_aux,
                normalize,
                sink,
                dropout,
                backend,
                verify,
            )
        if traced := _dispatched(
            query, key, value, score_mod, block_mask, scale, enable_gqa, backend, verify, normalize, sink, most, dropout
        ):
            return _format_outputs(traced, return_lse, return_aux)
    outputs = _warm(query, key, value, score_mod, block_mask, scale, enable_gqa, backend, verify, weights, dropout)
    if outputs is None:
        check_options(scale, backend, verify)
        check_tensors(query, key, value, enable_gqa)
        if has_no_numbers(query):
            traced = _dispatched(
                query, key, value, score_mod, block_mask, scale, enable_gqa, backend, verify, normalize, sink, most, dropout
            )
            return _format_outputs(traced, return_lse, return_aux)
        mask_mod = get_mask_mod(block_mask)
        check_mask(block_mask, lengths_of(query, key))
        ready = prepare(query, key, value, mask_mod, score_mod, scale, enable_gqa, backend, verify, block_mask, weights)
        outputs = ready.with_dropout(dropout)(query, key, value)
    if return_aux is None:
        return outputs[:2] if return_lse else outputs[0]
    return _format_outputs(outputs, return_lse, return_aux)


_NESTED_ATTENTION: list[Callable[..., tuple[torch.Tensor, ...]]] = []


def nested_with(attention: Callable[..., tuple[torch.Tensor, ...]]) -> None:
    """Register the function that computes O and LSE of nested tensors, which runs on packed sequences."""
    _NESTED_ATTENTION[:] = [attention]


def _nested(
    query: torch.Tensor,
    key: Any,
    value: Any,
    score_mod: Any,
    block_mask: Any,
    scale: float | None,
    enable_gqa: bool,
    return_lse: bool,
    return_aux: Any,
    normalize: Normalize,
    sink: Any,
    dropout: Seeded | None,
    backend: str,
    verify: Level,
) -> Any:
    """Run a call of nested tensors as one of packed sequences."""
    if return_aux is not None and getattr(return_aux, "max_scores", False):
        wrong("U413", "the largest scores of nested tensors are not there", "AuxRequest(lse=True)")
    outputs = _NESTED_ATTENTION[0](query, key, value, score_mod, block_mask, scale, enable_gqa, normalize, sink, dropout, backend, verify)
    return _format_outputs(outputs, return_lse, return_aux)


def _format_outputs(outputs_of_call: tuple[torch.Tensor, ...], return_lse: bool, return_aux: Any) -> Any:
    """Format the outputs of a call."""
    if return_aux is None:
        return outputs_of_call[:2] if return_lse else outputs_of_call[0]
    o, lse = outputs_of_call[:2]
    return o, AuxOutput(lse=lse if return_aux.lse else None, max_scores=outputs_of_call[2] if len(outputs_of_call) > 2 else None)


def _dispatched(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: Any,
    block_mask: Any,
    scale: float | None,
    enable_gqa: bool,
    backend: str,
    verify: Level,
    normalize: str,
    sink: Any,
    most: bool,
    dropout: Seeded | None,
) -> tuple[torch.Tensor, ...]:
    """Run the call as an operator, which torch.compile traces and which takes tensors without data.

    The operator checks its arguments. Returns nothing for a call that needs none of this, with mods that an operator
    could only take as they are now.
    """
    check_local(query, key, value)
    if torch.compiler.is_compiling():
        check_ranks(query, key, value)
    else:
        check_options(scale, backend, verify)
        check_tensors(query, key, value, enable_gqa)
    mask_mod = get_mask_mod(block_mask)
    at = lengths_of(query, key)
    check_mask(block_mask, at)
    stand = None if block_mask is None or (isinstance(block_mask, LazyBlockMask) and block_mask.unmade) else block_mask
    if stand is not None and MASKS_ARE_CONSTANTS:
        mark_graph_inputs(stand)
    sinks = sink_of(sink, query.shape[1], query.device)
    mods = read_mods(query, mask_mod, score_mod, normalize, bool(sinks), most, 0.0 if dropout is None else dropout[0])
    if mods is None:
        return ()
    captured, handle = mods
    if stand is not None:
        captured += [stand.kv_num_blocks, stand.kv_indices]
        if stand.full_kv_num_blocks is not None:
            captured += [stand.full_kv_num_blocks, stand.full_kv_indices]
    captured += sinks
    captured += [] if dropout is None else [dropout[1]]
    check_differentiable(query, key, value, normalize, captured)
    scale = query.shape[3] ** -0.5 if scale is None else float(scale)
    block_size = [] if stand is None else list(stand.BLOCK_SIZE)
    arguments = query, key, value, captured, handle, scale, enable_gqa, backend, verify, block_size
    outputs: tuple[torch.Tensor, ...] = (WITH_MAX_SCORES if most else OPERATOR)(*arguments)
    return (*outputs[:2], outputs[2].detach()) if most else outputs  # the largest scores have no gradient


def _warm(
    query: Any,
    key: Any,
    value: Any,
    score_mod: Any,
    block_mask: Any,
    scale: float | None,
    enable_gqa: bool,
    backend: str,
    verify: str,
    weights: tuple[Any, ...],
    dropout: Seeded | None,
) -> tuple[torch.Tensor, ...] | None:
    """Return the outputs of a call whose signature is cached with these very mods, else None."""
    sink = weights[1] if weights and isinstance(weights[1], torch.Tensor) else None
    try:
        result = warm(block_mask, query, key)
        if result is None:
            return None
        mask_mod, mask = result
        cache = dict.get(_WARM, (id(mask_mod), id(score_mod), id(sink)))
        if cache is None or not cache.guard.holds(mask_mod, score_mod, sink):
            return None
        options = _options(query.dtype, mask, scale, enable_gqa, backend, verify, weights)
    except (AttributeError, RuntimeError, TypeError):
        return None  # no dense tensors: the checks say so
    last = cache.last
    if last is not None and last[0] == options:
        outputs = last[1].replay(query, key, value)  # errors of a launch must reach the caller
        if outputs is not None:
            return outputs
    try:
        ready = cache.calls.get((_signature(query, key, value), options))
    except (AttributeError, RuntimeError, TypeError):
        return None
    if ready is None:
        return None
    cache.last = options, ready
    ready = ready.pinned()
    return (ready if dropout is None else ready.with_dropout(dropout))(query, key, value)


def _options(
    dtype: torch.dtype, mask: Any, scale: float | None, enable_gqa: bool, backend: str, verify: str, weights: tuple[Any, ...]
) -> tuple[Any, ...]:
    """Return the part of a call's cache key without its tensors and mods.

    `mask` is the one that `standing.warm` returns.
    """
    numbers = _numbers(weights) if weights else ()
    parts = parts_for(dtype) if dtype is torch.float32 else 0
    return parts, mask, torch.is_grad_enabled(), type(scale), scale, enable_gqa, backend, verify, numbers


def _signature(query: Any, key: Any, value: Any) -> tuple[Any, ...]:
    """Return the properties of a call's tensors that its checks and its kernel depend on."""
    gradient = torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad)
    return (
        query.shape,
        query.stride(),
        query.dtype,
        query.device,
        key.shape,
        key.stride(),
        key.dtype,
        key.device,
        value.shape,
        value.stride(),
        value.dtype,
        value.device,
        gradient,
    )


def prepare(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask_mod: Callable[..., Any] | None,
    score_mod: Callable[..., Any] | None,
    scale: float | None,
    enable_gqa: bool,
    backend: str,
    verify: Level,
    block_mask: Any = None,
    weights: tuple[Any, ...] = (),
) -> Ready:
    """Prepare a call whose tensors are checked: look up its attention and its captured values.

    Args:
        weights: normalize, sink, whether the largest scores are requested, and True for dropout, unless they are those
            of a plain softmax.
    """
    check_sink(weights, query.shape[1])
    capture_key, traced, form = make_capture_key(mask_mod, score_mod, *weights), None, _form(query, key, value, len(weights) > 3)
    if is_materialised(block_mask):
        need_warm("looking at the blocks of a mask")
        original_mod, (mask_mod, traced) = (
            mask_mod,
            _mask_mod_from_blocks(block_mask, score_mod, capture_key, query, key, form, verify, weights),
        )
        if mask_mod is not original_mod:
            capture_key, traced = make_capture_key(mask_mod, score_mod, *weights), None
    attention = lookup_attention(mask_mod, score_mod, capture_key, form, verify, weights, traced)
    data = attention.data(capture_key)
    device = query.device
    for place, p in enumerate(data.captured):
        if not p.constant and isinstance(p.value, torch.Tensor) and p.value.device != device:
            _check_captured(attention.attention.own_name(place), p.value, query)
    ready = attention.attention.ready(query, key, value, scale, backend, data)
    if not attention.whole:
        return replace(ready, steady=False)
    result = warm(block_mask, query, key)
    if result is not None:
        sink = weights[1] if weights and isinstance(weights[1], torch.Tensor) else None
        signature = _signature(query, key, value), _options(query.dtype, result[1], scale, enable_gqa, backend, verify, weights)
        _keep_warm(ready, capture_key, (mask_mod, score_mod, sink), signature)
    return ready


def _mask_mod_from_blocks(
    block_mask: Any,
    score_mod: Any,
    capture_key: CaptureKey,
    query: torch.Tensor,
    key: torch.Tensor,
    form: Form,
    level: Level,
    weights: tuple[Any, ...],
) -> tuple[Callable[..., Any], Traced | None]:
    """Return a mask_mod equivalent to a mask's blocks, and the mods' trace if it is the mask's own.

    `capture_key` is the capture key of the mask's mods.
    """
    traces: list[Traced] = []

    def alone() -> Traced:
        entry = _KNOWN.get(_mods(capture_key, form, level)) if capture_key.comparable else None
        if entry is not None:
            mask_trace = entry.attention.traced.of_mask(p.value for p in entry.data(capture_key).captured)
        else:
            traces.append(traced_with(_specification(block_mask.mask_mod, score_mod, weights), capture_key))
            mask_trace = traces[0].of_mask(p.value for p in traces[0].parameters)
        return trace_without_clashes(Specification("mask", block_mask.mask_mod)) if mask_trace is None else mask_trace

    with _LOCK:
        mod = mask_mod_from_blocks(block_mask, lengths_of(query, key), query.device, alone)
    return mod, traces[0] if traces else None


def _specification(mask_mod: Any, score_mod: Any, weights: tuple[Any, ...]) -> Specification:
    spec = Specification("_".join(name_of(mod) for mod in (score_mod, mask_mod) if mod is not None) or "full", mask_mod, score_mod)
    return replace(spec, **dict(zip(("normalize", "sink", "max_scores"), weights)), dropout=Dropout() if len(weights) > 3 else None)


def _form(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, dropout: bool) -> Form:
    kind: Kind = "decode" if runs_on_decode_kernel(query, key) and not dropout else "forward"
    return Form(query.dtype, query.shape[3], value.shape[3], kind, precision(query.dtype))


def _mods(capture_key: CaptureKey, form: Form, level: Level) -> tuple[Any, ...]:
    """Return the cache key of calls that share a kernel."""
    return capture_key.structure, capture_key.values, form, level


def _numbers(weights: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return weights without a sink that is a tensor, and with the kinds of the rest."""
    return tuple(None if isinstance(w, torch.Tensor) else (type(w), w) for w in weights)


def _keep_warm(ready: Ready, capture_key: CaptureKey, mods: tuple[Any, Any, Any], signature: tuple[Any, ...]) -> None:
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


def lookup_attention(
    mask_mod: Callable[..., Any] | None,
    score_mod: Callable[..., Any] | None,
    capture_key: CaptureKey,
    form: Form,
    level: Level,
    weights: tuple[Any, ...],
    traced: Traced | None = None,
) -> KnownAttention:
    """Return the attention of these mods, cached by an earlier call or made now.

    Args:
        traced: the trace of the mods, if the caller has it.

    Raises CuirError U403, X1xx.
    """
    if stand_for_others(capture_key.tensors):
        for x in capture_key.tensors:
            check_wrapped("what a mod captures", x)
    signature = _mods(capture_key, form, level)
    entry = _KNOWN.get(signature) if capture_key.comparable else None
    if entry is not None:
        return entry
    if capture_key.comparable:
        need_warm("tracing a mod")
    with _LOCK:
        spec = _specification(mask_mod, score_mod, weights)
        traced = traced_with(spec, capture_key) if traced is None else traced
        attention = _attention(spec, traced, capture_key, form, level)
        places, captured = [], []
        for i, (kernel_parameter, parameter) in enumerate(zip(attention.transferred.captured, traced.parameters, strict=True)):
            at = next((j for j, t in enumerate(capture_key.tensors) if t is parameter.value), None)
            if at is not None:
                places.append((i, at))
            captured.append(replace(kernel_parameter, value=parameter.value if at is None else _NOTHING))
        whole = not any(isinstance(p.value, torch.Tensor) and p.value is not _NOTHING and not p.constant for p in captured)
        entry = KnownAttention(attention, replace(attention.transferred, captured=tuple(captured)), tuple(places), whole)
        if capture_key.comparable and whole:
            _KNOWN[signature] = entry
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
            dims = form.head_dim, form.value_dim
            attention = make_attention(
                spec, capture_key, dtype_of(form.dtype), dims, consts=dict(form.consts), level=level, traced=traced, kind=form.kind
            )
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


operator.prepare_with(prepare)

__all__ = ["flex_attention", "lookup_attention", "nested_with", "prepare"]
