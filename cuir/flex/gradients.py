"""The backward pass of attention: what a differentiable call keeps, and how its backward runs the kernels that are planned for what is asked (backward_kernels.py)."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from ..calls.requirements import COPY_ALIGNMENT
from ..checking.checked import Checked
from ..spec.gradients import padded_rows
from ..spec.specification import Lengths, lengths_of
from ..syntax.walk import names_read
from ..variants import TransferResult
from ..variants.arguments import State, memory_of, state_of
from ..variants.evaluate import evaluate
from ..variants.names import DROPOUT
from ..variants.parameter import Parameter
from . import backward_kernels
from .backward_kernels import BY_QUERIES, KERNEL, Asked, planned, spreads
from .differentiated_once import GradientError, differentiated_once
from .few_keys import few_keys
from .inputs import need_gradients, need_hopper, need_warm, wrong
from .made import Made
from .packing import as_it_lies, autocasts, made_as_it_lies, output_for, packed, stand_in, strides_fit, without_room
from .progress import Progress
from .settings import Settings

KNOWN_SHAPES = 64  # whose last pass is kept
# of a kernel, again: what it allocates and writes; None for tensors that lie otherwise
Launch = Callable[..., tuple[torch.Tensor, ...] | None]
Learnable = tuple[tuple[torch.Tensor, tuple[int, ...]], ...]  # captured tensors of floats, each with its places among what the mods capture


class Kernel(Protocol):
    """A kernel that is launched with arguments by name: a user's names and ours are keys of one mapping, never keywords of a Python function."""

    def launch(self, arguments: Mapping[str, Any]) -> object: ...


class Attention(backward_kernels.Attention, Protocol):
    """What is asked of an attention (kernels.py)."""

    settings: Settings

    def gradients(self, asked: Asked = ...) -> Gradients: ...
    def captured_by_name(self, data: TransferResult) -> Iterable[tuple[str, Parameter]]: ...


class Ready(Protocol):
    """What is asked of a call that was made ready (kernels.py)."""

    @property
    def kernel(self) -> object: ...
    @property
    def arguments(self) -> Mapping[str, Any]: ...
    @property
    def made(self) -> Made | None: ...
    @property
    def attention(self) -> Attention | None: ...
    @property
    def data(self) -> TransferResult | None: ...
    @property
    def seed(self) -> tuple[torch.Tensor, ...]: ...
    @property
    def learnable(self) -> Learnable: ...
    @property
    def read(self) -> tuple[tuple[torch.Tensor, str], ...]: ...
    def outputs(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, ...]: ...


@dataclass(frozen=True)
class Repeated:
    """A backward pass that was made, for other tensors that lie as its did: dQ, dK and dV, and nothing else. Each of its launches is recognised by its tensors alone.

    rows: `prepare`, or the kernel of dQ in its place; queries: what gives dQ otherwise, of its sums or of all that by_keys is given. made: what its mods capture, from the values that a
    forward call had made into `forward`. captured: the tensors among these, their states, and their memory, which is held.
    """

    rows: Launch
    by_keys: Launch
    queries: Launch | None
    made: tuple[Made | None, ...]
    forward: Made | None
    captured: tuple[tuple[torch.Tensor, State, object], ...]

    def of(self, ready: Ready) -> bool:
        """Whether a forward call had what that one's mods captured, and nobody has written there since."""
        return self.forward is ready.made and all(state is not None and state_of(t) == state for t, state, _ in self.captured)

    def __call__(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, o: torch.Tensor, lse: torch.Tensor, do: torch.Tensor, *seed: torch.Tensor
    ) -> tuple[torch.Tensor, ...] | None:
        """dQ, dK and dV; None for tensors that lie otherwise. seed: of dropout, if there is any."""
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
    """The backward pass of an `Attention` for what is asked of it: which kernels that takes, and a call of them."""

    def __init__(self, attention: Attention, asked: Asked):
        """Raises CuirError X109 for what has no gradients."""
        need_gradients(attention.spec.normalize)
        self.attention, self.asked, self.plan = attention, asked, planned(attention, asked)
        self.kernels: Mapping[str, Kernel] = {}
        self.repeated: dict[Any, Repeated] = {}  # by shapes and scale, the last pass of tensors that lie as the kernels read them

    def again(self, ready: Ready, scale: float, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...] | None:
        """dQ, dK and dV of query, key, value, O, LSE and dO as the pass before gave them; None if there was none, or it was of other data or of tensors that lie otherwise."""
        last = self.repeated.get(_numbers_of(ready, tensors[0], tensors[1], scale))
        if last is None or ready.kernel is None or not last.of(ready):
            return None
        for made in last.made:
            _joined(made)
        return last(*tensors, *ready.seed)

    def of(self, ready: Ready, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, o: torch.Tensor, lse: torch.Tensor, do: torch.Tensor,
           dlse: torch.Tensor | None, scale: float, keep: bool = False) -> tuple[tuple[torch.Tensor | None, ...], dict[int, torch.Tensor]]:  # fmt: skip
        """dQ, dK and dV, None where it is not asked for, and gradients of captured tensors by their places. For tensors that lie as the kernels read them; k and v of each batch.

        keep: the next one may be made by `again`, as nothing is done to these gradients."""
        assert ready.data is not None
        plan, device, at = self.plan, q.device, lengths_of(q, k)
        if not plan.steps:
            return (None, None, None), {}
        made = {part.kernel: part.arguments(ready.data, at, device) for part in plan.parts}
        runs = self._runs(ready, device)
        launches: dict[str, Mapping[str, Any]] = {}

        def launch(step: str, arguments: Mapping[str, Any]) -> None:
            launches[step] = arguments
            runs[step].launch(arguments)

        L, DL = _floats(q, 2, *q.shape[:2], padded_rows(at.M))
        dq = _sums(q) if plan.adds else stand_in(q, torch.float32)
        if "prepare" in plan.steps:
            launch("prepare", {"O": o, "dO": do, "LSE": lse, "L": L, "DL": DL, "dQ": dq})
        assert dlse is None or "prepare" in plan.steps, "the kernel of dQ makes the rows itself, and knows of no gradient of LSE"
        if dlse is not None:  # each weight is what its score changes LSE by
            DL[..., : at.M] -= dlse
        gq = output_for(q, q.shape[3]) if self.asked.queries else None
        gk, gv = (output_for(x, x.shape[3]) if self.asked.keys else None for x in (k, v))
        found: dict[int, torch.Tensor] = {}
        given = {"Q": q, "K": k, "V": v, "dO": do, "L": L, "DL": DL, "scale": scale}
        given |= {name: ready.arguments[name] for name in (DROPOUT if ready.seed else ())}
        if plan.by_queries is not None:
            before = {n: x for n, x in (("FO", o), ("FL", lse)) if n in plan.by_queries.takes}
            launch(BY_QUERIES, {**given, **before, "dQ": gq, **_joined(made[BY_QUERIES])})
        if plan.by_keys is not None:
            others = _joined(made[KERNEL])
            learned = {name: torch.zeros_like(others[of]) for of, name in plan.by_keys.transferred.gradients.items()}
            if plan.spread:
                dk, dv = _sums(k).zero_(), _sums(v).zero_()
            else:
                dk, dv = (stand_in(x, x.dtype) if g is None else g for g, x in ((gk, k), (gv, v)))
            sums = {"dQ": dq} if "dQ" in plan.by_keys.takes else {}
            launch(KERNEL, {**given, **sums, "dK": dk, "dV": dv, **others, **learned})
            found = plan.by_keys.by_place(learned)
            if plan.spread:  # scaled already
                launch("finish_keys", {"dQ": dk, "GQ": gk, "scale": 1.0})
                launch("finish_values", {"dQ": dv, "GQ": gv, "scale": 1.0})
        if plan.adds:
            launch("finish", {"dQ": dq, "GQ": gq, "scale": scale})
        if keep and self.asked.queries and self.asked.keys and not plan.spread and not found:
            self._keep(_numbers_of(ready, q, k, scale), runs, launches, tuple(made.values()), ready)
        return (gq, gk, gv), _added(found, self.of_sink(ready.data, lse, DL[..., : at.M]))

    def _keep(
        self, key: Any, runs: Mapping[str, Kernel], launches: Mapping[str, Mapping[str, Any]], made: tuple[Made | None, ...], ready: Ready
    ) -> None:
        """Remembers a pass that was made, by its launches' arguments, to be made again; not one with a launch that cannot be told from others."""
        inputs, rows = ("Q", "K", "V", "dO"), ("L", "DL")
        varying = {"prepare": ("O", "dO", "LSE"), KERNEL: (*inputs, *rows, *(("dQ",) if self.plan.adds else ())), "finish": ("dQ",)}
        varying[BY_QUERIES] = (*inputs, *rows) if "prepare" in launches else (*inputs, "FO", "FL")
        for step in (KERNEL, BY_QUERIES) if ready.seed else ():
            varying[step] = (*varying[step], DROPOUT[0])
        again = {step: runs[step].again({n: arguments[n] for n in varying[step]}, arguments) for step, arguments in launches.items()}  # type: ignore[attr-defined]
        if not all(again.values()):
            return
        assert ready.data is not None
        captured = (p.value for p in ready.data.captured if isinstance(p.value, torch.Tensor))
        if len(self.repeated) >= KNOWN_SHAPES:
            self.repeated.clear()
        prepares = "prepare" not in again
        queries = None if prepares else again["finish"] if "finish" in again else again[BY_QUERIES]
        states = tuple((t, state_of(t), memory_of(t)) for t in captured)
        self.repeated[key] = Repeated(again[BY_QUERIES if prepares else "prepare"], again[KERNEL], queries, made, ready.made, states)

    def _runs(self, ready: Ready, device: torch.device) -> Mapping[str, Kernel]:
        if ready.kernel is None:
            return {name: _Interpreted(step.checked) for name, step in self.plan.steps.items()}
        if not self.kernels:
            self.kernels = self.compiled(device)
        return self.kernels

    def of_sink(self, forward: TransferResult, lse: torch.Tensor, delta: torch.Tensor) -> dict[int, torch.Tensor]:
        """The gradient of a sink that has one, by its place. A sink is a logit without a value: delta, row_sum(O * dO) - dLSE, is all that its weight meets."""
        traced = self.attention.traced
        if traced.sink is None:
            return {}
        read = names_read(traced.sink)
        names: dict[str, Any] = {"h": torch.arange(lse.shape[1], dtype=torch.int32, device=lse.device)}
        given = {i: p for i, p in enumerate(traced.parameters) if p.name in read}
        names |= {p.name: p.on(forward.captured[i].value, lse.device) for i, p in given.items()}  # type: ignore[arg-type]
        leaves = {i: names[p.name].requires_grad_() for i, p in given.items() if i in self.asked.learned}
        if not leaves:
            return {}
        with torch.enable_grad():
            sinks = torch.as_tensor(evaluate(traced.sink, names))
        weights = torch.where(lse > -torch.inf, torch.exp(sinks.detach().view(-1, 1) - lse), 0.0)
        by_head = -(weights * delta).sum((0, 2))
        grads = torch.autograd.grad(sinks, tuple(leaves.values()), by_head.sum_to_size(sinks.shape))
        return dict(zip(leaves, grads, strict=True))

    def compiled(self, device: torch.device) -> Mapping[str, Kernel]:
        from ..runtime.compiled import compile

        need_warm("compiling a kernel")
        need_hopper(device)
        progress = Progress(f"{self.attention.spec.name} backward")
        with ThreadPoolExecutor(len(self.plan.steps)) as pool, progress.step("compiling"):
            steps = set(self.plan.steps.values())
            compiling = {s: pool.submit(compile, s.program, kernel=s.kernel, consts=s.consts) for s in steps}
            for part in self.plan.parts:
                part.prove(progress)
            return {name: compiling[step].result() for name, step in self.plan.steps.items()}


def _floats(like: torch.Tensor, *shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.float32, device=like.device)


def _sums(of: torch.Tensor) -> torch.Tensor:
    """A tensor of f32 of a shape, not yet written, whose rows begin at multiples of 16 bytes."""
    return _floats(of, *of.shape[:-1], -(-of.shape[-1] // 4) * 4)[..., : of.shape[-1]]


def _joined(made: Made | None) -> Mapping[str, Any]:
    """Captured values for a launch on the current stream."""
    if made is not None:
        made.join()
    return made or {}


def _added(*found: Mapping[int, torch.Tensor]) -> dict[int, torch.Tensor]:
    """Gradients by place, each of which may come of several."""
    total: dict[int, torch.Tensor] = {}
    for grads in found:
        for i, g in grads.items():
            total[i] = total[i] + g.view(total[i].shape) if i in total else g
    return total


@dataclass(frozen=True)
class _Interpreted:
    """A kernel that the interpreter runs."""

    checked: Checked

    def launch(self, arguments: Mapping[str, Any]) -> object:
        from ..interp import run

        return run(self.checked, arguments, budget=math.inf)


def chosen(
    attention: Attention, wanted: Sequence[bool], learned: Iterable[int], at: Lengths, few: Callable[[bool], bool] = lambda spread: False, of_lse: bool = False
) -> Gradients:  # fmt: skip
    """The backward pass for the gradients that are wanted, of query, key and value, and of captured tensors, as the user's setting of PyTorch asks for them. few: whether queries have
    few keys, for heads that would be shared out or not. of_lse: LSE has a gradient. Raises CuirError U410 where that asks for the same bits every time, and there are none."""
    in_order, keys = torch.are_deterministic_algorithms_enabled(), wanted[1] or wanted[2]
    spread = spreads(attention, at)
    apart = wanted[0] and keys and not in_order and few(spread)
    of_lse = of_lse and wanted[0] and (apart or in_order or not keys)  # one plan for all that need not know
    gradients = attention.gradients(Asked(wanted[0], keys, tuple(sorted(learned)), in_order, not apart and spread, apart, of_lse))
    by_keys = gradients.plan.by_keys
    if in_order and by_keys is not None and by_keys.transferred.gradients:
        name = next(iter(by_keys.transferred.gradients))
        message = f"the gradient of `{name}`, which a mod captures, is added up in an open order, and torch.use_deterministic_algorithms asks for the same bits every time"
        if not torch.is_deterministic_algorithms_warn_only_enabled():
            wrong("U410", message, f"give {name}.detach(), or torch.use_deterministic_algorithms(True, warn_only=True)")
        warnings.warn(message, stacklevel=2)
    return gradients


def backward(
    ready: Ready, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, o: torch.Tensor, lse: torch.Tensor, do: torch.Tensor, dlse: torch.Tensor | None,
    wanted: Sequence[bool] = (True, True, True), learned: Sequence[torch.Tensor] = (),
) -> tuple[torch.Tensor | None, ...]:  # fmt: skip
    """dQ, dK and dV of a call, dense and as its tensors lie, None where it is not wanted, and the gradients of tensors among what its mods capture, None where nothing depends on
    one. dlse: of LSE, None if nothing depends on it."""
    if autocasts(query):  # a backward pass computes in the dtypes of the forward pass
        with torch.autocast(query.device.type, enabled=False):
            return backward(ready, query, key, value, o, lse, do, dlse, wanted, learned)
    assert ready.attention is not None and ready.data is not None
    q, k, v, o, lse = (x.detach() for x in (query, key, value, o, lse))  # kernels recognise calls of tensors that want nothing
    first = (not any(x is y for y in learned[:n]) for n, x in enumerate(learned))  # a tensor that is given twice has its gradient once
    places = [next((at for t, at in ready.learnable if t is x and new), ()) for x, new in zip(learned, first, strict=True)]
    settings, data, lengths = ready.attention.settings, ready.data, lengths_of(query, key)
    learned_places = (i for at in places for i in at)
    few = functools.partial(few_keys, settings, data, ready.made, lengths, query.device)
    gradients = chosen(ready.attention, wanted, learned_places, lengths, few, dlse is not None)
    scale, plain = float(ready.arguments["scale"]), dlse is None and not learned and all(wanted)
    if plain:
        again = gradients.again(ready, scale, q, k, v, o, lse, do)
        if again is not None:
            return again
    if key.shape[0] != query.shape[0]:
        k, v = (x.expand(query.shape[0], -1, -1, -1) for x in (k, v))
    fitting = [x if strides_fit(x) and x.data_ptr() % COPY_ALIGNMENT == 0 else packed(x) for x in (q, k, v, o, do)]
    keep = plain and ready.kernel is not None and all(a is b for a, b in zip(fitting, (q, k, v, o, do), strict=True))
    keep = keep and key.shape[0] == query.shape[0] and all(map(made_as_it_lies, (q, k, v)))  # gradients are given as they are
    q, k, v, o, do = fitting
    grads, found = gradients.of(ready, q, k, v, o, lse, do, dlse, scale, keep)
    dense = (None if g is None or not asked else without_room(g, x) for g, x, asked in zip(grads, (q, k, v), wanted, strict=True))
    summed = (
        g if g is None or g.shape[0] == x.shape[0] else g.sum(0, keepdim=True) for g, x in zip(dense, (query, key, value), strict=True)
    )
    own = (g if g is None else as_it_lies(g, x) for g, x in zip(summed, (query, key, value), strict=True))
    return *own, *(_total([found[i] for i in at if i in found], x) for at, x in zip(places, learned, strict=True))


def _total(grads: list[torch.Tensor], of: torch.Tensor) -> torch.Tensor | None:
    """The gradient of a captured tensor, in its dtype, from those of all names under which mods read it."""
    return sum(grads[1:], grads[0]).view(of.shape).to(device=of.device, dtype=of.dtype) if grads else None


class _Differentiable(torch.autograd.Function):
    """A call whose outputs have gradients: O and LSE of query, key, value and captured tensors; of the largest scores there are none."""

    @staticmethod
    def forward(
        ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, ready: Ready, *learned: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        outputs = ready.outputs(*(x.detach() for x in (query, key, value)))
        ctx.save_for_backward(query, key, value, *outputs[:2], *ready.seed)  # the last one to notice a write before the backward pass
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
            wrong("U403", "gradients of a batch of outputs at once, which stand in no place of their own",
                  "torch.autograd.grad for one output after the other, without is_grads_batched or vectorize")  # fmt: skip

        def first() -> tuple[torch.Tensor | None, ...]:
            given = torch.zeros_like(o) if do is None else do
            return backward(ctx.ready, query, key, value, o, lse, given, dlse, needed[:3], ctx.learned)

        grads = differentiated_once(first, (query, key, value, do, dlse, *ctx.learned))
        return *grads[:3], None, *grads[3:]


def versions_of(ready: Ready) -> tuple[int, ...]:
    """Return the version counter of each captured tensor."""
    return tuple([t._version for t, _ in ready.read])


def check_unwritten(ready: Ready, versions: tuple[int, ...]) -> None:
    """Raises CuirError U421 if a captured tensor was written to since its versions were taken, as PyTorch does for what it saves for a backward pass."""
    for (t, name), version in zip(ready.read, versions, strict=True):
        if t._version != version:
            raise GradientError.of(
                "U421",
                f"`{name}`, a captured tensor that the backward pass reads, has been modified by an inplace operation since the call: "
                f"it is at version {t._version}; expected version {version} instead",
                hint=f"write to it behind the backward pass, or let the call capture a copy: {name} = {name}.clone()",
            )


def differentiable(ready: Ready, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The outputs of a call, with gradients. Raises CuirError U410, X109 where there are none."""
    assert ready.attention is not None
    learned = [(t, at) for t, at in ready.learnable if t.requires_grad]
    asked = [x.requires_grad for x in (query, key, value)]
    _ = chosen(ready.attention, asked, (i for _, at in learned for i in at), lengths_of(query, key))  # what has none is told now
    outputs: tuple[torch.Tensor, ...] = _Differentiable.apply(query, key, value, ready, *(t for t, _ in learned))
    return outputs


def learnable(data: TransferResult | None) -> Learnable:
    """The captured tensors that may have gradients: those of floats, each once."""
    places: dict[int, tuple[torch.Tensor, tuple[int, ...]]] = {}
    for i, p in enumerate(data.captured if data is not None else ()):
        if isinstance(p.value, torch.Tensor) and p.value.is_floating_point():
            places[id(p.value)] = p.value, (*places.get(id(p.value), (p.value, ()))[1], i)
    return tuple(places.values())


def read_tensors(ready: Ready) -> tuple[tuple[torch.Tensor, str], ...]:
    """The captured tensors of a call whose writes PyTorch counts, each once, with the names that they have in the mods."""
    if ready.data is None or ready.attention is None:
        return ()
    found: dict[int, tuple[torch.Tensor, str]] = {}
    for name, parameter in ready.attention.captured_by_name(ready.data):
        if isinstance(parameter.value, torch.Tensor) and not parameter.value.is_inference():
            found.setdefault(id(parameter.value), (parameter.value, name))
    return tuple(found.values())


__all__ = ["Attention", "Gradients", "Learnable", "Ready", "backward", "chosen", "differentiable", "learnable", "read_tensors"]
