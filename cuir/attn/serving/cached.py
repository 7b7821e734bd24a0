"""`attention_with_kv_cache`: queries of the last tokens over a cache, contiguous or in pages."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch

from ...arguments.requirements import COPY_ALIGNMENT
from ...checking.checked import Const
from ...spec.specification import Lengths, Normalize
from ...syntax.caller_values import plain_number
from ..api.operator import GraphMods, define, restore_variant
from ..capture.attention_request import Level, Mod, Variant, weighting_of
from ..capture.call_inputs import (
    DTYPES,
    NO_FLOAT64,
    check_dense,
    check_device,
    check_gradient,
    check_head_dims,
    check_heads,
    check_options,
    check_sink,
    plain_integer,
    word,
    wrong,
)
from ..capture.kernel_operands import pack_rows, strides_fit
from ..kernels.card_kernels import DEFAULT, check_invariant, choose_target
from ..kernels.decoding import BLOCK, SINGLE_BLOCK, SMALLEST
from ..kernels.experts import Form, Kind
from ..kernels.latent_settings import NARROW_BLOCK, choose_block
from ..tracing.splice_names import SELECTED_TOKENS
from .cache_writes import append
from .fp8_cache import DTYPE as EIGHT_BITS
from .fp8_cache import check_scales, for_kernel
from .latent_cache import check_latent, check_selected_tokens, make_lists
from .longest_first import as_they_stand, longest_first
from .packed_cache import attention_of_equal, attention_of_packed
from .per_sequence import SequenceLaunch, launch_attention, lookup_rule_attention, mask_of, places, register_in_graph, rule
from .serving_requests import CacheInputs, CacheOptions, PagedCache

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

Layout = Literal["NHD", "HND"]


def attention_with_kv_cache(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor | None,
    k: torch.Tensor | None = None,
    v: torch.Tensor | None = None,
    *,
    cache_seqlens: torch.Tensor | int,
    page_table: torch.Tensor | None = None,
    score_mod: Mod | None = None,
    block_mask: Mod | BlockMask | None = None,
    causal: bool = False,
    scale: float | None = None,
    layout: Layout = "NHD",
    max_seqlen: int | None = None,
    cu_seqlens_q: torch.Tensor | None = None,
    max_seqlen_q: int | None = None,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    return_lse: bool = False,
    normalize: Normalize = "softmax",
    sink: torch.Tensor | float | None = None,
    latent: int | None = None,
    selected_tokens: torch.Tensor | None = None,
    batch_invariant: bool = False,
    backend: str = "auto",
    verify: Level = "quick",
) -> Any:
    """Compute attention of the last tokens of each sequence over its cache of keys and values.

    This is FlashAttention's flash_attn_with_kvcache with any mask and score modification.

    Args:
        q: [B, M, H, D], f16, bf16 or f32; with cu_seqlens_q [TQ, H, D].
        k_cache: [B, S, HK, D] (with layout="HND" [B, HK, S, D]), of the dtype of q or float8_e4m3fn. HK divides H; D
            and DV are multiples of 8 (f32: 4), at most 576. With page_table it holds pages, [NP, page size, HK, D]
            ([NP, HK, page size, D]). Slots that hold no token may contain anything, NaN too.
        v_cache: like k_cache, with the head dim DV; None with latent.
        k: [B, N, HK, D], new keys, which are written into the cache behind its tokens and take part; there must be room
            for them.
        v: [B, N, HK, DV], new values.
        cache_seqlens: int32 [B], or one number for all: the number of tokens of each sequence, 0 too.
        page_table: int32 [B, pages of a sequence]. Token t of sequence b is row t % page size of page page_table[b, t
            // page size]. Entries behind a sequence's last page are not read.
        score_mod: score_mod(score, b, h, q_idx, kv_idx). q_idx runs from 0 to M - 1, kv_idx is the number of the token.
            A keyword-only parameter N, if the mod has one, is the length of the sequence. Reads outside of a captured
            tensor by q_idx or kv_idx give 0; a tensor that is read by b or h alone must have an element for each.
        block_mask: a mask_mod (b, h, q_idx, kv_idx), with indices as in score_mod, or a result of `create_block_mask`,
            of which only the mask_mod is used.
        causal: query i of M is token len - M + i of its sequence and sees tokens up to itself.
        scale: as for `flex_attention`.
        normalize: as for `flex_attention`.
        sink: as for `flex_attention`.
        latent: for multi-head latent attention, whose values are the first `latent` columns of k_cache, 128, 256, 384 or
            512 of at most 576: v_cache, v and v_scale are None, and DV is latent. q is f16 or bf16, k_cache has its dtype
            or float8_e4m3fn.
        selected_tokens: int32 [B, M, n], with latent and a cache of the dtype of q: query i of sequence b attends to the
            tokens selected_tokens[b, i] of its sequence alone, in any order. Entries below 0 and from the sequence's length
            on are none; a token that is named twice counts twice. All heads share a list.
        batch_invariant: divide keys into shares at fixed tokens: a query's bits then depend on its keys alone, neither on
            what else is in the batch and the capacity of the cache, nor on the call's other queries.
        backend: as for `flex_attention`.
        verify: as for `flex_attention`.
        layout: "NHD" or "HND", the order of tokens and heads in the cache.
        max_seqlen: the length for which work is distributed, by default the capacity of the cache; longer sequences are
            computed correctly as well.
        cu_seqlens_q: int32 [B + 1], for a different number of queries in each sequence, as a server batches prompts
            with sequences that decode. Sequence b has the rows cu_seqlens_q[b] .. cu_seqlens_q[b + 1] - 1 of q [TQ, H,
            D]; k and v are [TQ, HK, ...] of the same tokens. The number of tokens and M, if a mod takes it, are those
            of the sequence. Rows of no sequence may contain anything, are written nowhere, and their outputs are
            undefined. max_seqlen then has no effect, and the cache has the dtype of q.
        max_seqlen_q: an upper bound of the queries of a sequence in packed calls; it shortens the launch, and queries
            beyond it may be left out.
        k_scale: f32 [HK], or for each token [B, HK, S] or [NP, HK, page size], in either layout; 1 by default. A cache
            of float8_e4m3fn, under q of f16 or bf16, holds keys divided by these; D and DV are then multiples of 16.
            The cache is read in place. New k and v, in the dtype of q, are rounded to its numbers and saturate at the
            largest one. Where each token has a scale, a new token's is chosen such that its largest number is 448, and
            is written to k_scale.
        v_scale: the same for values.

    Returns:
        O [B, M, H, DV], or [TQ, H, DV] of packed queries, and with return_lse also LSE [B, H, M], or [H, TQ], f32. A
        query without tokens has O = 0 and LSE = -inf.

    Lengths and tables are read on the device: changing them needs no other kernel, no plan and no synchronisation, in a
    CUDA graph either. Equal arguments give equal bits. Raises CuirError: U4xx, U110 for arguments that do not fit, X1xx
    for mods, U5xx for a missing device or tool.
    """
    cache_seqlens, max_seqlen_q, max_seqlen = map(plain_integer, (cache_seqlens, max_seqlen_q, max_seqlen))
    inputs = CacheInputs(
        q, k_cache, v_cache, k, v, cache_seqlens, page_table, k_scale, v_scale, cu_seqlens_q, max_seqlen_q, selected_tokens
    )
    options = CacheOptions(causal, plain_number(scale), layout, max_seqlen, backend, verify, plain_integer(latent), batch_invariant)
    mask_mod, weighting = mask_of(block_mask), weighting_of(normalize, plain_number(sink))
    mods = register_in_graph(mask_mod, score_mod, weighting, -2, (q, k_cache))
    if mods is None:
        o, lse = _attend(inputs, Variant(mask_mod, score_mod, weighting), options)
    else:
        o, lse = _in_graph(inputs, mods, options)
    return (o, lse) if return_lse else o


def _attend(inputs: CacheInputs, variant: Variant, options: CacheOptions) -> tuple[torch.Tensor, torch.Tensor]:
    """Run a call that no graph traces; return O and LSE."""
    B = _check(inputs, options)
    q, k_cache, v_cache, k, v, cache_seqlens, page_table, k_scale, v_scale, cu_seqlens_q, max_seqlen_q, selected_tokens = inputs
    causal, scale, layout, max_seqlen, backend, verify, latent, invariant = options
    if v_cache is None:
        v_cache = k_cache[..., :latent]
    _check_starts(k_cache, v_cache)
    check_sink(variant.weighting.sink, q.shape[-2])
    if max_seqlen is not None or max_seqlen_q is not None:
        for name, bound in (("max_seqlen", max_seqlen), ("max_seqlen_q", max_seqlen_q)):
            if bound is not None and (isinstance(bound, bool) or not isinstance(bound, (int, torch.SymInt)) or bound < 0):
                wrong("U413", f"{name} must be an integer from 0 on, found {bound!r}")
    H, D = q.shape[-2:]
    keys, values = (x.transpose(1, 2) if layout == "NHD" else x for x in (k_cache, v_cache))
    page, DV = keys.shape[2], values.shape[3]
    if page_table is None:
        pages = as_they_stand(B, q.device)[:, None]  # one page a sequence
    elif page_table.shape[1] == 0:
        pages = torch.full((B, 1), keys.shape[0], dtype=torch.int32, device=q.device)  # a page that is none
    else:
        pages = page_table.contiguous()
    single, target = q.dtype == torch.float32, choose_target(q.device, backend)
    eight = keys.dtype == EIGHT_BITS
    block = choose_block(D, DV) if latent is None else NARROW_BLOCK if eight else BLOCK
    chunk = _chunk(page, page_table is not None, SINGLE_BLOCK if single or target.arch != DEFAULT else block)
    lengths = _lengths(cache_seqlens, B, q.device)
    if cu_seqlens_q is not None:
        return attention_of_packed(inputs, PagedCache(keys, values, pages, lengths, chunk), variant, options)
    M = q.shape[1]

    def append_new() -> None:
        for new, written, of in ((k, keys, k_scale), (v, values, v_scale)):
            if new is not None:
                append(new, written, of, lengths, pages)

    lengths_after = lengths if k is None else lengths + k.shape[1]
    if single:
        return attention_of_equal(q, PagedCache(keys, values, pages, lengths_after, chunk), append_new, variant, options)
    longest = pages.shape[1] * page if max_seqlen is None else max(1, int(max_seqlen))
    at = Lengths(B, H, keys.shape[1], M, longest if selected_tokens is None else max(1, selected_tokens.shape[2]))
    kind: Kind = "cache" if latent is None else "latent cache"
    consts: tuple[tuple[str, Const], ...] = (("CHUNK", chunk),)
    if latent is None and block < BLOCK:
        consts = (*consts, ("BN", block))
    if eight:
        kind = "cache of 8 bits" if latent is None else "latent cache of 8 bits"
        consts = (*consts, ("TOKENS", int(k_scale is not None and k_scale.dim() == 3)))
    if selected_tokens is not None:
        kind, consts = "latent cache, selected tokens", ()
    form = Form(q.dtype, D, DV, kind, consts, target, invariant)
    whole = Variant(rule(variant.mask_mod, causal), variant.score_mod, variant.weighting)
    capture_key = whole.make_capture_key()
    attention = lookup_rule_attention(whole, variant, capture_key, form, verify)
    query = q.transpose(1, 2)
    if not (strides_fit(query) and query.data_ptr() % COPY_ALIGNMENT == 0):
        query = pack_rows(query)
    o = torch.empty(B, M, H, DV, dtype=q.dtype, device=q.device)
    arguments: dict[str, Any] = {
        "Q": query,
        "KEYS": keys,
        **({"VALUES": values} if latent is None else {}),
        "PAGES": pages,
        "LENGTHS": lengths_after,
        "O": o.transpose(1, 2),
        "scale": D**-0.5 if scale is None else float(scale),
    }
    if eight:
        scales = {"KSCALE": k_scale} if latent is not None else {"KSCALE": k_scale, "VSCALE": v_scale}
        arguments |= {name: for_kernel(of, keys.shape[1], q.device) for name, of in scales.items()}
    if selected_tokens is not None:
        arguments[SELECTED_TOKENS] = make_lists(selected_tokens)

    def order(consts: Mapping[str, Const]) -> dict[str, torch.Tensor]:
        if selected_tokens is not None:
            return {}
        if consts["ORDERED"] and isinstance(cache_seqlens, torch.Tensor):
            return {"ORDER": longest_first(cache_seqlens)}
        return {"ORDER": as_they_stand(B, q.device)}

    launch = SequenceLaunch(attention.attention, attention.data(capture_key), at, B, arguments, (B, H, M), backend)
    return o, launch_attention(launch, order, append_new)


def _in_graph(inputs: CacheInputs, mods: GraphMods, options: CacheOptions) -> tuple[torch.Tensor, torch.Tensor]:
    """Run the call as one operator that torch.compile traces.

    The operator writes new tokens too, so that the cache stays in place. Arguments are checked when the graph is
    traced.
    """
    q, k_cache, v_cache, k, v, cache_seqlens, page_table, k_scale, v_scale, cu_seqlens_q, max_seqlen_q, selected_tokens = inputs
    tensors = {"q": q, "k_cache": k_cache, "v_cache": v_cache, "k": k, "v": v, "k_scale": k_scale, "v_scale": v_scale}
    for name, x in tensors.items():
        if isinstance(x, torch.Tensor):
            check_gradient(name, x)
    for x in mods.captured:
        check_gradient("a captured tensor", x)
    if isinstance(cache_seqlens, int):
        _check_room(cache_seqlens, k_cache, k if cu_seqlens_q is None else None, page_table, options.layout)
        cache_seqlens = _lengths(cache_seqlens, len(q) if cu_seqlens_q is None else len(cu_seqlens_q) - 1, q.device)
    caches = cache_seqlens, page_table, k_scale, v_scale, cu_seqlens_q, max_seqlen_q, selected_tokens
    if k is None and v is None:
        o, lse = OPERATOR(q, k_cache, v_cache, *caches, *mods, *options)
    else:
        _check_both(k, v, options.latent)
        o, lse = APPENDING(q, k_cache, v_cache, k, v, *caches, *mods, *options)
    return o, lse


def _split(arguments: Sequence[Any]) -> tuple[CacheInputs, GraphMods, CacheOptions]:
    """Return the parts of an operator's arguments."""
    inputs, mods = len(CacheInputs._fields), len(CacheInputs._fields) + len(GraphMods._fields)
    return CacheInputs(*arguments[:inputs]), GraphMods(*arguments[inputs:mods]), CacheOptions(*arguments[mods:])


def _run(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Run the operator; return O and LSE."""
    inputs, mods, options = _split(arguments)
    return _attend(inputs, restore_variant(mods.handle, mods.captured), options)


def _shapes(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
    inputs, _, options = _split(arguments)
    _check(inputs, options)
    q, columns = inputs.q, (options.latent or 0) if inputs.v_cache is None else inputs.v_cache.shape[3]
    *tokens, H, _ = q.shape
    return q.new_empty((*tokens, H, columns)), q.new_empty((*tokens[:-1], H, tokens[-1]), dtype=torch.float32)


_REST = "Tensor? cu_seqlens_q, SymInt? max_seqlen_q, Tensor? selected_tokens, Tensor[] captured, str handle, bool causal, float? scale, str layout, SymInt? max_seqlen, str backend, str verify, int? latent, bool batch_invariant"
OPERATOR = define(
    "attention_with_kv_cache",
    f"Tensor q, Tensor k_cache, Tensor? v_cache, Tensor cache_seqlens, Tensor? page_table, Tensor? k_scale, Tensor? v_scale, {_REST}",
    lambda q, k_cache, v_cache, *rest: _run(q, k_cache, v_cache, None, None, *rest),
    lambda q, k_cache, v_cache, *rest: _shapes(q, k_cache, v_cache, None, None, *rest),
)
APPENDING = define(
    "attention_with_kv_cache_append",
    "Tensor q, Tensor(a!) k_cache, Tensor(b!)? v_cache, Tensor? k, Tensor? v, Tensor cache_seqlens, Tensor? page_table, Tensor(c!)? k_scale, Tensor(d!)? v_scale, "
    + _REST,
    _run,
    _shapes,
)


def _chunk(page: int, paged: bool, block: int) -> int:
    """Return the number of tokens that one copy fetches.

    This is a whole block where it lies in one page, else a divisor of the page; 1 where that is too little for the copy
    engine.
    """
    chunk = math.gcd(page, block) if paged else block
    return chunk if chunk >= SMALLEST else 1


def _lengths(lengths: torch.Tensor | int, B: int, device: torch.device) -> torch.Tensor:
    if isinstance(lengths, int):
        return torch.full((B,), lengths, dtype=torch.int32, device=device)
    return lengths.to(torch.int32).contiguous()


def _check(inputs: CacheInputs, options: CacheOptions) -> int:
    """Check the arguments; return the number of sequences.

    Raises CuirError: U403, U404, U405, U407, U408, U109, U110, U406, U410, U411, U402, U413.
    """
    q, k_cache, v_cache, k, v, cache_seqlens, page_table, k_scale, v_scale, cu_seqlens_q, max_seqlen_q, selected_tokens = inputs
    _, scale, layout, _, backend, verify, latent, invariant = options
    check_options(scale, backend, verify)
    if layout not in get_args(Layout):
        wrong("U413", f'layout must be "NHD" or "HND", found {layout!r}')
    _check_both(k, v, latent)
    new = {"k": k, "v": v} if k is not None or v is not None else {}
    if invariant and isinstance(q, torch.Tensor):
        check_invariant(choose_target(q.device, backend))
    if latent is not None or v_cache is None:
        check_latent(inputs, latent)
        new.pop("v", None)
    caches = {"k_cache": k_cache} if v_cache is None else {"k_cache": k_cache, "v_cache": v_cache}
    for name, x in {"q": q, **caches, **new}.items():
        if not isinstance(x, torch.Tensor):
            wrong("U403", f"`{name}` must be a tensor, found {type(x).__name__}")
        check_dense(name, x)
        cached = name.endswith("_cache")
        rank = 4 if cached or cu_seqlens_q is None else 3
        if x.dim() != rank:
            packed_ones = (
                ", of packed sequences, whose cu_seqlens_q there is" if rank == 3 else "; packed sequences, of 3, come with cu_seqlens_q"
            )
            wrong("U405", f"`{name}` must have {rank} dims, found shape {tuple(x.shape)}{'' if cached else packed_ones}")
        if x.dtype not in DTYPES and not (cached and x.dtype == EIGHT_BITS):
            hint = f"{name}.float(); {NO_FLOAT64}" if x.dtype == torch.float64 else f"{name}.to(torch.bfloat16)"
            wrong(
                "U109",
                f"`{name}` must be float16, bfloat16 or float32{', or float8_e4m3fn' if cached else ''}, found {word(x.dtype)}",
                hint,
            )
        if cached and x.dtype == EIGHT_BITS and q.dtype == torch.float32:
            wrong("U109", "over a cache of 8-bit numbers q must be float16 or bfloat16, found float32", "q.to(torch.bfloat16)")
        if x.dtype != q.dtype and not (cached and x.dtype == EIGHT_BITS):
            wrong(
                "U404",
                f"`{name}` must have the dtype of `q`, {str(q.dtype).removeprefix('torch.')}, found {str(x.dtype).removeprefix('torch.')}",
                f"q.to({name}.dtype)" if cached else f"{name}.to(q.dtype)",
            )
        check_device(name, x, q)
        check_gradient(name, x)
        if cached and new and any(step == 0 and size > 1 for size, step in zip(x.shape, x.stride())):
            wrong(
                "U419",
                f"`{name}` is written, and several of its elements lie in one place of memory: strides {x.stride()} of shape {tuple(x.shape)}",
                "a cache of its own for each sequence",
            )
    if v_cache is not None and k_cache.dtype != v_cache.dtype:
        wrong(
            "U404",
            f"k_cache and v_cache must have one dtype, found {str(k_cache.dtype).removeprefix('torch.')} and {str(v_cache.dtype).removeprefix('torch.')}",
        )
    if cu_seqlens_q is None:
        B = q.shape[0]
        if max_seqlen_q is not None:
            wrong("U413", "max_seqlen_q is of packed sequences, found no cu_seqlens_q")
    else:
        B = len(places("cu_seqlens_q", cu_seqlens_q, q)[0])
        if k_cache.dtype == EIGHT_BITS:
            wrong("U109", "over a cache of 8-bit numbers all sequences have queries of one number, q [B, M, H, D], found cu_seqlens_q")
    H, D = q.shape[-2:]
    heads = 2 if layout == "NHD" else 1
    if v_cache is not None:
        check_head_dims(D, v_cache.shape[3])
    if v_cache is not None and k_cache.shape[:3] != v_cache.shape[:3]:
        wrong(
            "U408",
            f"k_cache and v_cache must have the same pages, tokens and heads, found {tuple(k_cache.shape)} and {tuple(v_cache.shape)}",
        )
    if k_cache.shape[3 - heads] == 0:
        wrong("U408", f"pages must have room for a token, found k_cache {tuple(k_cache.shape)}")
    if k_cache.shape[3] != D:
        wrong("U408", f"q and k_cache must have one head dim, found {D} and {k_cache.shape[3]}")
    check_heads(H, k_cache.shape[heads], True)
    for name, x in caches.items():
        if not (strides_fit(x) and (x.shape[3] * x.element_size()) % COPY_ALIGNMENT == 0):
            _lies_wrong(name, x)
    if page_table is None and k_cache.shape[0] != B:
        wrong(
            "U408",
            f"a cache without a page_table has a sequence for each of {B}, found {k_cache.shape[0]}",
            "page_table says where the pages of each sequence are",
        )
    for name, table, rank in (("cache_seqlens", cache_seqlens, 1), ("page_table", page_table, 2)):
        if (rank == 1 and isinstance(table, int) and not isinstance(table, bool)) or (rank == 2 and table is None):
            continue
        if not isinstance(table, torch.Tensor):
            wrong("U403", f"`{name}` must be a tensor of int32{' or a number' if rank == 1 else ''}, found {type(table).__name__}")
        check_dense(name, table)
        if table.dtype != torch.int32 and not (rank == 1 and table.dtype == torch.int64):
            wrong("U404", f"`{name}` must be int32, found {str(table.dtype).removeprefix('torch.')}", f"{name}.to(torch.int32), once")
        if table.dim() != rank or table.shape[0] != B:
            wrong(
                "U408",
                f"`{name}` has an entry for each of {B} sequences{', and as many pages as the longest may have' if rank == 2 else ''}, found shape {tuple(table.shape)}",
            )
        check_device(name, table, q)
    for name, added, cache in (("k", k, k_cache), ("v", v, v_cache)):
        if added is None or k is None or cache is None:
            continue
        tokens = (len(q),) if cu_seqlens_q is not None else (B, k.shape[1])
        if added.shape != (*tokens, cache.shape[heads], cache.shape[3]):
            new_tokens = f"[{len(q)}" if cu_seqlens_q is not None else f"[{B}, new tokens"
            wrong(
                "U408",
                f"`{name}` must be {new_tokens}, {cache.shape[heads]}, {cache.shape[3]}], as its cache has it, found {tuple(added.shape)}",
            )
    if isinstance(cache_seqlens, int):
        _check_room(cache_seqlens, k_cache, k if cu_seqlens_q is None else None, page_table, layout)
    if selected_tokens is not None:
        check_selected_tokens(inputs, B, latent)
    check_scales(k_scale, v_scale, k_cache.transpose(1, 2) if layout == "NHD" else k_cache, latent is not None)
    return B


def _check_both(k: object, v: object, latent: int | None) -> None:
    if (k is None) != (v is None) and (latent is None or k is None):
        wrong("U402", f"new keys and values come together: `{'k' if k is None else 'v'}` is missing")


def _check_room(length: int, k_cache: torch.Tensor, k: torch.Tensor | None, page_table: torch.Tensor | None, layout: str) -> None:
    pages, new = 1 if page_table is None else page_table.shape[1], 0 if k is None else k.shape[1]
    room = pages * k_cache.shape[1 if layout == "NHD" else 2]
    if not 0 <= length <= room - new:
        wrong("U408", f"a sequence has room for {room} tokens, found cache_seqlens = {length}{f' and {new} new ones' if new else ''}")


def _check_starts(k_cache: torch.Tensor, v_cache: torch.Tensor) -> None:
    """Check that caches begin where the copy engine can read them.

    Tensors without memory cannot show this. Raises CuirError U406.
    """
    for name, x in (("k_cache", k_cache), ("v_cache", v_cache)):
        if x.data_ptr() % COPY_ALIGNMENT:
            _lies_wrong(name, x)


def _lies_wrong(name: str, x: torch.Tensor) -> None:
    wrong(
        "U406",
        f"rows of `{name}` must be contiguous and begin at multiples of 16 bytes, found strides {x.stride()} of {tuple(x.shape)}",
        f"a head dim that is a multiple of {COPY_ALIGNMENT // x.element_size()}: a cache is read where it lies, and never copied",
    )


__all__ = ["attention_with_kv_cache"]
