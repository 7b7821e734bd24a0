"""The kernels of a backward pass, chosen by the gradients that are requested, and their settings.

Each is a program of its own, which is transferred, checked and verified when first needed.

dK and dV, and gradients of captured tensors, are computed by CTAs that each hold a block of keys (`flash_bwd_sm90`).
The same kernel can add dQ up in f32, in no fixed order. dQ alone, or deterministic dQ, or dQ of queries with few keys,
is
computed by CTAs that each hold a block of queries (`flash_bwd_dq_sm90`): for dQ alone this takes as many products as
the other
kernel, and no f32 tensor. For f32 inputs the kernels are `flash_bwd_f32` and `flash_bwd_dq_f32`, and dQ always comes
from the
latter: only gradients of captured tensors are added up in no fixed order.

Heuristic for a separate kernel for dQ, which pays where queries have few keys.

Adding dQ up in f32 moves it five times (zeros, the reads and writes of the additions, `finish`), whatever the mask. A
separate
kernel reads Q, K, V and dO once more, and computes scores and dP twice. So it is the faster way for few keys a query,
and the
slower one for many; the more a score costs, the sooner it is slower.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import torch

from ...checking.checked import Checked, Const
from ...ops.limits import TARGETS
from ...performance.selection.device import bandwidth
from ...runtime.cards import Card
from ...spec.specification import Lengths, Specification
from ...syntax import nodes
from ...syntax.nodes import Program
from ...syntax.types import F16, F32, DType
from ...syntax.walk import names_read
from ..capture.call_inputs import capturing, need_warm
from ..capture.capture_keys import CaptureKey
from ..capture.device_tensors import Counting, DeviceArguments
from ..capture.first_call_progress import Progress
from ..masks.block_lists import Lists
from ..splicing.backward import KERNEL, has_uneven_work
from ..splicing.backward import QUERY_KERNEL as BY_QUERIES
from ..splicing.captured_arguments import Cache, sources_of
from ..splicing.derivative import dscore
from ..splicing.splice import TransferResult
from ..tracing.traced_result import Traced
from .card_kernels import DEFAULT, WIDEST, Task, choose_task, find_kernel
from .experts import origin_of
from .settings import KNOWN_LENGTHS, Settings
from .transfers import places_read_by_gradients, transfer_backward_to_expert, transfer_queries_to_expert
from .warp_settings import choose_fitting, list_by_keys, list_by_queries

NARROW_DIM = 128  # head dim up to which a warpgroup's registers hold dK and dV of 64 keys
LEAST_SPREAD = 1 << 17  # least queries times head dim for which heads of a group are dealt to separate CTAs
# largest sum of the head dims of keys and values, in whole panels, that leaves registers and shared memory for more
ROOM = 384
SPLIT_ROOM = 832  # the same, in pairs of panels, for two stages of blocks of 32 keys beside 64 queries
SPLIT_BLOCK = 1152  # and for one stage
SPLIT_ROWS = 1664  # columns of K, Q and dO, or of K, parts of Q and dO, and V, for blocks of 64 queries


class Attention(Protocol):
    """The part of an attention (attention_kernel.py) that a plan reads."""

    traced: Traced
    level: Literal["quick", "full", "off"]

    @property
    def spec(self) -> Specification: ...
    @property
    def arch(self) -> str: ...
    @property
    def card(self) -> Card | None: ...
    @property
    def fixed(self) -> Mapping[str, Const]: ...
    @property
    def capture_key(self) -> CaptureKey: ...


@dataclass(frozen=True)
class RequestedGradients:
    """The gradients that a backward pass is to compute.

    Attributes:
        queries: dQ.
        keys: dK and dV.
        learned: gradients of these captured tensors, by their index among the captured parameters.
        in_order: deterministic, bit for bit.
        spread: dK and dV of a key head are added up from a CTA for each of its query heads (`deals_heads`).
        separate_queries: dQ comes from a kernel of its own (backward_kernels.py).
        of_lse: LSE has a gradient as well, which a kernel of dQ alone does not take.
    """

    queries: bool = True
    keys: bool = True
    learned: tuple[int, ...] = ()
    in_order: bool = False
    spread: bool = False
    separate_queries: bool = False
    of_lse: bool = False


@dataclass(frozen=True, eq=False)
class Step:
    """A kernel of a program, with its const parameters.

    Steps of a plan that run the same kernel are one object.
    """

    program: Program
    kernel: str
    consts: Mapping[str, Const]

    @functools.cached_property
    def checked(self) -> Checked:
        from ...checking.checker import check

        return check(self.program, self.kernel, self.consts)


def _has_slope(traced: Traced) -> bool:
    """Return True if scores have a derivative other than 1."""
    return dscore(*traced.differentiated) != nodes.Literal(1.0)


class Part:
    """A kernel of gradients whose splice points a transfer has replaced."""

    def __init__(self, attention: Attention, transferred: TransferResult, setting: Mapping[str, Const]):
        self.attention, self.transferred, self.kernel = attention, transferred, transferred.kernel
        traced = attention.traced
        slopes = {"SLOPES": _has_slope(traced)}
        self.step = Step(transferred.program, self.kernel, {**attention.fixed, **slopes, **setting})
        # indices, among the captured parameters of the forward pass, of those that this kernel takes
        self.places = places_read_by_gradients(traced)
        self.results = Cache()

    @functools.cached_property
    def takes(self) -> frozenset[str]:
        """The names of the kernel's parameters."""
        return frozenset(p.name for p in self.step.program.kernels()[self.kernel].params)

    def arguments(self, forward: TransferResult, at: Lengths, device: torch.device) -> DeviceArguments | None:
        """Prepare the captured values of a forward call and the block lists as arguments of this kernel.

        The values passed the checks of the forward call. Results are cached while their sources stay the same; None if
        the kernel takes neither. Raises CuirError U415.

        Args:
            at: lengths of the problem.
        """
        if not self.places and self.transferred.lists is None:
            return None
        values = [forward.captured[i].value for i in self.places]
        captured = tuple(replace(p, value=value) for p, value in zip(self.transferred.captured, values, strict=True))
        data = replace(self.transferred, captured=captured)

        def make() -> DeviceArguments:
            need_warm("preparing what a mask captures")
            return DeviceArguments(data.arguments(at, device, self.step.consts, dropout=False), device)

        result = self.results.get((at, str(device)), sources_of(captured, data.spec, at), make)
        assert isinstance(result, DeviceArguments)
        return result

    def by_place(self, gradients: Mapping[str, torch.Tensor]) -> dict[int, torch.Tensor]:
        """Key a launch's gradients by index among the captured parameters of the forward pass.

        The launch gives them by name.
        """
        places = {p.name: i for p, i in zip(self.transferred.captured, self.places, strict=True)}
        return {places[of]: gradients[g] for of, g in self.transferred.gradients.items()}

    def prove(self, progress: Progress) -> None:
        """Verify the program against autograd of its specification.

        Raises CuirError if it is wrong.
        """
        from .transfers import verify_or_recall

        attention, step = self.attention, self.step
        if attention.level != "off":
            verify_or_recall(
                step.program, attention.spec, attention.capture_key, step.consts, attention.level, progress, kernel=self.kernel
            )


@dataclass(frozen=True)
class Plan:
    """The kernels of a backward pass, by name, and those of them that are specific to the variant.

    Attributes:
        by_keys: the kernel of dK, dV and gradients of captured tensors.
        by_queries: the kernel of dQ, unless the other one adds it up (`adds`); it runs first where it does the work of
            `prepare`.
        spread: dK and dV are added up too, from other CTAs for each head of a group.
    """

    steps: Mapping[str, Step]
    by_keys: Part | None = None
    by_queries: Part | None = None
    adds: bool = False
    spread: bool = False

    @property
    def in_blocks(self) -> bool:
        """The f32 tensor of dQ lies in blocks (`lay_out_sums`)."""
        step = self.steps.get("prepare")
        return step is not None and any(
            p.name == "dQ" and BLOCKED in p.type.dims
            for p in step.program.kernels()["prepare"].params
            if isinstance(p.type, nodes.GlobalType)
        )

    @property
    def parts(self) -> tuple[Part, ...]:
        return tuple(part for part in (self.by_keys, self.by_queries) if part is not None)


def plan_gradients(attention: Attention, requested: RequestedGradients) -> Plan:
    """Plan the kernels for the requested gradients; none if nothing depends on what requires a gradient.

    Raises CuirError X109 for what has no gradients.
    """
    traced = attention.traced
    dims = int(attention.fixed["D"]), int(attention.fixed["DV"])  # type: ignore[arg-type]
    T = attention.fixed["T"]
    assert isinstance(T, DType)
    single = T == F32
    by_keys = by_queries = None
    loads = not TARGETS[attention.arch].has("cp_async")
    open_order = not (requested.in_order or requested.separate_queries or single)
    split = max(dims) > WIDEST
    spread = requested.spread and requested.keys and open_order and attention.arch == DEFAULT and not split
    if requested.keys or requested.learned:
        program = find_kernel(attention.arch, choose_task("keys" if max(dims) <= NARROW_DIM else "wide keys", *dims), T)
        transferred = transfer_backward_to_expert(program, attention.spec, traced, requested.learned)
        if requested.keys or transferred.gradients:
            parameters = {p.name for p in transferred.program.kernels()[transferred.kernel].params}
            adds = requested.queries and open_order and "dQ" in parameters
            outputs: dict[str, Const] = {"KEYS": requested.keys, **({"QUERIES": adds} if "QUERIES" in parameters else {})}
            if spread:
                outputs |= {"SPREAD": True, "G": F32}
            if attention.arch != DEFAULT:
                setting = _choose_for_card(attention, transferred, list_by_keys(*dims, single, loads, adds), outputs)
            else:
                setting = single_by_keys(*dims) if single else setting_by_keys(*dims, adds, _has_slope(traced))
            if split:
                setting = split_by_keys(*dims)
            by_keys = Part(attention, transferred, {**setting, **outputs})
    adds = requested.queries and by_keys is not None and open_order and "dQ" in by_keys.takes
    if requested.queries and not adds:
        transferred = transfer_queries_to_expert(find_kernel(attention.arch, choose_task("queries", *dims), T), attention.spec, traced)
        if attention.arch != DEFAULT:
            setting = _choose_for_card(attention, transferred, list_by_queries(*dims, single, loads), {})
        else:
            setting = single_by_queries(*dims) if single else setting_by_queries(*dims, not requested.of_lse)
        if split:
            setting = split_by_queries(*dims)
        by_queries = Part(attention, transferred, setting)
    sinks = names_read(traced.sink) if traced.sink is not None else set()
    if by_keys is None and by_queries is None and not any(traced.parameters[i].name in sinks for i in requested.learned):
        return Plan({})
    # O and dO of f32 take twice the room
    rows: dict[str, Const] = {"STAGES": 1} if single and dims[1] > NARROW_DIM else {}
    prepared = by_queries is not None and by_queries.step.consts.get("PREPARES", False)
    steps = {} if prepared else {"prepare": _around("prepare", attention, QUERIES=adds, **rows)}
    steps |= {part.kernel: part.step for part in (by_keys, by_queries) if part is not None}
    if adds or spread:
        finish = _around("finish", attention)
    if adds:
        steps["finish"] = finish
    if spread:
        steps |= {"finish_keys": finish, "finish_values": finish if dims[0] == dims[1] else _around("finish", attention, D=dims[1])}
    return Plan(steps, by_keys, by_queries, adds, spread)


def _choose_for_card(
    attention: Attention, transferred: TransferResult, candidates: list[dict[str, Const]], outputs: Mapping[str, Const]
) -> dict[str, Const]:
    """Return the first setting of a kernel of gradients that the card holds."""
    fixed = {**attention.fixed, **outputs, "SLOPES": _has_slope(attention.traced)}
    return choose_fitting(transferred.program, transferred.kernel, fixed, candidates, attention.card)


def deals_heads(attention: Attention, at: Lengths) -> bool:
    """Decide whether the query heads that share a key head are computed by separate CTAs.

    This pays where blocks of keys have different numbers of queries: CTAs that walk all heads of a group drift to
    different heads, whose Q, dO and dQ together do not fit the L2 cache. It does not pay for short problems, which take
    less time than adding dK and dV up in f32.
    """
    if at.H == at.HK or at.M * int(attention.fixed["D"]) < LEAST_SPREAD:  # type: ignore[arg-type]
        return False
    return has_uneven_work(attention.traced)


def setting_by_keys(keys: int, values: int, queries: bool = True, sloped: bool = False) -> dict[str, Const]:
    """Return the const parameters for head dims: what registers and shared memory have room for.

    Args:
        queries: dQ is added up, too.
        sloped: scores have a derivative to multiply with.
    """
    if max(keys, values) > NARROW_DIM:
        D, DV = _panels(keys), _panels(values)
        whole = D + DV <= ROOM  # shared memory holds a block of dQ next to dV
        return {"COLUMNS": D if whole and D <= 192 else 64 if D % 128 else 128, "DOSTAGES": 2 if whole else 1}
    if keys > 64:
        return {"BM": 64, "LATER": queries and not sloped}
    # two stages where there is room, and where warpgroups take turns: the leading one begins the next block while the
    # other ends this one
    return {"BM": 128, "STAGES": 2 if values <= 64 or not queries else 1, "LATER": False, "TURNS": not queries}


def setting_by_queries(keys: int, values: int, prepares: bool = False) -> dict[str, Const]:
    """Return the const parameters of the kernel of dQ alone.

    Args:
        prepares: it may compute the rows of `prepare`, and does where shared memory has room for O.
    """
    if max(keys, values) > NARROW_DIM:
        return {"BM": 128, "BN": 64, "STAGES": 2 if _panels(keys) + _panels(values) <= ROOM else 1, "DIRECT": True}
    if max(keys, values) > 64:
        return {"BM": 128, "BN": 64, "STAGES": 3, "OVERLAP": True, "PREPARES": prepares, "DIRECT": prepares}
    return {"BM": 128, "BN": 128, "PREPARES": prepares}


def split_by_keys(keys: int, values: int) -> dict[str, Const]:
    """Return the const parameters of the kernel of dK and dV whose columns two warpgroups share."""
    D, DV = (-(-dim // 128) * 128 for dim in (keys, values))
    return {} if D + max(D, DV) + DV <= SPLIT_ROWS else {"BM": 32, "PART": 16}


def split_by_queries(keys: int, values: int) -> dict[str, Const]:
    """Return the const parameters of the kernel of dQ whose columns two warpgroups share."""
    columns = sum(-(-dim // 128) * 128 for dim in (keys, values))
    return {"STAGES": 2 if columns <= SPLIT_ROOM else 1, **({"BN": 16} if columns > SPLIT_BLOCK else {})}


def single_by_keys(keys: int, values: int) -> dict[str, Const]:
    """Return the const parameters of the f32 kernel of dK and dV.

    Two warpgroups share 64 keys where the registers of one do not hold their dK and dV.
    """
    if max(keys, values) > NARROW_DIM:
        return {"BN": 64, "SPLIT": 2, "STAGES": 4 if _panels(keys) + _panels(values) <= ROOM else 2}
    return {"BN": 128, "SPLIT": 1, "STAGES": 4}


def single_by_queries(keys: int, values: int) -> dict[str, Const]:
    """Return the const parameters of the f32 kernel of dQ."""
    if max(keys, values) > NARROW_DIM:
        return {"BM": 64, "BN": 16, "STAGES": 2}
    return {"BM": 128, "BN": 32, "STAGES": 2}


def _panels(dim: int) -> int:
    """Return the columns that a head dim takes in shared memory."""
    return -(-dim // 64) * 64


def _around(kernel: str, attention: Attention, **consts: Const) -> Step:
    """Return the step of a kernel that runs before or after the variant's own: the same for all variants."""
    dims = int(attention.fixed["D"]), int(attention.fixed["DV"])  # type: ignore[arg-type]
    task: Task = "split keys" if max(dims) > WIDEST else "keys"
    program = origin_of(find_kernel(attention.arch, task, F16))  # which holds them for every dtype
    parameters = {p.name for p in program.kernels()[kernel].params}
    return Step(program, kernel, {n: v for n, v in {**attention.fixed, **consts}.items() if n in parameters})


# Keys that a query visits, in blocks of 128, as a multiple of the head dim. On an H200 (where it is 3.1) 2.5 is a gain
# of 5 % (head dim
# 128), 3.3 a loss of 6 % (96), 2.3 a gain of 2 % (256).
FEW = 4.5
# Factor where the heads of a group would be dealt to separate CTAs, whose dK and dV are added up, too: on an H200 4.5
# is a gain of 6 %
# (128), 5.0 one of 27 % (64).
SHARED_OUT = 1.7
BLOCKED = "MD"  # the dim of dQ that lies in blocks
BANDWIDTH = 3.35e12  # bytes a second, of the device that FEW is for
PRODUCTS, PLAIN = 4096, 128  # operations in a clock of a multiprocessor: of the tensor core, and others
# instructions of a pair without its score: an exponential, which takes as long as eight others, and eight others
OWN_ROWS = 16


def has_few_keys(
    settings: Settings,
    data: TransferResult,
    device_arguments: DeviceArguments | None,
    at: Lengths,
    device: torch.device,
    spread: bool = False,
) -> bool:
    """Decide whether the queries of a call have so few keys that a separate kernel computes dQ faster.

    The first call of these lengths waits for the device; later ones use the count of earlier data until their own
    arrives. In the interpreter this is False.

    Args:
        data: the captured values of the forward call's mods.
        device_arguments: the arguments that its kernel took for them.
        spread: the heads of a group would otherwise be dealt to separate CTAs.
    """
    dim, score = max(int(settings.fixed[n]) for n in ("D", "DV")), settings.score  # type: ignore[arg-type]
    if device.type != "cuda" or score is None:
        return False
    if score.special:  # computing it twice was slower when measured (a soft cap, 1024 keys, head dim 128)
        return False
    keys, cost = mean_visited_keys(settings, data, device_arguments, at), 4 * dim / PRODUCTS + OWN_ROWS / PLAIN
    if keys is None:
        return False
    return keys <= FEW * (SHARED_OUT if spread else 1) * dim * cost / (cost + score.plain / PLAIN) * BANDWIDTH / (
        bandwidth(device.index or 0) or BANDWIDTH
    )


def mean_visited_keys(settings: Settings, data: TransferResult, device_arguments: DeviceArguments | None, at: Lengths) -> float | None:
    """Return the keys that a query visits on average, in whole blocks; None if they are unknown.

    While the device has not counted those of this data, the last count for these lengths is returned.
    """
    if not isinstance(data.lists, Lists) or device_arguments is None:
        return settings.count_visited_keys(at, settings.numbers(data.captured))
    if device_arguments.visited is not None:
        return device_arguments.visited
    previous = settings.counted.get(at)
    if previous is not None and capturing():  # an event must not be queried during a capture
        return previous
    if device_arguments.counting is None:
        need_warm("counting the blocks of a mask")
        count, blocks = device_arguments.tensor(data.lists.count), device_arguments.tensor(data.lists.list).shape[-1]
        device_arguments.counting = Counting(count[..., 1].float().mean() * (at.N / blocks))
    if previous is not None and not device_arguments.counting.has_arrived():
        return previous
    if len(settings.counted) >= KNOWN_LENGTHS:
        settings.counted.clear()
    device_arguments.visited = settings.counted[at] = device_arguments.counting.value()
    return device_arguments.visited


__all__ = [
    "BY_QUERIES",
    "KERNEL",
    "Attention",
    "Part",
    "Plan",
    "RequestedGradients",
    "Step",
    "deals_heads",
    "has_few_keys",
    "mean_visited_keys",
    "plan_gradients",
]
