"""`flex_attention` under torch.compile: an operator `cuir::flex_attention`, without a graph break.

A mod enters the graph in two parts. Its code, numbers and functions are fixed when the graph is traced, guarded by
torch.compile, and registered under a handle. The tensors that it captures are inputs of the operator, so other tensors
need no new graph.
"""

from __future__ import annotations

import hashlib
import itertools
import types
import weakref
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from numbers import Number
from typing import Any, NamedTuple

import torch
from torch.autograd.function import FunctionCtx
from torch.nn.attention.flex_attention import BlockMask
from torch.utils._mode_utils import no_dispatch

from ...spec.specification import Normalize, Specification, lengths_of
from ...text.diagnostics import CuirError
from ..capture.attention_request import SOFTMAX, AttentionRequest, Level, Mod, Options, Variant, Weighting
from ..capture.call_inputs import Seeded, check_options, check_tensors, parts_for
from ..capture.capture_keys import Path, follow, make_capture_key
from ..capture.double_backward import differentiate_once
from ..capture.graph_errors import at_tracing, at_users_places, of_operator
from ..capture.kernel_operands import empty_as, output_for, without_room
from ..kernels.attention_kernel import ATTENTIONS, Ready, name_of
from ..kernels.autograd import BackwardInputs, backward
from ..outputs.max_scores import MAX_SCORES
from ..outputs.output_table import OUTPUT_SETS, name_operator
from ..splicing.captured_arguments import Snapshot, state_of, take_snapshot
from ..splicing.specification_copies import rebuild_mods
from ..tracing.refusal import Translate, translate_pairs
from ..tracing.traced_result import Parameter
from .block_masks import is_steady, mark_steady
from .prepared_calls import prepare

SCHEMA = "(Tensor query, Tensor key, Tensor value, Tensor[] captured, str handle, float scale, bool enable_gqa, str backend, str verify, bool batch_invariant=False, SymInt[] block_size=[])"
BACKWARD_SCHEMA = SCHEMA.replace(
    "Tensor[] captured", "Tensor o, Tensor lse, Tensor do, Tensor? dlse, bool[] needs_grad, int[] learned, Tensor[] captured"
)
KNOWN_CALLS = 256  # size limit of the caches of one handle
UNKNOWN = ""  # the handle of mods that no call will run
PLAIN = ("number", "constant", "length", "members", "order")  # kinds of what a mod captures that are compared by value

CapturedItem = tuple[str, Path, Any]  # kind, path and value of what a mod captures


class OperatorCall(NamedTuple):
    """The arguments of the operator, in the order of SCHEMA."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    captured: list[torch.Tensor]
    handle: str
    scale: float
    enable_gqa: bool
    backend: str
    verify: Level
    batch_invariant: bool = False
    block_size: Sequence[int] = ()

    @property
    def tensors(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self[:3]

    @property
    def options(self) -> Options:
        return Options(*self[5:10])


class BackwardCall(NamedTuple):
    """The arguments of the backward operator, in the order of BACKWARD_SCHEMA.

    Attributes:
        needs_grad: which of dQ, dK and dV.
        learned: indices of the captured tensors that have gradients.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    o: torch.Tensor
    lse: torch.Tensor
    do: torch.Tensor
    dlse: torch.Tensor | None
    needs_grad: Sequence[bool]
    learned: Sequence[int]
    captured: list[torch.Tensor]
    handle: str
    scale: float
    enable_gqa: bool
    backend: str
    verify: Level
    batch_invariant: bool = False
    block_size: Sequence[int] = ()

    @property
    def forward(self) -> OperatorCall:
        return OperatorCall(self.query, self.key, self.value, *self[9:])


@dataclass(frozen=True)
class Warm:
    """A prepared call, with the captured tensors and their states."""

    ready: Ready
    tensors: tuple[Snapshot, ...]

    def holds(self, captured: list[torch.Tensor]) -> bool:
        return all(t is then.value and state_of(t) == then.state for t, then in zip(captured, self.tensors))


@dataclass(frozen=True)
class Bound:
    """A prepared call whose kernel reads captured tensors in place.

    Other tensors of the same layout, each parameter's at its index among those of the graph, need no preparation and no
    wait for the device.
    """

    ready: Ready
    places: tuple[tuple[Parameter, int], ...]

    def to(self, captured: list[torch.Tensor], device: torch.device) -> Ready:
        return self.ready.with_values({p.name: p.on(captured[i], device) for p, i in self.places})


@dataclass
class Handled:
    """Mods under a handle.

    Attributes:
        spec: the specification with tensors on no device in place of those that the graph passes.
        stand_ins: these tensors, in the order of the graph. Behind the tensors of the mods the graph passes those of a
            materialised block mask, and a sink.
        sink: there is one.
    """

    spec: Specification
    stand_ins: tuple[torch.Tensor, ...] = ()
    normalize: Normalize = "softmax"
    sink: bool = False
    outputs: tuple[str, ...] = ()
    dropout_p: float = 0.0
    places: tuple[tuple[CapturedItem, tuple[weakref.ref[types.FunctionType], ...]], ...] = ()  # with the functions and objects on the way
    roots: tuple[weakref.ref[Mod] | None, ...] = ()  # the mask_mod and the score_mod
    warm: dict[Hashable, Warm] = field(default_factory=dict)
    bound: dict[Hashable, Bound] = field(default_factory=dict)

    def with_tensors(self, captured: list[torch.Tensor]) -> tuple[Mod | None, Mod | None]:
        """Return (mask_mod, score_mod) with these captured tensors."""
        places = {id(s): i for i, s in enumerate(self.stand_ins)}
        spec = rebuild_mods(self.spec, lambda x: captured[places[id(x)]] if id(x) in places else x)
        return spec.mask_mod, spec.score_mod

    def indices_of_user(self, captured: list[torch.Tensor]) -> Translate | None:
        """Return the indices that the user's mods see of a pair, where these mods wrap them."""
        return None

    def with_blocks(
        self, captured: list[torch.Tensor], mask_mod: Mod | None, lengths: tuple[int, int], block_size: Sequence[int]
    ) -> BlockMask | None:
        """Return a materialised block mask; None for a mask that is equivalent to its mask_mod.

        The latter has no block_size here.
        """
        if not block_size:
            return None
        count, indices, *whole = captured[len(self.stand_ins) : len(captured) - self.sink]
        full, full_indices = whole or (None, None)
        size = block_size[0], block_size[1]
        return BlockMask.from_kv_blocks(count, indices, full, full_indices, size, mask_mod, lengths, compute_q_blocks=False)

    def weighting(self, captured: list[torch.Tensor]) -> Weighting:
        """Return the weights with a sink among these captured tensors."""
        if not (self.sink or self.outputs or self.dropout_p) and self.normalize == "softmax":
            return SOFTMAX
        return Weighting(self.normalize, captured[-1] if self.sink else None, self.outputs, bool(self.dropout_p))


# a graph that torch.compile made may call its handle at any later time: both grow with the mods that were compiled
_HANDLED: dict[str, Handled] = {}
_BY_MODS: dict[Hashable, str] = {}


@at_tracing
def register_mods(
    mask_mod: Mod | None,
    score_mod: Mod | None,
    normalize: Normalize = "softmax",
    sink: bool = False,
    outputs: tuple[str, ...] = (),
    dropout_p: float = 0.0,
) -> str:
    """Register mods and return their handle; run when a graph is traced.

    Args:
        sink: there is one.
        dropout_p: above 0 the graph passes a seed behind all tensors.

    Raises CuirError U418.
    """
    capture_key = make_capture_key(mask_mod, score_mod)
    if not capture_key.comparable:
        raise CuirError.of(
            "U418",
            "a mod captures what cannot be compared, so a compiled function would not notice when it changes",
            hint="capture numbers and tensors, or call it outside of torch.compile",
        )
    if (opaque := next((value for kind, _, value in capture_key.places if kind == "value"), None)) is not None:
        raise CuirError.of(
            "U418",
            f"a mod captures {opaque!r}, a {type(opaque).__name__}, and a compiled function would not notice when it changes",
            hint="capture a number of Python's: float(x), int(x)"
            if isinstance(opaque, Number)
            else "make what the mod needs of it before, outside",
        )
    mark_steady(capture_key.tensors)
    rest = normalize, sink, _key_of_outputs(outputs), dropout_p
    key = capture_key.structure, capture_key.values, *rest
    if key not in _BY_MODS:
        name = "_".join(name_of(mod) for mod in (score_mod, mask_mod) if mod is not None) or "full"
        stand_ins = {id(t): _nowhere(t) for t in capture_key.tensors}
        spec = rebuild_mods(Specification(name, mask_mod, score_mod), lambda x: stand_ins[id(x)] if id(x) in stand_ins else _nowhere(x))
        for t in make_capture_key(spec.mask_mod, spec.score_mod).tensors:
            if t.device.type != "meta" or not any(t is stand_in for stand_in in stand_ins.values()):
                name = next(
                    (_name(mask_mod, score_mod, path) for kind, path, value in capture_key.places if kind == "tensor" and value is t),
                    "a tensor",
                )
                raise CuirError.of(
                    "U418",
                    f"a mod reads `{name}` by way of a class or a module, which a compiled function would not notice when it changes",
                    hint="make it an attribute of the object, close over it, or call outside of torch.compile",
                )
        _BY_MODS[key] = _make_handle(capture_key.digest(), capture_key.values, *rest)
        _HANDLED[_BY_MODS[key]] = Handled(spec, tuple(stand_ins[id(t)] for t in capture_key.tensors), normalize, sink, outputs, dropout_p)
    handled = _HANDLED[_BY_MODS[key]]
    mods = (mask_mod, score_mod)
    try:
        handled.roots = tuple(None if m is None else weakref.ref(m) for m in mods)
    except TypeError:
        raise CuirError.of(
            "U418",
            "a mod is an object that cannot be referred to weakly",
            hint="dataclass(slots=True, weakref_slot=True), or wrap it in a function",
        ) from None
    handled.places = tuple(
        ((kind, path, value if kind in PLAIN else None), _holders(mods, path)) for kind, path, value in capture_key.places
    )
    return _BY_MODS[key]


def _key_of_outputs(outputs: tuple[str, ...]) -> Hashable:
    """Return the part of a handle's key that stands for further outputs.

    No outputs and MAX_SCORES alone are keyed by truth values, since graphs that users saved contain such handles.
    """
    return bool(outputs) if outputs in ((), (MAX_SCORES.name,)) else outputs


def _make_handle(*parts: object) -> str:
    """Return a new handle, the same for equal parts in another process.

    A graph that was made elsewhere must not find other mods under it.
    """
    handle = f"cuir_{hashlib.sha256(repr(parts).encode()).hexdigest()[:16]}"
    return handle if handle not in _HANDLED else next(h for n in itertools.count(2) if (h := f"{handle}_{n}") not in _HANDLED)


def get_handled(handle: str) -> Handled:
    """Return the mods of a handle.

    Raises CuirError U418 for a handle of another process.
    """
    if handle not in _HANDLED:
        raise CuirError.of(
            "U418",
            "a graph calls attention with mods that this process has not met: it was made in another one, and has their handle alone",
            hint="trace the function here, once, with the same mods",
        )
    return _HANDLED[handle]


def _nowhere(x: torch.Tensor) -> torch.Tensor:
    """Return a tensor of this shape and dtype on no device."""
    with no_dispatch():
        return torch.empty(x.shape, dtype=x.dtype, device="meta")


class ReadMod(NamedTuple):
    """A mod that torch.compile read, with stand-ins for its tensors."""

    key: Hashable
    mod: Mod
    stand_ins: tuple[torch.Tensor, ...]


class GraphMods(NamedTuple):
    """Mods and a sink as an operator takes them: the tensors that they capture, and their handle."""

    captured: list[torch.Tensor]
    handle: str


def handle_of(
    mask_mod: ReadMod | None, score_mod: ReadMod | None, normalize: Normalize, sink: bool, outputs: tuple[str, ...], dropout_p: float = 0.0
) -> str:
    """Return the handle of mods that torch.compile read.

    The graph passes their tensors, those of the mask first.
    """
    mods = mask_mod, score_mod

    def make() -> Handled:
        mask, score = (None if m is None else m.mod for m in mods)
        stand_ins = tuple(t for m in mods if m is not None for t in m.stand_ins)
        return Handled(Specification("compiled", mask, score), stand_ins, normalize, sink, outputs, dropout_p)

    return handle_for((tuple(None if m is None else m.key for m in mods), normalize, sink, _key_of_outputs(outputs), dropout_p), make)


def handle_for(key: tuple[Hashable, ...], make: Callable[[], Handled]) -> str:
    """Return the handle of the mods of this key, which has the same text in another process.

    The mods are made if there are none yet.
    """
    if key not in _BY_MODS:
        _BY_MODS[key] = _make_handle(*key)
        _HANDLED[_BY_MODS[key]] = make()
    return _BY_MODS[key]


def _name(mask_mod: Mod | None, score_mod: Mod | None, path: Path) -> str:
    """Return the user's name of the value at a path."""
    step, key = path[-1]
    return str(follow((mask_mod, score_mod), path[:-1]).__code__.co_freevars[int(key)] if step == "cell" else key)


def _holders(mods: tuple[Mod | None, ...], path: Path) -> tuple[weakref.ref[types.FunctionType], ...]:
    passed = (follow(mods, path[:n]) for n in range(1, len(path)))
    return tuple(weakref.ref(x) for x in passed if isinstance(x, types.FunctionType))


@at_tracing
def collect_guarded(handle: str) -> tuple[CapturedItem, ...]:
    """Return the values of mods just entered that a graph has to guard.

    These are all that the mods capture, unless the graph itself made a mod. torch.compile makes such a mod only to pass
    it on, so it is dead by now; its captured values are guarded where the graph took them from. Raises CuirError U418
    if such a mod captures tensors, or leads to another mod that captures something: no guard would notice a change.
    """
    handled = _HANDLED[handle]
    places: list[CapturedItem] = []
    for (kind, path, value), holders in handled.places:
        root = handled.roots[int(path[0][1])]
        if root is not None and root() is not None:
            places.append((kind, path, value))
        elif kind == "tensor" or (kind != "function" and any(ref() is not None for ref in holders)):
            raise CuirError.of(
                "U418",
                "a mod that is made inside of a compiled function captures a tensor, or another mod with what that captures",
                hint="make the mod, or its mask with cuir.create_block_mask, outside, and pass it in",
            )
    handled.places = ()
    return tuple(places)


def collect_captured(handle: str, mods: tuple[Mod | None, Mod | None]) -> list[torch.Tensor]:
    """Return the tensors that mods just entered capture, as inputs of the graph.

    Everything else that they capture becomes a guard of it.
    """
    captured: list[torch.Tensor] = []
    for kind, path, value_then in collect_guarded(handle):
        value_now = follow(mods, path)
        if kind == "tensor":
            if not any(value_now is c for c in captured):
                captured.append(value_now)
        elif kind == "length":
            if len(value_now) != value_then:
                raise RuntimeError("another length than when the mod was entered")
        elif kind == "members":
            if len(value_now) != len(value_then) or not all(member in value_now for member in value_then):
                raise RuntimeError("other members than when the mod was entered")
        elif kind == "order":
            if not (tuple(value_now.keys()) == value_then):  # reading the keys guards them; PyTorch 2.11 cannot trace != here
                raise RuntimeError("another order than when the mod was entered")
        elif kind in PLAIN and value_now != value_then:
            raise RuntimeError("another value than when the mod was entered")
        elif kind not in PLAIN and value_now is None:  # the comparison guards it
            raise RuntimeError("nothing where something was when the mod was entered")
    return captured


def sink_of(sink: torch.Tensor | float | None, heads: int, device: torch.device) -> list[torch.Tensor]:
    """Return a sink as inputs of a graph, which follow the captured tensors."""
    if sink is None:
        return []
    return [sink if isinstance(sink, torch.Tensor) else torch.full((heads,), sink, dtype=torch.float32, device=device)]


def _run(*arguments: Any) -> tuple[torch.Tensor, ...]:
    """Return the outputs of an attention under a handle."""
    call = OperatorCall(*arguments)
    return _ready(call, forward=True)[0].outputs(*call.tensors)


def _run_backward(*arguments: Any) -> list[torch.Tensor]:
    """Return dQ, dK and dV, as far as they are needed, then the gradients of captured tensors.

    dQ, dK and dV have the strides of the inputs.
    """
    call = BackwardCall(*arguments)
    ready, captured = _ready(call.forward)
    tensors = [captured[i] for i in call.learned]
    grads = backward(ready, BackwardInputs(*call[:7]), call.needs_grad, tensors)
    first = zip(grads, call[:3], call.needs_grad, strict=False)
    dense = [empty_as(x).zero_() if g is None else g for g, x, needed in first if needed]
    of_captured = zip(grads[3:], tensors, strict=True)
    return dense + [torch.zeros_like(x, memory_format=torch.contiguous_format) if g is None else g.contiguous() for g, x in of_captured]


def _ready(call: OperatorCall, forward: bool = False) -> tuple[Ready, list[torch.Tensor]]:
    """Prepare a call; return its launch, with the seed of its dropout, and its captured tensors."""
    attention = ATTENTIONS.get(call.handle)
    dropout = attention.spec.dropout if attention is not None else None
    p = get_handled(call.handle).dropout_p if attention is None else 0.0 if dropout is None else dropout.p
    if not p:
        return _ready_undropped(call, forward)
    ready, tensors = _ready_undropped(call._replace(captured=call.captured[:-1]), forward)
    return ready.with_dropout(Seeded(p, call.captured[-1])), tensors


def _ready_undropped(call: OperatorCall, forward: bool) -> tuple[Ready, list[torch.Tensor]]:
    """Prepare a call without dropout; return its launch and the tensors used for the captured ones.

    These are those of its mods, in the order of their walk.

    Args:
        forward: no gradients follow, which would need the launch to hold its tensors.
    """
    query, key, value, captured, handle, scale, _, backend, verify, batch_invariant, block_size = call
    attention = ATTENTIONS.get(handle)
    if attention is not None:
        attention.check(query, key, value, scale, backend)
        ready = attention.ready(query, key, value, scale, backend)
        return ready, [t for t, _ in ready.learnable]  # the first of those that the graph passes
    handled = get_handled(handle)
    signature = (
        query.shape,
        key.shape,
        value.shape,
        query.stride(),
        key.stride(),
        value.stride(),
        query.dtype,
        query.device,
        scale,
        backend,
        verify,
        batch_invariant,
        tuple(block_size),
        parts_for(query.dtype),
    )
    warm = handled.warm.get(signature)
    if warm is not None and warm.holds(captured):
        return warm.ready.pin_if_capturing(), captured
    lies = signature, *((t.shape, t.stride(), t.dtype, t.device) for t in captured)
    if forward and (bound := handled.bound.get(lies)) is not None:
        return bound.to(captured, query.device), captured
    tensors, remembered = copy_graph_tensors(captured)
    mask_mod, score_mod = handled.with_tensors(tensors)
    mask = handled.with_blocks(tensors, mask_mod, (query.shape[2], key.shape[2]), block_size)
    request = AttentionRequest(
        query, key, value, score_mod, mask, *call.options[:4], handled.weighting(tensors), batch_invariant=batch_invariant
    )
    with translate_pairs(handled.indices_of_user(tensors)):
        ready = prepare(request, mask_mod)
    if remembered and ready.steady:
        if len(handled.warm) >= KNOWN_CALLS:
            handled.warm.clear()
        handled.warm[signature] = Warm(ready, tuple(map(take_snapshot, captured)))
    if not block_size and (places := ready.as_they_lie(tensors, lengths_of(query, key))) is not None:
        if len(handled.bound) >= KNOWN_CALLS:
            handled.bound.clear()
        handled.bound[lies] = Bound(ready.with_values({p.name: None for p, _ in places}), places)
    return ready, tensors


def copy_graph_tensors(captured: list[torch.Tensor]) -> tuple[list[torch.Tensor], bool]:
    """Return captured tensors that a call may cache, and True if they are the originals.

    Tensors that the graph made are copied, as the graph may reuse their memory.
    """
    remembered = all(map(is_steady, captured))
    return (captured if remembered else [t.clone() for t in captured]), remembered


def restore_variant(handle: str, captured: list[torch.Tensor]) -> Variant:
    """Return the variant of a handle with the tensors that a graph passes.

    This is for calls without a materialised block mask.
    """
    handled, (tensors, _) = get_handled(handle), copy_graph_tensors(captured)
    return Variant(*handled.with_tensors(tensors), handled.weighting(tensors))


def _shapes(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
    call = OperatorCall(*arguments)
    check_options(call.scale, call.backend, call.verify)
    check_tensors(*call.tensors, call.enable_gqa)
    query, columns = call.query, call.value.shape[3]
    return without_room(output_for(query, columns), query), query.new_empty(query.shape[:-1], dtype=torch.float32)


def _shapes_with(count: int) -> Callable[..., tuple[torch.Tensor, ...]]:
    """Return the function of the shapes of O, LSE and so many further outputs."""

    def shapes(*arguments: Any) -> tuple[torch.Tensor, ...]:
        o, lse = _shapes(*arguments)
        return o, lse, *(torch.empty_like(lse) for _ in range(count))

    return shapes


def _shapes_of_gradients(*arguments: Any) -> list[torch.Tensor]:
    call = BackwardCall(*arguments)
    first = (x for x, needed in zip(call[:3], call.needs_grad, strict=True) if needed)
    return [*map(empty_as, first), *(call.captured[i].new_empty(call.captured[i].shape) for i in call.learned)]


class _Context(FunctionCtx):
    """State that a call of the operator keeps for its backward pass.

    Attributes:
        rest: the arguments behind the captured tensors.
    """

    rest: tuple[Any, ...]
    saved_tensors: tuple[torch.Tensor, ...]
    needs_input_grad: tuple[Any, ...]


def _keep(ctx: _Context, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[:3], *output[:2], *inputs[3])
    ctx.rest = inputs[4:]
    ctx.set_materialize_grads(False)


def _gradients(ctx: _Context, do: torch.Tensor | None, dlse: torch.Tensor | None, *_: object) -> tuple[object, ...]:
    query, key, value, o, lse, *captured = ctx.saved_tensors
    grads: list[torch.Tensor | None] = [None] * 3
    captured_grads: list[torch.Tensor | None] = [None] * len(captured)
    if do is not None or dlse is not None:
        learned = [i for i, needed in enumerate(ctx.needs_input_grad[3]) if needed]
        needs_grad = list(ctx.needs_input_grad[:3])

        def first() -> list[torch.Tensor]:
            do_or_zeros = torch.zeros_like(o) if do is None else do
            results: list[torch.Tensor] = BACKWARD(query, key, value, o, lse, do_or_zeros, dlse, needs_grad, learned, captured, *ctx.rest)
            return results

        results_iterator = iter(differentiate_once(first, (query, key, value, do, dlse, *captured)))
        grads = [next(results_iterator) if needed else None for needed in needs_grad]
        for i, g in zip(learned, results_iterator, strict=True):
            captured_grads[i] = g
    *others, invariant, block_size = ctx.rest
    passed = 2 if block_size else 1 if invariant else 0  # PyTorch passes no argument that equals its default
    return *grads, captured_grads, *(None for _ in others), *[None] * passed


# torch.library.custom_op would add 70 us to each call
_LIBRARY = torch.library.Library("cuir", "FRAGMENT")
_TAGS = (torch.Tag.needs_exact_strides, torch.Tag.cudagraph_unsafe, torch.Tag.pt2_compliant_tag)
for _outputs in ((), *OUTPUT_SETS):
    _operation, _fake = name_operator(_outputs), _shapes_with(len(_outputs))
    _LIBRARY.define(f"{_operation}{SCHEMA} -> ({', '.join(['Tensor'] * (2 + len(_outputs)))})", tags=_TAGS)
    _LIBRARY.impl(_operation, at_users_places(_run), "CompositeExplicitAutograd")
    torch.library.register_fake(f"cuir::{_operation}", of_operator(_fake), lib=_LIBRARY)
    torch.library.register_autograd(f"cuir::{_operation}", _gradients, setup_context=_keep, lib=_LIBRARY)


def define(
    name: str, arguments: str, run: Callable[..., tuple[torch.Tensor, ...]], shapes: Callable[..., tuple[torch.Tensor, ...]]
) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    """Define an operator of the package that returns O and LSE and has no gradients.

    Args:
        arguments: the arguments of its schema.
        shapes: its outputs for tensors without data.
    """
    _LIBRARY.define(f"{name}({arguments}) -> (Tensor, Tensor)", tags=_TAGS)
    _LIBRARY.impl(name, at_users_places(run), "CompositeExplicitAutograd")
    torch.library.register_fake(f"cuir::{name}", of_operator(shapes), lib=_LIBRARY)
    operator: Callable[..., tuple[torch.Tensor, torch.Tensor]] = getattr(torch.ops.cuir, name).default
    return operator


_LIBRARY.define(f"flex_attention_backward{BACKWARD_SCHEMA} -> Tensor[]", tags=_TAGS)
_LIBRARY.impl("flex_attention_backward", at_users_places(_run_backward), "CompositeExplicitAutograd")
torch.library.register_fake("cuir::flex_attention_backward", _shapes_of_gradients, lib=_LIBRARY)
OPERATOR = torch.ops.cuir.flex_attention.default
# by the further outputs
OPERATORS = {outputs: getattr(torch.ops.cuir, name_operator(outputs)).default for outputs in ((), *OUTPUT_SETS)}
BACKWARD = torch.ops.cuir.flex_attention_backward.default

__all__ = [
    "OPERATOR",
    "OPERATORS",
    "UNKNOWN",
    "GraphMods",
    "Handled",
    "ReadMod",
    "collect_captured",
    "define",
    "get_handled",
    "handle_for",
    "handle_of",
    "register_mods",
    "restore_variant",
    "sink_of",
]
