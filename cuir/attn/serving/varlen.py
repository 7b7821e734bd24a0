"""`varlen_attention`: attention of packed sequences and nested tensors, on one kernel for all lengths."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.nested._internal.nested_tensor import NestedTensor, nested_view_from_values_offsets_lengths

from ...arguments.requirements import COPY_ALIGNMENT
from ...caching import Memo
from ...spec.specification import Lengths, Normalize
from ...syntax.caller_values import plain_number
from ...text.diagnostics import CuirError
from ..api.operator import GraphMods, define, restore_variant
from ..capture.attention_request import AttentionRequest, Level, Mod, Options, Variant, weighting_of
from ..capture.call_inputs import (
    DTYPES,
    NO_FLOAT64,
    Seeded,
    check_device,
    check_head_dims,
    check_heads,
    check_options,
    check_sink,
    need_warm,
    plain_integer,
    precision,
    prepare_dropout,
    word,
    wrong,
)
from ..capture.device_tensors import constant
from ..capture.kernel_operands import autocast, autocasts, pack_rows, strides_fit
from ..capture.symbolic_sizes import are_equal, have_equal_sizes, is_known
from ..kernels.card_kernels import check_invariant, choose_target
from ..kernels.experts import Form
from ..kernels.serving_settings import longest_class
from ..splicing.captured_arguments import memory_of, state_of
from .packed_training import differentiable_attention, differentiable_in_graph
from .per_sequence import (
    SequenceLaunch,
    check_places,
    clear_strangers,
    launch_attention,
    lookup_rule_attention,
    mask_of,
    places,
    register_in_graph,
    rule,
)
from .serving_requests import Bounds, PackedInputs, PackedTensors

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask


def varlen_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    *,
    score_mod: Mod | None = None,
    block_mask: Mod | BlockMask | None = None,
    causal: bool = False,
    scale: float | None = None,
    return_lse: bool = False,
    enable_gqa: bool = False,
    normalize: Normalize = "softmax",
    sink: torch.Tensor | float | None = None,
    dropout_p: float = 0.0,
    dropout_seed: torch.Tensor | None = None,
    batch_invariant: bool = False,
    backend: str = "auto",
    verify: Level = "quick",
) -> Any:
    """Compute attention of packed sequences, each within itself, with gradients.

    This is FlashAttention's flash_attn_varlen_func and PyTorch's varlen_attn with any mask and score modification.

    Args:
        q: [TQ, H, D], f16, bf16 or f32: the tokens of all sequences, one sequence behind the other.
        k: [TK, HK, D].
        v: [TK, HK, DV]. D and DV are from 1 to 256.
        cu_seqlens_q: int32 [B + 1]. Sequence b has the queries cu_seqlens_q[b] .. cu_seqlens_q[b + 1] - 1, of any
            number, 0 too. On a CPU the values are checked (U413).
        cu_seqlens_k: int32 [B + 1]. Sequence b has the keys cu_seqlens_k[b] .. cu_seqlens_k[b + 1] - 1.
        max_seqlen_q: an upper bound of the queries of a sequence, all tokens by default; it shortens the launch, and
            queries beyond it may be left out. On a CPU it is checked (U413).
        max_seqlen_k: accepted for the interface of the others; without effect.
        score_mod: score_mod(score, b, h, q_idx, kv_idx). q_idx and kv_idx start from 0 in each sequence, b is its
            number. Keyword-only parameters M and N are its lengths. Reads outside of a captured tensor by q_idx or
            kv_idx give 0, and are refused with gradients; a tensor that is read by b or h alone must have an element
            for each.
        block_mask: a mask_mod (b, h, q_idx, kv_idx), with indices as in score_mod, or a result of `create_block_mask`,
            of which only the mask_mod is used.
        causal: a sequence's last query sees all its keys, the one before it a key less.
        scale: as for `flex_attention`.
        normalize: as for `flex_attention`.
        sink: as for `flex_attention`.
        backend: as for `flex_attention`.
        verify: as for `flex_attention`.
        return_lse: also return LSE.
        enable_gqa: H may be a multiple of HK.
        dropout_p: as for `flex_attention`; the mask is `cuir.dropout_mask` of one long sequence, [1, H, TQ, TK], with
            or without gradients.
        dropout_seed: as for `flex_attention`.
        batch_invariant: as for `flex_attention`, for calls without gradients.

    Returns:
        O [TQ, H, DV], and with return_lse also LSE [H, TQ], f32. A query without keys has O = 0 and LSE = -inf; rows of
        no sequence are undefined (on a CPU as without keys).

    Gradients, where q, k, v or captured tensors require them, are those of `flex_attention` of one long sequence with a
    mask of documents, on whose kernels such a call runs. Lengths are read on the device: changing them needs no other
    kernel and no synchronisation, in a CUDA graph either. A sequence's rows have the same bits whatever the other
    sequences hold. Raises CuirError: U4xx, U109, U110 for arguments that do not fit, X1xx for mods, U5xx for a missing
    device or tool.
    """
    if autocasts(q):
        q, k, v = (autocast(x, q.device.type) for x in (q, k, v))
    dropout = None if dropout_p == 0.0 and dropout_seed is None else prepare_dropout(dropout_p, dropout_seed, q)
    inputs = PackedInputs(q, k, v, cu_seqlens_q, cu_seqlens_k, plain_integer(max_seqlen_q), plain_integer(max_seqlen_k))
    options = Options(plain_number(scale), enable_gqa, backend, verify, batch_invariant)
    mask_mod, weighting = mask_of(block_mask), weighting_of(normalize, plain_number(sink))
    mods = register_in_graph(mask_mod, score_mod, weighting, 1, (q, k))
    if mods is None:
        o, lse = _attend_packed(inputs, Variant(mask_mod, score_mod, weighting), causal, options, dropout)
    elif dropout is not None or _want_gradients(q, k, v, *mods.captured):
        _refuse_gradients(options)
        tensors = _by_heads(inputs, *_check_inputs(inputs, enable_gqa))
        o, lse = differentiable_in_graph(tensors, mods, causal, options, weighting, dropout)
        o = o.transpose(0, 1)
    else:
        o, lse = OPERATOR(*inputs, *mods, causal, *options)
    return (o, lse) if return_lse else o


def _refuse_gradients(options: Options) -> None:
    """Raise CuirError U413 if a call of one long sequence is to have the bits of each sequence alone."""
    if options.batch_invariant:
        wrong("U413", "batch_invariant packed sequences have no gradients and no dropout", "torch.no_grad()")


def _want_gradients(*tensors: torch.Tensor) -> bool:
    return torch.is_grad_enabled() and any(x.requires_grad for x in tensors)


def _by_heads(inputs: PackedInputs, queries: Bounds, keys: Bounds) -> PackedTensors:
    return PackedTensors(inputs.q.transpose(0, 1), inputs.k.transpose(0, 1), inputs.v.transpose(0, 1), queries, keys)


def _attend_packed(
    inputs: PackedInputs, variant: Variant, causal: bool, options: Options, dropout: Seeded | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run a call that no graph traces; return O and LSE."""
    queries, keys = _check_inputs(inputs, options.enable_gqa)
    check_places("q", queries, inputs.q.shape[0], inputs.max_seqlen_q)
    check_places("k", keys, inputs.k.shape[0])
    o, lse = _attention(_by_heads(inputs, queries, keys), inputs.max_seqlen_q, variant, causal, options, dropout)
    return o.transpose(0, 1), lse


def _check_inputs(inputs: PackedInputs, enable_gqa: bool) -> tuple[Bounds, Bounds]:
    """Check the arguments; return the bounds of sequences, of queries and of keys.

    Raises CuirError as `_check`, and U413.
    """
    q = inputs.q
    _check(q, inputs.k, inputs.v, enable_gqa)
    queries, keys = places("cu_seqlens_q", inputs.cu_seqlens_q, q), places("cu_seqlens_k", inputs.cu_seqlens_k, q)
    counts = queries.starts.shape[0], keys.starts.shape[0]
    if not are_equal(*counts):
        wrong("U408", f"cu_seqlens_q and cu_seqlens_k are of the same sequences, found {counts[0]} and {counts[1]} of them")
    for name, most in (("max_seqlen_q", inputs.max_seqlen_q), ("max_seqlen_k", inputs.max_seqlen_k)):
        if most is not None and (not isinstance(most, (int, torch.SymInt)) or isinstance(most, bool) or is_known(most < 0)):
            wrong("U413", f"{name} must be a number of tokens, found {most!r}", f"int({name}), which a caller knows without the device")
    return queries, keys


def _split(arguments: Sequence[Any]) -> tuple[PackedInputs, GraphMods, bool, Options]:
    """Return the parts of the operator's arguments."""
    count = len(PackedInputs._fields)
    captured, handle, causal, *options = arguments[count:]
    return PackedInputs(*arguments[:count]), GraphMods(captured, handle), causal, Options(*options)


def _run(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Run the operator; return O and LSE."""
    inputs, mods, causal, options = _split(arguments)
    return _attend_packed(inputs, restore_variant(mods.handle, mods.captured), causal, options)


def _shapes(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
    inputs, _, _, options = _split(arguments)
    check_options(options.scale, options.backend, options.verify)
    _check_inputs(inputs, options.enable_gqa)
    q, columns = inputs.q, inputs.v.shape[2]
    return q.new_empty((*q.shape[:2], columns)), q.new_empty((q.shape[1], q.shape[0]), dtype=torch.float32)


OPERATOR = define(
    "varlen_attention",
    "Tensor q, Tensor k, Tensor v, Tensor cu_seqlens_q, Tensor cu_seqlens_k, SymInt? max_seqlen_q, SymInt? max_seqlen_k, Tensor[] captured, str handle, "
    "bool causal, float? scale, bool enable_gqa, str backend, str verify, bool batch_invariant",
    _run,
    _shapes,
)


def attend_nested(request: AttentionRequest) -> tuple[torch.Tensor, torch.Tensor]:
    """Run `varlen_attention` of nested tensors [B, H, j, D], of layout torch.jagged.

    Returns O [B, H, j, DV] and LSE [B, H, j], nested as query is. Raises CuirError U403, U408, and the errors of
    `varlen_attention`.
    """
    tensors: tuple[NestedTensor, NestedTensor, NestedTensor] = request[:3]  # type: ignore[assignment]  # checked here
    query, key, value = tensors
    for name, x in (("query", query), ("key", key), ("value", value)):
        if not isinstance(x, torch.Tensor) or not x.is_nested or x.layout != torch.jagged:
            wrong(
                "U403",
                f"query, key and value are nested together, of layout torch.jagged; `{name}` is {_describe_argument(x)}",
                "torch.nested.nested_tensor(tensors, layout=torch.jagged)",
            )
        if x.dim() != 4 or x._ragged_idx != 2:
            wrong(
                "U405",
                f"`{name}` must be [batch, heads, jagged length, head dim], found {tuple(x.shape)}",
                f"{name}.transpose(1, 2) of [batch, jagged length, heads, head dim]",
            )
    if not key.shape[0] == query.shape[0] == value.shape[0]:
        wrong("U408", f"query, key and value are nested of the same sequences, found {query.shape[0]}, {key.shape[0]} and {value.shape[0]}")
    # the kernel of packed sequences drops nothing: calls with dropout are those of one long sequence
    options, weighting = request.options, weighting_of(request.weighting.normalize, request.weighting.sink)
    mask_mod, score_mod = mask_of(request.block_mask), request.score_mod
    mods = register_in_graph(mask_mod, score_mod, weighting, 1, (query, key))
    if mods is not None:
        return _attend_nested_in_graph(request, mods)
    q, k, v = (x.transpose(1, 2).values() if _learns(x) else x._values.transpose(0, 1) for x in (query, key, value))
    _check(q, k, v, options.enable_gqa)
    if key._offsets is not value._offsets or key._lengths is not value._lengths:
        _check_alike(key, value)
    queries, keys = _places(query), _places(key)
    for name, tokens, bounds in (("query", q, queries), ("key", k, keys)):
        check_places(name, bounds, len(tokens), places="the offsets of `{}`")
    packed = PackedTensors(q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1), queries, keys)
    variant = Variant(mask_mod, score_mod, weighting)
    o, lse = _attention(packed, query._maybe_max_seqlen, variant, False, options, request.dropout)
    return _nest_as(query, o), _nest_as(query, lse)


def _attend_nested_in_graph(request: AttentionRequest, mods: GraphMods) -> tuple[torch.Tensor, torch.Tensor]:
    """Run `attend_nested` in a call that torch.compile traces."""
    tensors: tuple[NestedTensor, NestedTensor, NestedTensor] = request[:3]  # type: ignore[assignment]
    query, key, value = tensors
    options = request.options
    q, k, v = (x.transpose(1, 2).values() for x in (query, key, value))
    _check(q, k, v, options.enable_gqa)
    offsets, key_offsets, value_offsets = (x.offsets() for x in (query, key, value))
    lengths, key_lengths, value_lengths = (x.lengths() for x in (query, key, value))
    if key_offsets is not value_offsets or key_lengths is not value_lengths:
        of_key, of_value = (torch.stack(tuple(_ends(*x))) for x in ((key_offsets, key_lengths), (value_offsets, value_lengths)))
        torch._assert_async((of_key == of_value).all(), "key and value must be nested alike, found other offsets")
    if lengths is None and key_lengths is None and request.dropout is None and not _want_gradients(q, k, v, *mods.captured):
        o, lse = OPERATOR(q, k, v, offsets.int(), key_offsets.int(), None, None, *mods, False, *options)
    else:
        _refuse_gradients(options)
        queries, keys = _ends(offsets, lengths), _ends(key_offsets, key_lengths)
        packed = PackedTensors(q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1), queries, keys)
        o, lse = differentiable_in_graph(packed, mods, False, options, request.weighting, request.dropout)
        o = o.transpose(0, 1)
    return tuple(torch.nested.nested_tensor_from_jagged(x, offsets, lengths).transpose(1, 2) for x in (o, lse.transpose(0, 1)))  # type: ignore[return-value]


def _ends(offsets: torch.Tensor, lengths: torch.Tensor | None) -> Bounds:
    """Return where sequences begin and end."""
    starts = offsets[:-1]
    return Bounds(starts.int(), (offsets[1:] if lengths is None else starts + lengths).int())


def _places(x: NestedTensor) -> Bounds:
    """Return the begin and end offsets of a nested tensor's sequences in its packed values."""
    return _ends(x._offsets, x._lengths)


# An entry holds the memory of offsets that were found equal, so that no other tensor gets its address.
_ALIKE: Memo[Hashable, tuple[object, ...]] = Memo(
    "flex.equal_offsets", key="states of the offsets of key and value", invalidation="a write to the offsets", limit=64
)


def _check_alike(key: NestedTensor, value: NestedTensor) -> None:
    """Check that the sequences of key and value have the same bounds.

    This happens once for each pair of offsets and each write to them: on a GPU it waits for the device. Raises
    CuirError U408, U415.
    """
    described = [t for x in (key, value) for t in (x._offsets, x._lengths) if t is not None]
    states = tuple(state_of(t) for t in described)
    pair = states, key._lengths is None, value._lengths is None
    if None not in states and _ALIKE.get(pair) is not None:
        return
    need_warm("comparing the offsets of key and value")
    (starts, ends), (of_value, ends_of_value) = _places(key), _places(value)
    if not (torch.equal(starts, of_value) and torch.equal(ends, ends_of_value)):
        lengths = [(b - a).tolist() for a, b in ((starts, ends), (of_value, ends_of_value))]
        differing = next((i for i, (n, m) in enumerate(zip(*lengths, strict=True)) if n != m), None)
        if differing is None:
            wrong(
                "U408",
                "key and value must lie alike in memory, and their sequences of equal lengths begin at other offsets",
                "value.contiguous() and key.contiguous() leave no gaps",
            )
        wrong(
            "U408",
            f"key and value must have the same lengths, found {lengths[0][differing]} and {lengths[1][differing]} for sequence {differing}",
            "value has a row for each key",
        )
    if None not in states:
        _ALIKE[pair] = tuple(map(memory_of, described))


def _learns(x: torch.Tensor) -> bool:
    """Return True if values must be taken by a differentiable operation, which takes the host longer."""
    return x.requires_grad and torch.is_grad_enabled()


def _nest_as(query: NestedTensor, x: torch.Tensor) -> torch.Tensor:
    """Return a tensor [H, TQ, ...] nested as query, [B, H, j, ...]."""
    # torch.nested.nested_tensor_from_jagged warns of torch.fx
    nested: torch.Tensor = nested_view_from_values_offsets_lengths(
        x.transpose(0, 1), query._offsets, query._lengths, min_seqlen=query._maybe_min_seqlen, max_seqlen=query._maybe_max_seqlen
    )
    return nested.transpose(1, 2)


def _attention(
    tensors: PackedTensors, longest: int | None, variant: Variant, causal: bool, options: Options, dropout: Seeded | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute O [H, TQ, DV], in memory by tokens, and LSE [H, TQ]."""
    q, k, v, queries, keys = tensors
    scale, _, backend, verify, invariant = options
    check_options(scale, backend, verify)
    H, TQ, D = q.shape
    DV, unit = v.shape[2], COPY_ALIGNMENT // v.element_size()
    check_sink(variant.weighting.sink, H)
    whole = Variant(rule(variant.mask_mod, causal), variant.score_mod, variant.weighting)
    capture_key, target = whole.make_capture_key(), choose_target(q.device, backend)
    if invariant:
        check_invariant(target)
    form = Form(q.dtype, D, DV, "varlen", precision(q.dtype), target, invariant)
    if dropout is not None or _want_gradients(
        q, k, v, *capture_key.tensors
    ):  # dropout draws one mask with and without gradients, as checkpointing asks for
        _refuse_gradients(options)
        try:
            return differentiable_attention(tensors, whole, options, dropout)
        except (CuirError, TypeError):  # of a mod within one of ours: said of the mod itself, at its place
            lookup_rule_attention(whole, variant, capture_key, form, verify)
            raise
    attention = lookup_rule_attention(whole, variant, capture_key, form, verify)
    at = Lengths(1, H, k.shape[0], longest_class(longest, TQ), 1)
    longest = TQ if longest is None else min(longest, TQ)
    q, k, v = (x if strides_fit(x) and x.data_ptr() % COPY_ALIGNMENT == 0 else pack_rows(x) for x in (q, k, v))
    o = torch.empty(TQ, H, -(-DV // unit) * unit, dtype=q.dtype, device=q.device)[..., :DV].transpose(0, 1)
    arguments = {
        "Q": q,
        "K": k[None],
        "V": v[None],
        "PAGES": constant(torch.zeros, len(queries.starts), 1, dtype=torch.int32, device=q.device),
        "QSTART": queries.starts,
        "QEND": queries.ends,
        "KSTART": keys.starts,
        "KEND": keys.ends,
        "O": o,
        "LONGEST": longest,
        "scale": D**-0.5 if scale is None else float(scale),
    }
    data = attention.data(capture_key)
    lse = launch_attention(SequenceLaunch(attention.attention, data, at, len(queries.starts), arguments, (H, TQ), backend))
    clear_strangers(o, lse, queries)
    return (o if DV % unit == 0 else o.transpose(0, 1).contiguous().transpose(0, 1)), lse


def _check(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, enable_gqa: bool) -> None:
    """Raise CuirError for arguments that do not fit: U403, U404, U405, U407, U408, U109, U110, U410, U411."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, torch.Tensor) or x.layout != torch.strided or x.is_nested:
            wrong(
                "U403",
                f"`{name}` must be a dense tensor, found {_describe_argument(x)}",
                "flex_attention takes nested tensors, [B, H, j, D]",
            )
        if x.dim() != 3:
            wrong("U405", f"`{name}` must have 3 dims (tokens of all sequences, heads, head dim), found shape {tuple(x.shape)}")
        if x.dtype not in DTYPES:
            hint = f"{name}.float(); {NO_FLOAT64}" if x.dtype == torch.float64 else f"{name}.to(torch.bfloat16)"
            wrong("U109", f"`{name}` must be float16, bfloat16 or float32, found {word(x.dtype)}", hint)
        if x.dtype != q.dtype:
            wrong("U404", f"`{name}` must have the dtype of `q`, {word(q.dtype)}, found {word(x.dtype)}", f"{name}.to(q.dtype)")
        check_device(name, x, q)
    if not have_equal_sizes(k.shape[:2], v.shape[:2]):
        wrong("U408", f"k and v must have the same tokens and heads, found {tuple(k.shape)} and {tuple(v.shape)}")
    if k.shape[2] != q.shape[2]:
        wrong("U408", f"q and k must have one head dim, found {q.shape[2]} and {k.shape[2]}")
    check_head_dims(q.shape[2], v.shape[2])
    check_heads(q.shape[1], k.shape[1], enable_gqa)


def _describe_argument(x: object) -> str:
    return f"a {'nested ' if x.is_nested else ''}tensor of layout {x.layout}" if isinstance(x, torch.Tensor) else type(x).__name__


__all__ = ["attend_nested", "varlen_attention"]
