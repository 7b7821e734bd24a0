"""Shared parts of calls whose sequence lengths only the device has, over a cache and packed.

Their masks, the bounds of packed sequences, and the launch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.nested._internal.nested_tensor import NestedTensor

from ...checking.checked import Const
from ...spec.specification import Lengths, list_requested_lengths
from ...text.diagnostics import CuirError
from ..api.block_masks import get_mask_mod
from ..api.dynamo_closures import read_mods
from ..api.operator import GraphMods, sink_of
from ..api.prepared_calls import KnownAttention, lookup_attention
from ..capture.attention_request import Level, Mod, Variant, Weighting
from ..capture.call_inputs import check_dense, check_device, check_gradient, need_gpu, word, wrong
from ..capture.capture_keys import CaptureKey
from ..capture.dispatcher_calls import check_local, has_no_numbers, is_dispatched
from ..capture.symbolic_sizes import is_known
from ..kernels.attention_kernel import Attention
from ..kernels.experts import Form
from ..kernels.split_kv import join_shares, launch_arguments, share_count
from ..splicing.splice import TransferResult
from .serving_requests import Bounds

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

MOST_SEQUENCES = 65536  # limit of the kernel's search


def mask_of(block_mask: Mod | BlockMask | None) -> Mod | None:
    """Return the mask_mod of a call's argument: a mask_mod, or a BlockMask that has one.

    Raises CuirError U412.
    """
    return block_mask if block_mask is None or (callable(block_mask) and not hasattr(block_mask, "mask_mod")) else get_mask_mod(block_mask)


def rule(mask_mod: Mod | None, causal: bool) -> Mod | None:
    """Return the mask_mod of a call, with the causal mask if requested.

    A query is as far from the last query as its token from its sequence's last; it sees no key behind its token.
    """
    if not causal:
        return mask_mod
    return _causal if mask_mod is None else _with_causal(mask_mod)


def _causal(
    b: torch.Tensor, h: torch.Tensor, q_idx: torch.Tensor, kv_idx: torch.Tensor, *, M: torch.Tensor, N: torch.Tensor
) -> torch.Tensor:
    return kv_idx <= q_idx + (N - M)


def is_causal(mask_mod: Mod) -> bool:
    """Return True if a rule is the causal mask and nothing else."""
    return mask_mod is _causal


def _with_causal(mask_mod: Mod) -> Mod:
    """Return the conjunction of a mask_mod and the causal mask."""
    names = list_requested_lengths(mask_mod)

    def keep_both(
        *pair: torch.Tensor, B: torch.Tensor, H: torch.Tensor, HK: torch.Tensor, M: torch.Tensor, N: torch.Tensor
    ) -> torch.Tensor:
        lengths = {"B": B, "H": H, "HK": HK, "M": M, "N": N}
        _, _, q_idx, kv_idx = pair
        return mask_mod(*pair, **{n: lengths[n] for n in names}) & (kv_idx <= q_idx + (N - M))

    return keep_both


def places(name: str, cu_seqlens: object, q: torch.Tensor) -> Bounds:
    """Return the starts and ends of sequences.

    Raises CuirError U403, U404, U405, U407, U408.
    """
    if not isinstance(cu_seqlens, torch.Tensor):
        wrong(
            "U403",
            f"`{name}` must be a tensor of int32, found {type(cu_seqlens).__name__}",
            f"torch.tensor({name}, dtype=torch.int32, device=q.device)",
        )
    check_dense(name, cu_seqlens)
    if cu_seqlens.dtype not in (torch.int32, torch.int64):
        wrong("U404", f"`{name}` must be int32, found {word(cu_seqlens.dtype)}", f"{name}.to(torch.int32), once")
    if cu_seqlens.dim() != 1 or is_known(cu_seqlens.shape[0] < 1) or is_known(cu_seqlens.shape[0] > MOST_SEQUENCES + 1):
        wrong(
            "U408",
            f"`{name}` has one entry more than there are sequences, at most {MOST_SEQUENCES} of them, found shape {tuple(cu_seqlens.shape)}",
            "torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)",
        )
    check_device(name, cu_seqlens, q)
    all_places = cu_seqlens.to(torch.int32).contiguous()
    return Bounds(all_places[:-1], all_places[1:])


def check_places(name: str, bounds: Bounds, tokens: int, most: int | None = None, places: str = "cu_seqlens_{}") -> None:
    """Check the bounds of sequences among so many tokens, and their lengths against `most`, on a CPU.

    A GPU is not waited for.

    Args:
        name: of the tokens, q or k as in max_seqlen_q.
        places: name of the bounds.

    Raises CuirError U413.
    """
    starts, ends = bounds
    if starts.device.type != "cpu" or len(starts) == 0:
        return
    lengths, places = (ends - starts).tolist(), places.format(name)
    hint = "torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)"
    shortest, longest = (f(range(len(lengths)), key=lengths.__getitem__) for f in (min, max))
    if lengths[shortest] < 0:
        at = f"{int(starts[shortest])} and behind it {int(ends[shortest])} (sequence {shortest})"
        wrong("U413", f"{places} must not decrease, found {at}", hint)
    first, last = int(starts.min()), int(ends.max())
    if first < 0 or last > tokens:
        wrong("U413", f"{places} must lie from 0 to the {tokens} tokens of `{name}`, found {first} to {last}", hint)
    if most is not None and lengths[longest] > most:
        wrong(
            "U413",
            f"max_seqlen_{name} must be at least the longest sequence, {lengths[longest]} tokens (sequence {longest}), found {most}",
            f"max_seqlen_{name}={lengths[longest]}, or leave it out",
        )


def clear_strangers(o: torch.Tensor, lse: torch.Tensor, bounds: Bounds) -> None:
    """Set O [H, TQ, DV] to 0 and LSE [H, TQ] to -inf in rows of no sequence, on a CPU.

    A kernel does not write these rows.
    """
    if o.device.type != "cpu":
        return
    outside = torch.ones(o.shape[1], dtype=torch.bool)
    for start, end in zip(bounds.starts.tolist(), bounds.ends.tolist()):
        outside[start:end] = False
    if outside.any():
        o[:, outside], lse[:, outside] = 0.0, -math.inf


def lookup_rule_attention(whole: Variant, variant: Variant, capture_key: CaptureKey, form: Form, verify: Level) -> KnownAttention:
    """Return the attention of a call's variant, with a mask made of its mask_mod.

    Args:
        whole: the variant with that mask, and `capture_key` is its key.
        variant: as the user wrote it.

    Raises CuirError U403, X1xx, of a mask at its place.
    """
    try:
        return lookup_attention(whole, capture_key, form, verify)
    except (CuirError, TypeError):
        if whole.mask_mod is not variant.mask_mod and variant.mask_mod is not None:
            # raise for the user's mask, not for the wrapper around it
            lookup_attention(variant, variant.make_capture_key(), form, verify)
        raise


class SequenceLaunch(NamedTuple):
    """A launch of an attention whose sequences only the device has the lengths of.

    Attributes:
        data: the captured values of the mods.
        at: the lengths for which the setting is chosen.
        sequences: number of them.
        inputs: the tensors by the kernel's names, O among them.
        rows: shape of LSE.
    """

    attention: Attention
    data: TransferResult
    at: Lengths
    sequences: int
    inputs: Mapping[str, Any]
    rows: tuple[int, ...]
    backend: str


def launch_attention(
    launch: SequenceLaunch,
    by_setting: Callable[[Mapping[str, Const]], Mapping[str, torch.Tensor]] = lambda consts: {},
    before: Callable[[], object] = lambda: None,
) -> torch.Tensor:
    """Run an attention, and return LSE [*rows], f32.

    Args:
        by_setting: further arguments, from the setting's const parameters.
        before: called when nothing can be refused any more.

    Raises CuirError.
    """
    attention, data, at, sequences, inputs, rows, backend = launch
    device = inputs["Q"].device
    for name, p in attention.name_captured_values(data):
        if isinstance(p.value, torch.Tensor):
            check_gradient(name, p.value)
    attention.check_heads(data, replace(at, B=sequences))
    if backend == "interpret":
        from ...interp import run

        consts = attention.settings.choose_untuned(at)
        device_arguments = attention.arguments(data, at, device, consts)
        arguments = launch_arguments(inputs, consts)
        before()
        lse = torch.empty((rows[0] * share_count(consts), *rows[1:]), dtype=torch.float32, device=device)
        run(
            attention.settings.check_program(consts),
            {**arguments, **by_setting(consts), "LSE": lse, **({} if device_arguments is None else device_arguments)},
            budget=math.inf,
        )
        return (
            lse
            if arguments["O"] is inputs["O"]
            else join_shares(arguments["O"], lse, inputs["O"], consts, attention.arch, interpreted=True)
        )
    problem = at, attention.settings.numbers(data.captured)
    if problem not in attention.settings.by_problem:
        need_gpu(device, attention.arch)
    consts, kernel = attention.settings.compile_for(*problem, attention.prove, attention.spec.name)
    device_arguments = attention.arguments(data, at, device, consts)
    if device_arguments is not None:
        device_arguments.join()
    arguments = launch_arguments(inputs, consts)
    before()
    _, lse = kernel.launch({**arguments, **by_setting(consts), **({} if device_arguments is None else device_arguments)})
    return (
        lse if arguments["O"] is inputs["O"] else join_shares(arguments["O"], lse, inputs["O"], consts, attention.arch, interpreted=False)
    )


def register_in_graph(
    mask_mod: Mod | None, score_mod: Mod | None, weighting: Weighting, heads: int, tensors: tuple[torch.Tensor, torch.Tensor]
) -> GraphMods | None:
    """Return the tensors and the handle that a call's operator takes for its mods and its sink.

    Returns None for a call that needs no operator.

    Args:
        heads: the dim of heads in q.
        tensors: q and the keys.

    Raises CuirError U403, U418.
    """
    q, keys = tensors
    if not torch.compiler.is_compiling():
        plain_q, plain_keys = tensors
        if isinstance(q, NestedTensor) and isinstance(keys, NestedTensor):
            plain_q, plain_keys = q._values, keys._values
        if not (is_dispatched(plain_q) or is_dispatched(plain_keys)) and not has_no_numbers(plain_q):
            return None
    check_local(q, keys)
    mods = read_mods(q, mask_mod, score_mod, weighting)
    if mods is None:
        return None
    return GraphMods([*mods.captured, *sink_of(weighting.sink, q.shape[heads], q.device)], mods.handle)


__all__ = [
    "SequenceLaunch",
    "check_places",
    "clear_strangers",
    "is_causal",
    "launch_attention",
    "lookup_rule_attention",
    "mask_of",
    "places",
    "register_in_graph",
    "rule",
]
