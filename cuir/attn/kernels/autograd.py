"""The backward pass of attention: saved state of differentiable calls, and launches of kernels.

The kernels for the requested gradients are planned in backward_kernels.py.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch

from ...arguments.requirements import COPY_ALIGNMENT
from ...checking.checked import Checked
from ...runtime.garbage_collection import without_full_collections
from ...spec.gradients import count_sums, pad_rows
from ...spec.specification import Lengths, lengths_of
from ...syntax.walk import names_read
from ..capture.call_inputs import need_gpu, need_gradients, need_warm, wrong
from ..capture.device_tensors import DeviceArguments
from ..capture.double_backward import GradientError, differentiate_once
from ..capture.first_call_progress import Progress
from ..capture.kernel_operands import (
    as_it_lies,
    autocasts,
    is_output_layout,
    make_placeholder,
    output_for,
    pack_rows,
    strides_fit,
    without_room,
)
from ..splicing.captured_arguments import Snapshot, take_snapshot
from ..splicing.splice import TransferResult
from ..tracing.mod_evaluator import evaluate
from ..tracing.splice_names import DROPOUT
from ..tracing.traced_result import Parameter
from . import backward_kernels
from .backward_kernels import BY_QUERIES, KERNEL, RequestedGradients, deals_heads, has_few_keys, plan_gradients
from .ordered_gradients import can_order, compute_ordered_gradients, list_scored
from .settings import Settings

KNOWN_SHAPES = 64  # size limit of the cache of replayable passes
KNOWN_VALUES = 8  # passes of the same shapes, such as those of a rank's parts, whose captured offsets differ
# the replay of a launch: returns the tensors that it allocates and writes; None for tensors of another layout
Launch = Callable[..., tuple[torch.Tensor, ...] | None]
# captured tensors of floats, each with its places among what the mods capture
Learnable = tuple[tuple[torch.Tensor, tuple[int, ...]], ...]


class BackwardInputs(NamedTuple):
    """The tensors of a forward call, its outputs and their gradients.

    dLSE is None if nothing depends on LSE.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    o: torch.Tensor
    lse: torch.Tensor
    do: torch.Tensor
    dlse: torch.Tensor | None = None


class Kernel(Protocol):
    """A kernel that is launched with arguments by name.

    Names of users and ours are keys of one mapping, never keywords of a Python function.
    """

    def launch(self, arguments: Mapping[str, Any]) -> object: ...


class Attention(backward_kernels.Attention, Protocol):
    """The part of an attention (attention_kernel.py) that a backward pass reads."""

    settings: Settings

    def gradients(self, requested: RequestedGradients = ...) -> Gradients: ...
    def name_captured_values(self, data: TransferResult) -> Iterable[tuple[str, Parameter]]: ...


class Ready(Protocol):
    """The part of a prepared call (attention_kernel.py) that a backward pass reads."""

    @property
    def kernel(self) -> object: ...
    @property
    def arguments(self) -> Mapping[str, Any]: ...
    @property
    def device_arguments(self) -> DeviceArguments | None: ...
    @property
    def attention(self) -> Attention | None: ...
    @property
    def data(self) -> TransferResult | None: ...
    @property
    def seed(self) -> tuple[torch.Tensor, ...]: ...
    @property
    def differentiable(self) -> set[Hashable]: ...
    @property
    def learnable(self) -> Learnable: ...
    @property
    def read(self) -> tuple[tuple[torch.Tensor, str], ...]: ...
    def outputs(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, ...]: ...


@dataclass(frozen=True)
class ReplayableBackward:
    """A replayable backward pass for tensors of the same layout: dQ, dK and dV, and nothing else.

    Each of its launches is recognised by its tensors alone.

    Attributes:
        rows: the launch of `prepare`, or of the kernel of dQ in its place.
        queries: the launch that finishes dQ, from its sums or from the arguments of by_keys.
        device_arguments: the arguments for captured values, made from `forward`, those of a forward call.
        captured: the tensors among these at the time of the pass.
    """

    rows: Launch
    by_keys: Launch
    queries: Launch | None
    device_arguments: tuple[DeviceArguments | None, ...]
    forward: DeviceArguments | None
    captured: tuple[Snapshot, ...]

    def of(self, ready: Ready) -> bool:
        """Return True if a forward call had the captured values of this pass, unwritten since."""
        return self.forward is ready.device_arguments and all(x.holds() for x in self.captured)

    def __call__(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, o: torch.Tensor, lse: torch.Tensor, do: torch.Tensor, *seed: torch.Tensor
    ) -> tuple[torch.Tensor, ...] | None:
        """Return dQ, dK and dV; None for tensors of another layout.

        `seed` is that of dropout, if there is any.
        """
        rows = self.rows(o, do, lse) if self.queries is not None else self.rows(q, k, v, do, o, lse, *seed)
        if rows is None:
            return None
        L, DL, *dq = rows
        if self.queries is None:
            keys = self.by_keys(q, k, v, do, L, DL, *seed)
            return None if keys is None else (*dq, *keys)
        keys = self.by_keys(q, k, v, do, *rows, *seed)
        queries = self.queries(*dq) if dq else self.queries(q, k, v, do, L, DL, *seed)
        return None if keys is None or queries is None else (*queries, *keys)


def _numbers_of(ready: Ready, q: torch.Tensor, k: torch.Tensor, scale: float) -> tuple[Any, ...]:
    """Return the shapes and numbers that launches of a pass have in common."""
    return (q.shape, k.shape, scale, *((ready.arguments[DROPOUT[1]],) if ready.seed else ()))


class Gradients:
    """The backward pass of an `Attention` for requested gradients: its plan, kernels and calls."""

    def __init__(self, attention: Attention, requested: RequestedGradients):
        """Plan the pass.

        Raises CuirError X109 for what has no gradients.
        """
        need_gradients(attention.spec.normalize)
        self.attention, self.requested, self.plan = attention, requested, plan_gradients(attention, requested)
        self.kernels: Mapping[str, Kernel] = {}
        # by shapes and scale, the last passes of tensors that lie as the kernels read them
        self.replayable: dict[Any, tuple[ReplayableBackward, ...]] = {}

    def replay(self, ready: Ready, scale: float, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...] | None:
        """Replay one of the last passes of these shapes for query, key, value, O, LSE and dO; return dQ, dK and dV.

        Returns None if there was none, or all had other captured data or tensors of another layout.
        """
        known = self.replayable.get(_numbers_of(ready, tensors[0], tensors[1], scale), ())
        for last in known:
            if last.of(ready):
                break
        else:
            return None
        if ready.kernel is None:
            return None
        for device_arguments in last.device_arguments:
            join_arguments(device_arguments)
        return last(*tensors, *ready.seed)

    def of(
        self,
        ready: Ready,
        tensors: BackwardInputs,
        scale: float,
        keep: bool = False,
    ) -> tuple[tuple[torch.Tensor | None, ...], dict[int, torch.Tensor]]:
        """Compute dQ, dK and dV, None where not requested, and gradients of captured tensors by index.

        Tensors lie as the kernels read them, and k and v have a batch for each of q.

        Args:
            keep: a later pass may replay this one with `replay`, as nothing is done to these gradients.
        """
        assert ready.data is not None
        q, k, v, o, lse, do, dlse = tensors
        plan, device, at = self.plan, q.device, lengths_of(q, k)
        if not plan.steps:
            return (None, None, None), {}
        device_arguments = {part.kernel: part.arguments(ready.data, at, device) for part in plan.parts}
        runs = self._runs(ready, device)
        launches: dict[str, Mapping[str, Any]] = {}

        def launch(step: str, arguments: Mapping[str, Any]) -> None:
            launches[step] = arguments
            runs[step].launch(arguments)

        L, DL = _floats(q, 2, *q.shape[:2], pad_rows(at.M))
        dq = self._make_sums(q)
        if "prepare" in plan.steps:
            taken = {p.name for p in plan.steps["prepare"].program.kernels()["prepare"].params}
            sums = {"dQ": dq} if "dQ" in taken else {}
            launch("prepare", {"O": o, "dO": do, "LSE": lse, "L": L, "DL": DL, **sums})
        assert dlse is None or "prepare" in plan.steps, "the kernel of dQ makes the rows itself, and knows of no gradient of LSE"
        if dlse is not None:  # each weight is what its score changes LSE by
            DL[..., : at.M] -= dlse
        gq = output_for(q, q.shape[3]) if self.requested.queries else None
        gk, gv = (output_for(x, x.shape[3]) if self.requested.keys else None for x in (k, v))
        gradients: dict[int, torch.Tensor] = {}
        inputs = {"Q": q, "K": k, "V": v, "dO": do, "L": L, "DL": DL, "scale": scale}
        inputs |= {name: ready.arguments[name] for name in (DROPOUT if ready.seed else ())}
        if plan.by_queries is not None:
            saved = {n: x for n, x in (("FO", o), ("FL", lse)) if n in plan.by_queries.takes}
            launch(BY_QUERIES, {**inputs, **saved, "dQ": gq, **join_arguments(device_arguments[BY_QUERIES])})
        if plan.by_keys is not None:
            captured_values = join_arguments(device_arguments[KERNEL])
            learned = {name: torch.zeros_like(captured_values[of]) for of, name in plan.by_keys.transferred.gradients.items()}
            if plan.spread:
                dk, dv = make_sums(k).zero_(), make_sums(v).zero_()
            else:
                dk, dv = (make_placeholder(x, x.dtype) if g is None else g for g, x in ((gk, k), (gv, v)))
            sums = {"dQ": dq} if "dQ" in plan.by_keys.takes else {}
            launch(KERNEL, {**inputs, **sums, "dK": dk, "dV": dv, **captured_values, **learned})
            gradients = plan.by_keys.by_place(learned)
            if plan.spread:  # scaled already
                launch("finish_keys", {"dQ": dk, "GQ": gk, "scale": 1.0})
                launch("finish_values", {"dQ": dv, "GQ": gv, "scale": 1.0})
        if plan.adds:
            launch("finish", {"dQ": dq, "GQ": gq, "scale": scale})
        if keep and self.requested.queries and self.requested.keys and not plan.spread and not gradients:
            self._record(_numbers_of(ready, q, k, scale), runs, launches, tuple(device_arguments.values()), ready)
        return (gq, gk, gv), _add_gradients(gradients, self.of_sink(ready.data, lse, DL[..., : at.M]))

    def _make_sums(self, q: torch.Tensor) -> torch.Tensor:
        """Return the unwritten f32 tensor of dQ, of one row in memory for kernels that neither read nor write it."""
        if not self.plan.in_blocks:
            return make_sums(q) if self.plan.adds else make_placeholder(q, torch.float32)
        length = count_sums(q.shape[2], q.shape[3])
        return _floats(q, *q.shape[:2], length) if self.plan.adds else _floats(q, 1, 1, 4).expand(*q.shape[:2], 4)

    def _record(
        self,
        key: Any,
        runs: Mapping[str, Kernel],
        launches: Mapping[str, Mapping[str, Any]],
        device_arguments: tuple[DeviceArguments | None, ...],
        ready: Ready,
    ) -> None:
        """Cache a pass for replay, unless a launch of it is not recognised by its tensors alone."""
        inputs, rows = ("Q", "K", "V", "dO"), ("L", "DL")
        varying = {"prepare": ("O", "dO", "LSE"), KERNEL: (*inputs, *rows, *(("dQ",) if self.plan.adds else ())), "finish": ("dQ",)}
        varying[BY_QUERIES] = (*inputs, *rows) if "prepare" in launches else (*inputs, "FO", "FL")
        for step in (KERNEL, BY_QUERIES) if ready.seed else ():
            varying[step] = (*varying[step], DROPOUT[0])
        launches_by_step = {
            step: runs[step].make_replay({n: arguments[n] for n in varying[step]}, arguments)  # type: ignore[attr-defined]
            for step, arguments in launches.items()
        }
        if not all(launches_by_step.values()):
            return
        assert ready.data is not None
        captured = (p.value for p in ready.data.captured if isinstance(p.value, torch.Tensor))
        prepares = "prepare" not in launches_by_step
        queries = None if prepares else launches_by_step["finish"] if "finish" in launches_by_step else launches_by_step[BY_QUERIES]
        snapshots = tuple(map(take_snapshot, captured))
        rows_launch = launches_by_step[BY_QUERIES if prepares else "prepare"]
        made = ReplayableBackward(rows_launch, launches_by_step[KERNEL], queries, device_arguments, ready.device_arguments, snapshots)
        self.keep(key, made)

    def keep(self, key: Hashable, made: ReplayableBackward) -> None:
        """Keep a pass among the last ones of these shapes."""
        if len(self.replayable) >= KNOWN_SHAPES:
            self.replayable.clear()
        self.replayable[key] = (made, *self.replayable.get(key, ())[: KNOWN_VALUES - 1])

    def _runs(self, ready: Ready, device: torch.device) -> Mapping[str, Kernel]:
        if ready.kernel is None:
            return {name: Interpreted(step.checked) for name, step in self.plan.steps.items()}
        if not self.kernels:
            self.kernels = self.compile_kernels(device)
        return self.kernels

    def of_sink(self, forward: TransferResult, lse: torch.Tensor, delta: torch.Tensor) -> dict[int, torch.Tensor]:
        """Return the gradient of a sink that requires one, by its index.

        A sink is a logit without a value: its weight meets only delta, row_sum(O * dO) - dLSE.
        """
        traced = self.attention.traced
        if traced.sink is None:
            return {}
        read = names_read(traced.sink)
        names: dict[str, Any] = {"h": torch.arange(lse.shape[1], dtype=torch.int32, device=lse.device)}
        parameters = {i: p for i, p in enumerate(traced.parameters) if p.name in read}
        names |= {p.name: p.on(forward.captured[i].value, lse.device) for i, p in parameters.items()}  # type: ignore[arg-type]
        leaves = {i: names[p.name].requires_grad_() for i, p in parameters.items() if i in self.requested.learned}
        if not leaves:
            return {}
        with torch.enable_grad():
            sinks = torch.as_tensor(evaluate(traced.sink, names))
        weights = torch.where(lse > -torch.inf, torch.exp(sinks.detach().view(-1, 1) - lse), 0.0)
        by_head = -(weights * delta).sum((0, 2))
        grads = torch.autograd.grad(sinks, tuple(leaves.values()), by_head.sum_to_size(sinks.shape))
        return dict(zip(leaves, grads, strict=True))

    @without_full_collections()
    def compile_kernels(self, device: torch.device) -> Mapping[str, Kernel]:
        from ...runtime.compiled import compile

        need_warm("compiling a kernel")
        need_gpu(device, self.attention.arch)
        progress = Progress(f"{self.attention.spec.name} backward")
        with ThreadPoolExecutor(len(self.plan.steps)) as pool, progress.step("compiling"):
            steps = set(self.plan.steps.values())
            compiling = {s: pool.submit(compile, s.program, kernel=s.kernel, consts=s.consts) for s in steps}
            for part in self.plan.parts:
                part.prove(progress)
            return {name: compiling[step].result() for name, step in self.plan.steps.items()}


def _floats(like: torch.Tensor, *shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.float32, device=like.device)


def make_sums(like: torch.Tensor) -> torch.Tensor:
    """Return an unwritten f32 tensor of a shape, whose rows begin at multiples of 16 bytes."""
    return _floats(like, *like.shape[:-1], -(-like.shape[-1] // 4) * 4)[..., : like.shape[-1]]


def join_arguments(arguments: DeviceArguments | None) -> Mapping[str, Any]:
    """Return captured values for a launch on the current stream."""
    if arguments is not None:
        arguments.join()
    return arguments or {}


def _add_gradients(*gradients: Mapping[int, torch.Tensor]) -> dict[int, torch.Tensor]:
    """Add up gradients by index."""
    total: dict[int, torch.Tensor] = {}
    for grads in gradients:
        for i, g in grads.items():
            total[i] = total[i] + g.view(total[i].shape) if i in total else g
    return total


@dataclass(frozen=True)
class Interpreted:
    """A kernel that runs in the interpreter."""

    checked: Checked

    def launch(self, arguments: Mapping[str, Any]) -> object:
        from ...interp import run

        return run(self.checked, arguments, budget=math.inf)


def choose_gradients(
    attention: Attention,
    needed: Sequence[bool],
    learned: Iterable[int],
    at: Lengths,
    few: Callable[[bool], bool] = lambda spread: False,
    of_lse: bool = False,
) -> Gradients:
    """Return the backward pass for the requested gradients of query, key, value and captured tensors.

    PyTorch's setting for deterministic algorithms is obeyed: captured tensors that scores depend on are left out then.

    Args:
        few: whether queries have few keys, given whether heads would be dealt to separate CTAs.
        of_lse: LSE has a gradient.

    Raises CuirError U410 where deterministic gradients are requested and none exist.
    """
    in_order, keys = torch.are_deterministic_algorithms_enabled(), needed[1] or needed[2]
    spread = deals_heads(attention, at)
    separate = needed[0] and keys and not in_order and few(spread)
    of_lse = of_lse and needed[0] and (separate or in_order or not keys)  # one plan for all that need not know
    places = sorted(learned)
    if in_order:
        places = [i for i in places if i not in list_ordered(attention, places)]
        keys = keys or not (needed[0] or places)  # some kernel, though nothing else is wanted
    gradients = attention.gradients(RequestedGradients(needed[0], keys, tuple(places), in_order, not separate and spread, separate, of_lse))
    return gradients


def list_ordered(attention: Attention, places: Sequence[int]) -> list[int]:
    """Return the places of captured tensors whose gradients kernels would add up in an open order.

    Raises CuirError U410 where nothing else adds them up, or warns as PyTorch's setting says.
    """
    traced = attention.traced
    scored = list_scored(traced, places)
    if not scored or can_order(traced, scored, attention.spec.dropout is not None):
        return scored
    name = attention.traced.own_names.get(traced.parameters[scored[0]].name, traced.parameters[scored[0]].name)
    message = f"the gradient of `{name}`, which a mod captures, is added up in an open order with dropout or as a sink, and torch.use_deterministic_algorithms asks for the same bits every time"
    if not torch.is_deterministic_algorithms_warn_only_enabled():
        wrong("U410", message, f"give {name}.detach(), or torch.use_deterministic_algorithms(True, warn_only=True)")
    warnings.warn(message, stacklevel=2)
    return []


def backward(
    ready: Ready,
    tensors: BackwardInputs,
    needed: Sequence[bool] = (True, True, True),
    learned: Sequence[torch.Tensor] = (),
) -> tuple[torch.Tensor | None, ...]:
    """Compute dQ, dK, dV and gradients of captured tensors, dense and with the strides of the inputs.

    A gradient that is not wanted, or of a tensor that nothing depends on, is None.

    Args:
        learned: tensors among those that the mods capture.
    """
    query, key, value, o, lse, do, dlse = tensors
    if autocasts(query):  # a backward pass computes in the dtypes of the forward pass
        with torch.autocast(query.device.type, enabled=False):
            return backward(ready, tensors, needed, learned)
    assert ready.attention is not None and ready.data is not None
    # kernels recognise calls of tensors that want nothing
    q, k, v, o, lse = (x.detach() for x in (query, key, value, o, lse))
    # a tensor that is given twice has its gradient once
    first = (not any(x is y for y in learned[:n]) for n, x in enumerate(learned))
    places = [next((at for t, at in ready.learnable if t is x and new), ()) for x, new in zip(learned, first, strict=True)]
    settings, data, lengths = ready.attention.settings, ready.data, lengths_of(query, key)
    learned_places = [i for at in places for i in at]
    few = functools.partial(has_few_keys, settings, data, ready.device_arguments, lengths, query.device)
    gradients = choose_gradients(ready.attention, needed, learned_places, lengths, few, dlse is not None)
    scale, plain = float(ready.arguments["scale"]), dlse is None and not learned and all(needed)
    if plain:
        replayed = gradients.replay(ready, scale, q, k, v, o, lse, do)
        if replayed is not None:
            return replayed
    if key.shape[0] != query.shape[0]:
        k, v = (x.expand(query.shape[0], -1, -1, -1) for x in (k, v))
    fitting = [x if strides_fit(x) and x.data_ptr() % COPY_ALIGNMENT == 0 else pack_rows(x) for x in (q, k, v, o, do)]
    keep = plain and ready.kernel is not None and all(a is b for a, b in zip(fitting, (q, k, v, o, do), strict=True))
    # gradients are given as they are
    keep = keep and key.shape[0] == query.shape[0] and all(map(is_output_layout, (q, k, v)))
    q, k, v, o, do = fitting
    inputs = BackwardInputs(q, k, v, o, lse, do, dlse)
    grads, learned_gradients = gradients.of(ready, inputs, scale, keep)
    if torch.are_deterministic_algorithms_enabled() and (ordered := list_ordered(ready.attention, learned_places)):
        learned_gradients = {**learned_gradients, **compute_ordered_gradients(ready.attention.traced, data, inputs, scale, ordered)}
    dense = (None if g is None or not is_needed else without_room(g, x) for g, x, is_needed in zip(grads, (q, k, v), needed, strict=True))
    summed = (
        g if g is None or g.shape[0] == x.shape[0] else g.sum(0, keepdim=True) for g, x in zip(dense, (query, key, value), strict=True)
    )
    strided = (g if g is None else as_it_lies(g, x) for g, x in zip(summed, (query, key, value), strict=True))
    gradient_lists = ([learned_gradients[i] for i in at if i in learned_gradients] for at in places)
    return *strided, *(
        _total(grads, x) if grads else _make_zeros(ready.attention, at, x)
        for grads, at, x in zip(gradient_lists, places, learned, strict=True)
    )


def _total(grads: list[torch.Tensor], like: torch.Tensor) -> torch.Tensor:
    """Add up the gradients of all names of a captured tensor, in its dtype."""
    return sum(grads[1:], grads[0]).view(like.shape).to(device=like.device, dtype=like.dtype)


def _make_zeros(attention: Attention, places: Iterable[int], like: torch.Tensor) -> torch.Tensor | None:
    """Return zeros for a captured tensor if scores depend on it with a derivative of 0, else None.

    PyTorch gives the same.
    """
    from ..splicing.captured_gradients import collect_gradient_paths

    traced = attention.traced
    names = collect_gradient_paths(traced.differentiated[0])
    return torch.zeros_like(like) if any(traced.parameters[i].name in names for i in places) else None


class _Differentiable(torch.autograd.Function):
    """A call whose outputs O and LSE have gradients; further outputs have none."""

    @staticmethod
    def forward(
        ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, ready: Ready, *learned: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        outputs = ready.outputs(*(x.detach() for x in (query, key, value)))
        # the last one to notice a write before the backward pass
        ctx.save_for_backward(query, key, value, *outputs[:2], *ready.seed)
        ctx.ready, ctx.learned, ctx.versions = ready, learned, versions_of(ready)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*outputs[2:])
        return outputs

    @staticmethod
    def backward(ctx: Any, do: torch.Tensor | None, dlse: torch.Tensor | None, *_: Any) -> tuple[torch.Tensor | None, ...]:
        check_unwritten(ctx.ready, ctx.versions)
        query, key, value, o, lse, *_ = ctx.saved_tensors
        needed = ctx.needs_input_grad
        if do is None and dlse is None:
            return (None,) * len(needed)
        if not all(x is None or torch._C._has_storage(x) for x in (do, dlse)):
            wrong(
                "U403",
                "gradients of a batch of outputs at once, which stand in no place of their own",
                "torch.autograd.grad for one output after the other, without is_grads_batched or vectorize",
            )

        def first() -> tuple[torch.Tensor | None, ...]:
            do_or_zeros = torch.zeros_like(o) if do is None else do
            return backward(ctx.ready, BackwardInputs(query, key, value, o, lse, do_or_zeros, dlse), needed[:3], ctx.learned)

        grads = differentiate_once(first, (query, key, value, do, dlse, *ctx.learned))
        return *grads[:3], None, *grads[3:]


def versions_of(ready: Ready) -> tuple[int, ...]:
    """Return the version counter of each captured tensor."""
    return tuple([t._version for t, _ in ready.read])


def check_unwritten(ready: Ready, versions: tuple[int, ...]) -> None:
    """Raise CuirError U421 if a captured tensor was written to since its versions were taken.

    PyTorch does the same for tensors that it saves for a backward pass.
    """
    for (t, name), version in zip(ready.read, versions, strict=True):
        if t._version != version:
            raise GradientError.of(
                "U421",
                f"`{name}`, a captured tensor that the backward pass reads, has been modified by an inplace operation since the call: "
                f"it is at version {t._version}; expected version {version} instead",
                hint=f"write to it behind the backward pass, or let the call capture a copy: {name} = {name}.clone()",
            )


def run_differentiable(ready: Ready, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the outputs of a call, with gradients.

    Raises CuirError U410, X109 where there are none.
    """
    assert ready.attention is not None
    learned = [(t, at) for t, at in ready.learnable if t.requires_grad]
    needed, places = (query.requires_grad, key.requires_grad, value.requires_grad), tuple([i for _, at in learned for i in at])
    if (needed, places) not in ready.differentiable or torch.are_deterministic_algorithms_enabled():
        choose_gradients(ready.attention, needed, places, lengths_of(query, key))  # raises for what has no gradients
        ready.differentiable.add((needed, places))
    outputs: tuple[torch.Tensor, ...] = _Differentiable.apply(query, key, value, ready, *(t for t, _ in learned))
    return outputs


def collect_learnable(data: TransferResult | None) -> Learnable:
    """Return the captured tensors that may have gradients: those of floats, each once."""
    places: dict[int, tuple[torch.Tensor, tuple[int, ...]]] = {}
    for i, p in enumerate(data.captured if data is not None else ()):
        if isinstance(p.value, torch.Tensor) and p.value.is_floating_point():
            places[id(p.value)] = p.value, (*places.get(id(p.value), (p.value, ()))[1], i)
    return tuple(places.values())


def collect_read_tensors(ready: Ready) -> tuple[tuple[torch.Tensor, str], ...]:
    """Return the captured tensors whose writes PyTorch counts, each once, with their names in the mods."""
    if ready.data is None or ready.attention is None:
        return ()
    tensors: dict[int, tuple[torch.Tensor, str]] = {}
    for name, parameter in ready.attention.name_captured_values(ready.data):
        if isinstance(parameter.value, torch.Tensor) and not parameter.value.is_inference():
            tensors.setdefault(id(parameter.value), (parameter.value, name))
    return tuple(tensors.values())


__all__ = [
    "Attention",
    "BackwardInputs",
    "Gradients",
    "Interpreted",
    "Kernel",
    "Learnable",
    "Ready",
    "backward",
    "check_unwritten",
    "choose_gradients",
    "collect_learnable",
    "collect_read_tensors",
    "join_arguments",
    "make_sums",
    "run_differentiable",
    "versions_of",
]
