"""What calls share whose sequences have lengths that the device alone knows, over a cache and packed: their rules, where packed ones lie, and the launch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from ..checking.checked import Const
from ..interp import run
from ..spec.specification import Lengths, requested_lengths
from ..text.diagnostics import CuirError
from ..variants import TransferResult
from .dispatched import check_local, has_no_numbers, is_dispatched
from .front import Form, Known, known_attention
from .inputs import check_dense, check_device, check_gradient, need_hopper, word, wrong
from .kernels import Attention, Level
from .made_inside import read_mods
from .masks import mod_of
from .mods import CaptureKey, identity
from .operator import sink_of
from .shares import given_to, joined, shares
from .sizes import is_known

Mod = Callable[..., Any]
MOST_SEQUENCES = 65536  # that the kernel's search goes through


def mask_of(block_mask: Any) -> Mod | None:
    """The mask_mod that a call is given: a mask_mod, or a BlockMask, of which the mask_mod alone counts. Raises CuirError U412."""
    return block_mask if block_mask is None or (callable(block_mask) and not hasattr(block_mask, "mask_mod")) else mod_of(block_mask)


def rule(mask_mod: Mod | None, causal: bool) -> Mod | None:
    """The mask_mod of a call. causal: a query sees no key behind its own token, which is as far from its sequence's last as the query from the last one."""
    if not causal:
        return mask_mod
    return _causal if mask_mod is None else _with_causal(mask_mod)


def _causal(b: Any, h: Any, q_idx: Any, kv_idx: Any, *, M: Any, N: Any) -> Any:
    return kv_idx <= q_idx + (N - M)


def _with_causal(mask_mod: Mod) -> Mod:
    """The mask_mod, of what is not behind the query alone."""
    names = requested_lengths(mask_mod)

    def both(b: Any, h: Any, q_idx: Any, kv_idx: Any, *, B: Any, H: Any, HK: Any, M: Any, N: Any) -> Any:
        known = {"B": B, "H": H, "HK": HK, "M": M, "N": N}
        return mask_mod(b, h, q_idx, kv_idx, **{n: known[n] for n in names}) & (kv_idx <= q_idx + (N - M))

    return both


def places(name: str, cu_seqlens: Any, q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Where sequences begin and end. Raises CuirError U403, U404, U405, U407, U408."""
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
        wrong("U408", f"`{name}` has one entry more than there are sequences, at most {MOST_SEQUENCES} of them, found shape {tuple(cu_seqlens.shape)}",
              "torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)")  # fmt: skip
    check_device(name, cu_seqlens, q)
    all_places = cu_seqlens.to(torch.int32).contiguous()
    return all_places[:-1], all_places[1:]


def check_places(
    name: str, starts: torch.Tensor, ends: torch.Tensor, tokens: int, most: int | None = None, places: str = "cu_seqlens_{}"
) -> None:
    """Check where sequences lie among so many tokens, and that none is longer than `most`, if their places are on the CPU.

    A GPU is not waited for. name: of the tokens, q or k as in max_seqlen_q. places: their own name. Raises CuirError U413.
    """
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


def clear_strangers(o: torch.Tensor, lse: torch.Tensor, starts: torch.Tensor, ends: torch.Tensor) -> None:
    """Make O [H, TQ, DV] 0 and LSE [H, TQ] -inf in rows of no sequence, which a kernel does not write, if they are on the CPU."""
    if o.device.type != "cpu":
        return
    outside = torch.ones(o.shape[1], dtype=torch.bool)
    for start, end in zip(starts.tolist(), ends.tolist()):
        outside[start:end] = False
    if outside.any():
        o[:, outside], lse[:, outside] = 0.0, -math.inf


def known_rule(
    whole: Mod | None, mask_mod: Mod | None, score_mod: Any, who: CaptureKey, form: Form, verify: Level, weights: tuple[Any, ...]
) -> Known:
    """The attention of a call's rule, made of its mask_mod. who: of the rule and the score_mod; weights: as for `known_attention`. Raises CuirError U403, X1xx, of a mask at its place."""
    try:
        return known_attention(whole, score_mod, who, form, verify, weights)
    except (CuirError, TypeError):
        if whole is not mask_mod and mask_mod is not None:  # said of the mask itself, and not of the rule that asks it
            known_attention(mask_mod, score_mod, identity(mask_mod, score_mod, *weights), form, verify, weights)
        raise


def launched(
    attention: Attention, data: TransferResult, at: Lengths, sequences: int, given: Mapping[str, Any], rows: tuple[int, ...], backend: str,
    by_setting: Callable[[Mapping[str, Const]], Mapping[str, Any]] = lambda consts: {}, before: Callable[[], object] = lambda: None,
) -> torch.Tensor:  # fmt: skip
    """LSE [*rows], f32, of a run with the tensors given, O among them. data: what the mods capture. at: for what lengths the setting is. by_setting: what is given besides,
    by the setting's const parameters. before: called when nothing can be refused any more. Raises CuirError."""
    device = given["Q"].device
    for name, p in attention.captured_by_name(data):
        if isinstance(p.value, torch.Tensor):
            check_gradient(name, p.value)
    attention.check_heads(data, replace(at, B=sequences))
    if backend == "interpret":
        consts = attention.settings.untuned(at)
        made = attention.arguments(data, at, device, consts)
        own = given_to(given, consts)
        before()
        lse = torch.empty((rows[0] * shares(consts), *rows[1:]), dtype=torch.float32, device=device)
        run(
            attention.settings.checked(consts),
            {**own, **by_setting(consts), "LSE": lse, **({} if made is None else made)},
            budget=math.inf,
        )
        return lse if own["O"] is given["O"] else joined(own["O"], lse, given["O"], consts, interpreted=True)
    problem = at, attention.settings.numbers(data.captured)
    if problem not in attention.settings.by_problem:
        need_hopper(device)
    consts, kernel = attention.settings.compiled(*problem, attention.prove, attention.spec.name)
    made = attention.arguments(data, at, device, consts)
    if made is not None:
        made.join()
    own = given_to(given, consts)
    before()
    _, lse = kernel.launch({**own, **by_setting(consts), **({} if made is None else made)})
    return lse if own["O"] is given["O"] else joined(own["O"], lse, given["O"], consts, interpreted=False)


def entered_in_graph(
    mask_mod: Mod | None, score_mod: Any, normalize: str, sink: Any, heads: int, tensors: tuple[Any, Any], nested: bool = False
) -> tuple[list[torch.Tensor], str] | None:
    """Return the tensors and the handle that a call's operator takes for its mods and its sink; nothing for a call that needs no operator.

    heads: the dim of heads in q. tensors: q and the keys. Raises CuirError U403, U418.
    """
    q, keys = tensors
    seen = (q._values, keys._values) if nested and not torch.compiler.is_compiling() else tensors
    if not torch.compiler.is_compiling() and not is_dispatched(*seen, seen[1]) and not has_no_numbers(seen[0]):
        return None
    check_local(q, keys)
    mods = read_mods(q, mask_mod, score_mod, normalize, sink is not None)
    if mods is None:
        return None
    captured, handle = mods
    return [*captured, *sink_of(sink, q.shape[heads], q.device)], handle


__all__ = ["check_places", "clear_strangers", "entered_in_graph", "known_rule", "launched", "mask_of", "places", "rule"]
