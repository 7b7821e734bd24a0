"""`flex_attention`: the call that FlexAttention has, on kernels of this package. Owns which kernel a call's mods have."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..diagnostics import CuirError
from ..printer import show
from ..spec import Specification, lengths_of
from ..transfer import Traced, TransferResult, trace
from .inputs import check_gradient, check_options, check_tensors
from .kernels import Attention, Level, dtype_of, made, name_of
from .masks import check_blocks, check_mask, mod_of
from .mods import Identity, identity

KNOWN_MODS = 256


@dataclass(frozen=True)
class Known:
    """The attention of some mods. transferred: with their numbers, and nothing in the places of the tensors that they capture.

    places: (index among the captured parameters, index among the mods' tensors) of each captured tensor.
    """

    attention: Attention
    transferred: TransferResult
    places: tuple[tuple[int, int], ...]

    def data(self, who: Identity) -> TransferResult:
        """The transfer with the tensors that these mods capture."""
        if not self.places:
            return self.transferred
        captured = list(self.transferred.captured)
        for parameter, place in self.places:
            captured[parameter] = replace(captured[parameter], value=who.tensors[place])
        return replace(self.transferred, captured=tuple(captured))


_KNOWN: OrderedDict[Any, Known] = OrderedDict()  # by identity of the mods: nothing is traced
_TRACED: dict[Any, Attention] = {}  # by what the mods trace to: nothing is transferred
_LOCK = threading.Lock()
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
    *,
    backend: str = "auto",
    verify: Level = "quick",
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Attention with a score_mod and a mask, as torch.nn.attention.flex_attention computes it, on an expert kernel for Hopper. No backward pass.

    query [B, H, M, D], key and value [B, HK, N, D], f16 or bf16, D 64 or 128, the last dim contiguous. score_mod(score, b, h, q_idx, kv_idx): the new score
    from scale * <q, k>, in f32. block_mask: what `create_block_mask` gives, ours or PyTorch's. scale: 1 / sqrt(D) if left out, > 0. enable_gqa: H may be a
    multiple of HK. Gives O [B, H, M, D] with the strides of query where it is dense, and with return_lse also LSE [B, H, M], f32, in natural logarithms. A query
    without keys has O = 0 and LSE = -inf, as in PyTorch.

    backend: "auto" runs on the Hopper GPU that the tensors are on; "interpret" runs the kernel in the interpreter, slowly, on any machine. verify: how much is
    asked of a new kernel before it runs on a GPU, on the CPU, once ("quick", "full" or "off"); the answer is kept in the cache folder.

    Mods of the same code share a kernel: captured tensors are passed when it runs, and lengths are not part of it. Raises CuirError: U4xx for arguments that
    do not fit, X1xx for mods that cannot be traced, U5xx for what is missing here, and what verification finds.
    """
    check_options(scale, backend, verify)
    check_tensors(query, key, value, enable_gqa)
    at = lengths_of(query, key)
    mask_mod = mod_of(block_mask)
    check_mask(block_mask, at)
    who = identity(mask_mod, score_mod)
    known = _known(mask_mod, score_mod, who, query, verify)
    for parameter, place in known.places:
        _check_captured(known.attention.transferred.captured[parameter].name, who.tensors[place], query)
    check_blocks(block_mask, at, query.device)
    return known.attention.run(query, key, value, scale, return_lse, backend, known.data(who))


def _known(
    mask_mod: Callable[..., Any] | None, score_mod: Callable[..., Any] | None, who: Identity, query: torch.Tensor, level: Level
) -> Known:
    """The attention of these mods: known from an earlier call, or made now."""
    signature = (who.structure, who.values, query.dtype, query.shape[3], level)
    found = _KNOWN.get(signature) if who.known else None
    if found is not None:
        return found
    with _LOCK:
        name = "_".join(name_of(mod) for mod in (score_mod, mask_mod) if mod is not None) or "full"
        spec = Specification(name, mask_mod, score_mod)
        traced = trace(spec)
        attention = _attention(spec, traced, who, query, level)
        places, captured = [], []
        for i, (own, parameter) in enumerate(zip(attention.transferred.captured, traced.parameters, strict=True)):
            at = next((j for j, t in enumerate(who.tensors) if t is parameter.value), None)
            if at is not None:
                places.append((i, at))
            captured.append(replace(own, value=parameter.value if at is None else _NOTHING))
        found = Known(attention, replace(attention.transferred, captured=tuple(captured)), tuple(places))
        if who.known and not any(isinstance(p.value, torch.Tensor) and p.value is not _NOTHING for p in captured):
            _KNOWN[signature] = found
            while len(_KNOWN) > KNOWN_MODS:
                _KNOWN.popitem(last=False)
    return found


def _attention(spec: Specification, traced: Traced, who: Identity, query: torch.Tensor, level: Level) -> Attention:
    """The attention of mods that trace to this: known from other mods of the same structure, or made now."""
    texts = tuple("" if e is None else show(e) for e in (traced.keep, traced.score, traced.factor))
    parameters = tuple((p.name, p.dtype, p.rank) for p in traced.parameters)
    key = texts, parameters, who.structure, query.dtype, query.shape[3], level
    if key not in _TRACED:
        if len(_TRACED) >= KNOWN_MODS:
            _TRACED.pop(next(iter(_TRACED)))
        _TRACED[key] = made(spec, who, dtype_of(query.dtype), query.shape[3], level=level)
    return _TRACED[key]


def _check_captured(name: str, tensor: torch.Tensor, query: torch.Tensor) -> None:
    """Whether a captured tensor is where the others are. Raises CuirError U407, U410."""
    if tensor.device != query.device:
        raise CuirError.of("U407", f"`{name}`, which a mod captures, must be on the device of `query`, {query.device}, found {tensor.device}",
                           hint=f"{name}.to(query.device)")  # fmt: skip
    check_gradient(name, tensor)


__all__ = ["flex_attention"]
