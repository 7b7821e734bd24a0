"""A compiled kernel that is called with torch tensors: checks of calls, their cache, and replays."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from ..arguments.binding import TORCH, Argument
from ..arguments.guards import Allocation, Allocator, CallGuard, make_call_guard, make_number_key
from ..arguments.requirements import require_layout
from ..checking.checked import Checked
from ..syntax.caller_values import plain_number
from ..text.diagnostics import CuirError
from .nvcc import Compiled

if TYPE_CHECKING:
    from .launch import Launcher, Plan

Form = tuple[int | str, ...]  # of a call: number of positional arguments, names of keyword arguments, number of `out=`
KNOWN_LIMIT = 1024  # most signatures in the cache of calls
REPEATS = 4  # most recent calls that the next one is compared with first
_ADDRESS = torch.Tensor.data_ptr


@dataclass(frozen=True, slots=True)
class CallVariation:
    """The part of an `ReplayableCall` that calls of one signature share.

    repeat, low: of the tensors that vary. always: indices of the other tensors among the arguments. positions: see
    `Plan.make_replay`.
    """

    repeat: CallGuard
    low: tuple[int, ...]
    allocated: Allocator
    written: int
    always: tuple[int, ...]
    positions: tuple[int, ...]


@dataclass(frozen=True)
class CallRecord:
    """Checked calls of one signature, and the source of each of their tensors.

    sources: for each tensor of the kernel, in order, its index among the arguments, or the allocation to make.
    results: indices of the written tensors, without scratch. variations: by the names of the tensors that vary, see
    `CompiledKernel.make_replay`.
    """

    plan: Plan
    launcher: Launcher
    sources: tuple[int | Allocation, ...]
    results: tuple[int, ...]
    device: torch.device
    variations: dict[tuple[str, ...], CallVariation] = field(default_factory=dict)

    @functools.cached_property
    def allocated(self) -> Allocator:
        return Allocator([s for s in self.sources if not isinstance(s, int)], self.device)

    @functools.cached_property
    def positions(self) -> tuple[int, ...]:
        """For each tensor its index among the arguments followed by the allocations, which count from the end."""
        ends = itertools.count(-len(self.allocated.allocations))
        return tuple([s if isinstance(s, int) else next(ends) for s in self.sources])

    def collect_tensors(self, values: tuple[Any, ...]) -> list[Any]:
        """Return the tensors of a call with these arguments, in order of the signature; missing ones are allocated."""
        every = values + self.allocated.allocate()
        return [every[i] for i in self.positions]


@dataclass(frozen=True, slots=True)
class ReplayableCall:
    """A checked call that can be replayed with other tensors of the same layout.

    like: tests that tensors have this layout, their addresses aside. allocated: the allocations of each call, the
    `written` tensors, in the kernel's order, and scratch behind them. plan: of launches with the addresses of a call's
    tensors and of these allocations. keep_alive: tensors that every call has, and their memory, of which `plan` has the
    addresses: the caller guarantees that none of them got other memory.
    """

    like: Callable[..., bool]
    allocated: Allocator
    written: int
    launcher: Launcher
    plan: Plan
    keep_alive: tuple[object, ...]

    def __call__(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...] | None:
        return self.of(tensors)

    def of(self, tensors: tuple[torch.Tensor, ...], captured: bool | None = None) -> tuple[torch.Tensor, ...] | None:
        """Launch with outputs allocated for this call; do nothing and return None for other strides.

        captured: see `launch`.
        """
        if not self.like(*tensors):
            return None
        allocated = self.allocated.allocate()
        places = tuple(map(_ADDRESS, tensors + allocated))
        return allocated[: self.written] if self.launcher.launch(self.plan, places, captured) else None


class CompiledKernel:
    """A kernel to be called with its parameters, by name or in order of the signature.

    Tensors that the kernel writes are optional, or come in order by `out=`: missing ones are allocated, with the
    lengths of the other tensors. Returns the written tensors: one, or a tuple in order of the signature. Runs on
    torch's current stream without synchronising, and may be captured in a CUDA graph. Raises CuirError for arguments
    that do not fit (U4xx) and for what cannot run here (U5xx).

    A signature is what the checks depend on: names, shapes, strides, dtypes, devices, alignments and numbers. It is
    checked once; calls with a known one cost little more than the launch.
    """

    def __init__(self, compiled: Compiled, check: Callable[[], Checked] | None = None):
        """Wrap a compiled kernel.

        check: returns the full checked kernel; not needed if `compiled` has it and does not come from the disk cache.
        """
        self.compiled = compiled
        self._check = check
        self._launchers: dict[torch.device, Launcher] = {}
        self._records: dict[tuple[object, ...], tuple[CallGuard | None, CallRecord]] = {}
        self._repeats: tuple[tuple[CallGuard, CallRecord], ...] = ()  # of the last calls, the newest first

    @property
    def checked(self) -> Checked:
        """The checked kernel, for the interpreter, the lowering and reports."""
        if self._check is not None:
            cuda = self.compiled.cuda
            self.compiled, self._check = replace(self.compiled, cuda=replace(cuda, checked=self._check())), None
        return self.compiled.cuda.checked

    @property
    def _interface(self) -> Checked:
        """The checked kernel, perhaps without the text of its roles: all that a call needs."""
        return self.compiled.cuda.checked

    @property
    def spilled(self) -> int:
        """Bytes of registers that each thread spills and reloads."""
        return self.compiled.resources.spill_stores

    def __repr__(self) -> str:
        return f"CompiledKernel({self._interface!r}; {self.compiled.resources.summary()})"

    @property
    def source(self) -> str:
        return self.compiled.cuda.source

    def __call__(self, /, *args: object, out: torch.Tensor | Sequence[torch.Tensor] | None = None, **named: object) -> Any:
        # a parameter of the kernel that is named `out` takes precedence
        if out is not None and any(p.name == "out" for p in self._interface.origin.params):
            return self._run(args, {**named, "out": out}, ())
        return self._run(args, named, () if out is None else tuple(out) if isinstance(out, (tuple, list)) else (out,))

    def launch(self, arguments: Mapping[str, object]) -> Any:
        """Launch with arguments by the parameters' names, which cannot collide with keywords such as `out`."""
        return self._run((), arguments, ())

    def _run(self, args: tuple[object, ...], named: Mapping[str, object], outs: tuple[object, ...]) -> Any:
        values: tuple[Any, ...] = (*args, *named.values(), *outs)
        form: Form = (len(args), *named, len(outs))
        record = self._find_repeat(form, values) or self._look_up(args, named, outs, form)
        tensors = record.collect_tensors(values)
        record.launcher.launch(record.plan, tuple([t.data_ptr() for t in tensors]))
        results = record.results
        return tensors[results[0]] if len(results) == 1 else tuple([tensors[i] for i in results])

    def make_replay(self, varying: Mapping[str, torch.Tensor], arguments: Mapping[str, object]) -> ReplayableCall | None:
        """Return a replayable call for other tensors of this layout; None if such a call cannot be recognised.

        arguments: those of the call, by name. varying: the tensors that differ each time, as the caller has them (with
        the addresses that the arguments of these names have), written ones among them if the caller has those, too.
        Other tensors that the kernel writes are allocated each time, with the layout of that call; all other tensors
        are always those of that call, at their present addresses.
        """
        values: tuple[Any, ...] = tuple(arguments.values())
        form: Form = (0, *arguments, 0)
        varying_values = tuple(varying.values())
        record = self._find_repeat(form, values)
        variation = None if record is None else record.variations.get(tuple(varying))
        if record is None or variation is None or not variation.repeat.covers((), varying_values):
            repeat = make_call_guard((), varying_values)
            if repeat is None:
                return None
            record = record or self._look_up((), arguments, (), form)
            variation = record.variations[tuple(varying)] = self._tell_apart(record, repeat, tuple(varying), values)
        always = [values[i] for i in variation.always]
        plan = record.plan.make_replay(variation.low, tuple([t.data_ptr() for t in always]), variation.positions)
        keep_alive = tuple([(t, t.untyped_storage()) for t in always])
        return ReplayableCall(variation.repeat.check, variation.allocated, variation.written, record.launcher, plan, keep_alive)

    def _tell_apart(self, record: CallRecord, repeat: CallGuard, varying: tuple[str, ...], values: tuple[Any, ...]) -> CallVariation:
        """Classify the tensors of a call for `make_replay`.

        values: the arguments of a recorded call.
        """
        written: list[Allocation] = []
        scratch: list[Allocation] = []
        always: list[int] = []
        for tensor, source in zip(self._interface.tensors, record.sources, strict=True):
            if tensor.name in varying:
                continue
            if not isinstance(source, int):
                (scratch if tensor.scratch else written).append(source)
            elif tensor.written:
                written.append((tuple(values[source].shape), values[source].stride(), values[source].dtype))
            else:
                always.append(source)
        order = [*varying, *(t.name for t in self._interface.outputs if t.name not in varying)]
        order += [t.name for t in self._interface.tensors if t.scratch]
        order += [t.name for t in self._interface.tensors if t.name not in order]
        positions = tuple(order.index(t.name) for t in self._interface.tensors)
        return CallVariation(
            repeat, tuple(repeat.low), Allocator([*written, *scratch], record.device), len(written), tuple(always), positions
        )

    def _find_repeat(self, form: Form, values: tuple[object, ...]) -> CallRecord | None:
        for repeat, record in self._repeats:
            if repeat.covers(form, values):
                return record
        return None

    def _look_up(self, args: tuple[object, ...], named: Mapping[str, object], outs: tuple[object, ...], form: Form) -> CallRecord:
        """Look up a call that differs from the last ones; examine one of a new signature."""
        values = (*args, *named.values(), *outs)
        signature = _signature(values, form)
        repeat, record = self._records.get(signature, (None, None)) if signature else (None, None)
        if record is None:
            record = self._examine(args, named, outs, values)
        if signature:
            if repeat is None or not repeat.covers(form, values):  # made in another mode: inference, autocast
                repeat = make_call_guard(form, values)
            if len(self._records) >= KNOWN_LIMIT:
                self._records.clear()
            self._records[signature] = repeat, record
        if repeat is not None:
            self._repeats = ((repeat, record), *[entry for entry in self._repeats if entry[1] is not record][: REPEATS - 1])
        return record

    def _examine(
        self, args: tuple[object, ...], named: Mapping[str, object], outs: tuple[object, ...], values: tuple[object, ...]
    ) -> CallRecord:
        """Check a call in full."""
        from .launch import bind_arguments, require_device

        names = self._names(args, named, outs)
        arguments: dict[str, Any] = dict(zip(names, map(plain_number, values), strict=True))
        self._allocate(arguments)
        bound = bind_arguments(self._interface, arguments)
        device = require_device(self._interface, bound.device)
        require_layout(self._interface, self.compiled.cuda.aligned, arguments)
        if device not in self._launchers:
            self._launchers[device] = self._make_launcher(device)
        launcher = self._launchers[device]
        tensors = {t.name: arguments[t.name] for t in self._interface.tensors}
        sources = tuple(names.index(n) if n in names else (tuple(t.shape), t.stride(), t.dtype) for n, t in tensors.items())
        results = tuple(i for i, t in enumerate(self._interface.tensors) if t.written and not t.scratch)
        return CallRecord(launcher.plan(arguments, bound), launcher, sources, results, device)

    def _make_launcher(self, device: torch.device) -> Launcher:
        from .launch import Launcher

        return Launcher(self.compiled, device)

    def _names(self, args: tuple[object, ...], named: Mapping[str, object], outs: tuple[object, ...]) -> list[str]:
        """Return the parameters' names of the arguments of a call, in order."""
        kernel = self._interface.origin
        order = [p.name for p in kernel.params if p.name not in self._interface.consts]
        if len(args) > len(order):
            raise CuirError.of("U401", f"`{kernel.name}` takes {len(order)} arguments ({', '.join(order)}), found {len(args)}", kernel.span)
        names = order[: len(args)]
        for name in named:
            if name in names:
                raise CuirError.of("U401", f"`{kernel.name}` got `{name}` twice", kernel.span)
            names.append(name)
        free = [t.name for t in self._interface.tensors if t.written and not t.scratch and t.name not in names]
        if len(outs) > len(free):
            raise CuirError.of(
                "U401", f"out= is for {', '.join(free) or 'nothing that was not given'}, found {len(outs)} tensors", kernel.span
            )
        return names + free[: len(outs)]

    def _allocate(
        self, arguments: dict[str, Argument], empty: Callable[[str, list[int], torch.device], torch.Tensor] | None = None
    ) -> None:
        """Allocate missing results, with the lengths of the other tensors.

        empty: makes one, by its name, if torch does not.
        """
        lengths: dict[str, int] = {}
        device = None
        for t in self._interface.tensors:
            argument = arguments.get(t.name)
            if isinstance(argument, torch.Tensor) and argument.dim() == len(t.dims):
                device = device or argument.device
                lengths.update({d: n for d, n in zip(t.dims, argument.shape, strict=True) if isinstance(d, str)})
        for t in self._interface.tensors:
            if not (t.written or t.scratch) or t.name in arguments:
                continue
            if device is None or any(isinstance(d, str) and d not in lengths for d in t.dims):
                continue  # bind reports missing arguments
            shape = [lengths[d] if isinstance(d, str) else d for d in t.dims]
            arguments[t.name] = torch.empty(shape, dtype=TORCH[t.dtype], device=device) if empty is None else empty(t.name, shape, device)


def _signature(values: tuple[object, ...], names: Form) -> tuple[object, ...] | None:
    """Return the parts of a call that its checks depend on; None for arguments that no kernel takes."""
    parts: list[object] = [names, torch.is_grad_enabled()]
    try:
        for value in values:
            if isinstance(value, torch.Tensor):
                parts += (value.shape, value.stride(), value.dtype, value.device, value.requires_grad, value.data_ptr() & 15)
            elif isinstance(value, (int, float)):
                parts += make_number_key(value)
            else:
                return None
    except RuntimeError:
        return None  # a tensor without strides: sparse or nested
    return tuple(parts)
