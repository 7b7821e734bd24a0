"""The kernels of a backward pass: which of them run for the gradients that are asked for, each as a program of its own that is made, checked and verified when first needed. Owns
their settings.

dK and dV, and gradients of captured tensors, come of CTAs that own keys (`flash_bwd_sm90`), as does dQ beside them: it is added up in f32, in an open order. dQ alone, or
with the same bits every time, or where queries have few keys, comes of CTAs that own queries (`flash_bwd_dq_sm90`): as many products as the other kernel has for dQ alone, and no f32 tensor. Of f32 inputs these are
`flash_bwd_f32` and `flash_bwd_dq_f32`, and dQ always comes of the latter: nothing is added up in an open order but gradients of captured tensors.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import torch

from ..checking.checked import Checked, Const
from ..spec.specification import Lengths, Specification
from ..syntax import nodes
from ..syntax.nodes import Program
from ..syntax.types import F32
from ..syntax.walk import names_read
from ..variants import Traced, TransferResult
from ..variants.arguments import Cache, sources_of
from ..variants.backward import KERNEL, read_by_gradients, transfer_backward, uneven
from ..variants.derivative import dscore
from ..variants.query_gradients import KERNEL as BY_QUERIES
from ..variants.query_gradients import transfer_query_gradients
from .inputs import need_warm
from .made import Made
from .mods import CaptureKey
from .progress import Progress

NARROW, WIDE, QUERIES = "flash_bwd_sm90", "flash_bwd_wide_sm90", "flash_bwd_dq_sm90"  # programs of the corpus
SINGLE, SINGLE_QUERIES = "flash_bwd_f32", "flash_bwd_dq_f32"  # those of f32

NARROW_DIM = 128  # head dim up to which a warpgroup's registers hold dK and dV of 64 keys
LEAST_SPREAD = 1 << 17  # queries times head dim from which on heads of a group are shared out
ROOM = 384  # head dims of keys and values together, in whole panels, beside which registers and shared memory have room for more


class Attention(Protocol):
    """What a plan reads of an attention (kernels.py)."""

    traced: Traced
    level: Literal["quick", "full", "off"]

    @property
    def spec(self) -> Specification: ...
    @property
    def fixed(self) -> Mapping[str, Const]: ...
    @property
    def who(self) -> CaptureKey: ...


@dataclass(frozen=True)
class Asked:
    """Which gradients a backward pass gives. queries: dQ; keys: dK and dV; learned: of what mods capture, by place; in_order: with the same bits every time.
    spread: dK and dV of a key head by CTAs for each of its query heads, which add them up (`spreads`). apart: dQ by a kernel of its own (few_keys.py). of_lse: LSE has a gradient, too, which a kernel of dQ alone does not know of."""

    queries: bool = True
    keys: bool = True
    learned: tuple[int, ...] = ()
    in_order: bool = False
    spread: bool = False
    apart: bool = False
    of_lse: bool = False


@dataclass(frozen=True, eq=False)
class Step:
    """A kernel of a program, with its const parameters. Steps of a plan that run the same kernel are one object."""

    program: Program
    kernel: str
    consts: Mapping[str, Const]

    @functools.cached_property
    def checked(self) -> Checked:
        from ..checking.checker import check

        return check(self.program, self.kernel, self.consts)


def _sloped(traced: Traced) -> bool:
    """Whether scores have a derivative that is not 1."""
    return dscore(*traced.differentiated) != nodes.Literal(1.0)


class Part:
    """A kernel of gradients whose splice points a transfer has replaced."""

    def __init__(self, attention: Attention, transferred: TransferResult, setting: Mapping[str, Const]):
        self.attention, self.transferred, self.kernel = attention, transferred, transferred.kernel
        traced = attention.traced
        slopes = {"SLOPES": _sloped(traced)}
        self.step = Step(transferred.program, self.kernel, {**attention.fixed, **setting, **slopes})
        read = read_by_gradients(traced)
        self.places = [
            i for i, p in enumerate(traced.parameters) if p.name in read
        ]  # of what it takes among what the forward pass captures
        self.kept = Cache()

    @functools.cached_property
    def takes(self) -> frozenset[str]:
        """The names of the kernel's parameters."""
        return frozenset(p.name for p in self.step.program.kernels()[self.kernel].params)

    def arguments(self, forward: TransferResult, at: Lengths, device: torch.device) -> Made | None:
        """The captured values of a forward call, which has found them to fit, and the block lists; kept while they stay the same. Raises CuirError U415."""
        if not self.places and self.transferred.lists is None:
            return None
        values = [forward.captured[i].value for i in self.places]
        captured = tuple(replace(p, value=value) for p, value in zip(self.transferred.captured, values, strict=True))
        data = replace(self.transferred, captured=captured)

        def make() -> Made:
            need_warm("preparing what a mask captures")
            return Made(data.arguments(at, device, self.step.consts, dropout=False), device)

        made = self.kept.get((at, str(device)), sources_of(captured, data.spec, at), make)
        assert isinstance(made, Made)
        return made

    def by_place(self, found: Mapping[str, torch.Tensor]) -> dict[int, torch.Tensor]:
        """Gradients that a launch gave by name, by the place of the tensor among what the forward pass captures."""
        places = {p.name: i for p, i in zip(self.transferred.captured, self.places, strict=True)}
        return {places[of]: found[g] for of, g in self.transferred.gradients.items()}

    def prove(self, progress: Progress) -> None:
        """Verifies the program against autograd of its specification. Raises CuirError if it is wrong."""
        from .verified import verified

        attention, step = self.attention, self.step
        if attention.level != "off":
            verified(step.program, attention.spec, attention.who, step.consts, attention.level, progress, kernel=self.kernel)


@dataclass(frozen=True)
class Plan:
    """The kernels of a backward pass, by name, and those of them that are the variant's. by_keys: of dK, dV and what mods capture; by_queries: of dQ, if that is not added up by the
    other one (`adds`); it goes first where it makes what `prepare` would have made. spread: dK and dV are added up, too, each head of a group by other CTAs."""

    steps: Mapping[str, Step]
    by_keys: Part | None = None
    by_queries: Part | None = None
    adds: bool = False
    spread: bool = False

    @property
    def parts(self) -> tuple[Part, ...]:
        return tuple(part for part in (self.by_keys, self.by_queries) if part is not None)


def planned(attention: Attention, asked: Asked) -> Plan:
    """The kernels that what is asked takes, none if nothing depends on what learns. Raises CuirError X109 what has no gradients."""
    traced = attention.traced
    dims = int(attention.fixed["D"]), int(attention.fixed["DV"])  # type: ignore[arg-type]
    single = attention.fixed["T"] == F32
    program = SINGLE if single else NARROW if max(dims) <= NARROW_DIM else WIDE
    by_keys = by_queries = None
    open_order = not (asked.in_order or asked.apart or single)
    spread = asked.spread and asked.keys and open_order
    if asked.keys or asked.learned:
        transferred = transfer_backward(origin(program), attention.spec, traced=traced, learned=asked.learned)
        if asked.keys or transferred.gradients:
            adds = asked.queries and open_order
            wanted: dict[str, Const] = {"KEYS": asked.keys} if single else {"QUERIES": adds, "KEYS": asked.keys}
            if spread:
                wanted |= {"SPREAD": True, "G": F32}
            setting = single_by_keys(*dims) if single else setting_by_keys(*dims, adds, _sloped(traced))
            by_keys = Part(attention, transferred, {**setting, **wanted})
    adds = asked.queries and by_keys is not None and open_order
    if asked.queries and not adds:
        transferred = transfer_query_gradients(origin(SINGLE_QUERIES if single else QUERIES), attention.spec, traced=traced)
        by_queries = Part(attention, transferred, single_by_queries(*dims) if single else setting_by_queries(*dims, not asked.of_lse))
    sinks = names_read(traced.sink) if traced.sink is not None else set()
    if by_keys is None and by_queries is None and not any(traced.parameters[i].name in sinks for i in asked.learned):
        return Plan({})
    rows: dict[str, Const] = {"STAGES": 1} if single and dims[1] > NARROW_DIM else {}  # O and dO of f32 take twice the room
    prepared = by_queries is not None and by_queries.step.consts.get("PREPARES", False)
    steps = {} if prepared else {"prepare": _around("prepare", attention, QUERIES=adds, **rows)}
    steps |= {part.kernel: part.step for part in (by_keys, by_queries) if part is not None}
    finish = _around("finish", attention)
    if adds:
        steps["finish"] = finish
    if spread:
        steps |= {"finish_keys": finish, "finish_values": finish if dims[0] == dims[1] else _around("finish", attention, D=dims[1])}
    return Plan(steps, by_keys, by_queries, adds, spread)


def spreads(attention: Attention, at: Lengths) -> bool:
    """Whether the query heads of a key head are better shared out: where blocks of keys have different numbers of queries, CTAs that go through all heads of a group come to be at
    different ones, whose Q, dO and dQ do not fit the L2 cache together. Short ones, which take less than adding dK and dV up in f32, are not."""
    if at.H == at.HK or at.M * int(attention.fixed["D"]) < LEAST_SPREAD:  # type: ignore[arg-type]
        return False
    return uneven(attention.traced)


def setting_by_keys(keys: int, values: int, queries: bool = True, sloped: bool = False) -> dict[str, Const]:
    """The const parameters for head dims: what fits the registers and shared memory. queries: dQ is added up, too. sloped: scores have a derivative to multiply with."""
    if max(keys, values) > NARROW_DIM:
        D, DV = _panels(keys), _panels(values)
        whole = D + DV <= ROOM  # whether a block of dQ goes beside dV
        return {"COLUMNS": D if whole and D <= 192 else 64 if D % 128 else 128, "DOSTAGES": 2 if whole else 1}
    if keys > 64:
        return {"BM": 64, "LATER": queries and not sloped}
    # two stages where there is room, and where warpgroups take turns: the one that is ahead begins the next block while the other ends this one
    return {"BM": 128, "STAGES": 2 if values <= 64 or not queries else 1, "LATER": False, "TURNS": not queries}


def setting_by_queries(keys: int, values: int, prepares: bool = False) -> dict[str, Const]:
    """The const parameters of the kernel of dQ alone. prepares: it may make the rows itself, and does where shared memory has room for O."""
    if max(keys, values) > NARROW_DIM:
        return {"BM": 128, "BN": 64, "STAGES": 2 if _panels(keys) + _panels(values) <= ROOM else 1, "DIRECT": True}
    if max(keys, values) > 64:
        return {"BM": 128, "BN": 64, "STAGES": 3, "OVERLAP": True, "PREPARES": prepares, "DIRECT": prepares}
    return {"BM": 128, "BN": 128, "PREPARES": prepares}


def single_by_keys(keys: int, values: int) -> dict[str, Const]:
    """The const parameters of the kernel of f32 for head dims: two warpgroups share 64 keys where the registers of one do not hold their dK and dV."""
    if max(keys, values) > NARROW_DIM:
        return {"BN": 64, "SPLIT": 2, "STAGES": 4 if _panels(keys) + _panels(values) <= ROOM else 2}
    return {"BN": 128, "SPLIT": 1, "STAGES": 4}


def single_by_queries(keys: int, values: int) -> dict[str, Const]:
    """The const parameters of the kernel of dQ of f32."""
    if max(keys, values) > NARROW_DIM:
        return {"BM": 64, "BN": 16, "STAGES": 2}
    return {"BM": 128, "BN": 32, "STAGES": 2}


def _panels(dim: int) -> int:
    """Columns of a head dim in shared memory."""
    return -(-dim // 64) * 64


def _around(kernel: str, attention: Attention, **consts: Const) -> Step:
    """A kernel that comes before or after: the same for all variants."""
    program = origin(NARROW)
    known = {p.name for p in program.kernels()[kernel].params}
    return Step(program, kernel, {n: v for n, v in {**attention.fixed, **consts}.items() if n in known})


@functools.cache
def origin(name: str) -> Program:
    """An expert program of gradients."""
    import corpus

    from ..syntax.parser import parse

    return parse(corpus.kernels()[name].read_text(encoding="utf-8"), f"{name}.cuir")


__all__ = ["BY_QUERIES", "KERNEL", "Asked", "Attention", "Part", "Plan", "Step", "planned", "spreads"]
