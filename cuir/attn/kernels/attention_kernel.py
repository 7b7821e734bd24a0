"""Attention as an object: a variant's program, its verification report, its CUDA, and the call."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ...arguments.binding import TORCH
from ...arguments.requirements import COPY_ALIGNMENT
from ...caching import Memo, WeakValueMemo
from ...checking.checked import Checked, Const
from ...checking.checker import pick_kernel
from ...runtime.cards import Card
from ...spec.loading import as_specification
from ...spec.specification import Lengths, Specification, lengths_of
from ...syntax.caller_values import plain_number
from ...syntax.nodes import Program
from ...syntax.types import F32, DType
from ...text.diagnostics import CuirError
from ..capture.attention_request import Level
from ..capture.call_inputs import (
    Seeded,
    capturing,
    check_differentiable,
    check_head_dims,
    check_options,
    check_tensors,
    dtype_of,
    need_gpu,
    need_warm,
    parts_for,
    plain_integer,
    prepare_dropout,
)
from ..capture.capture_keys import CaptureKey, make_capture_key
from ..capture.device_tensors import DeviceArguments
from ..capture.dispatcher_calls import has_no_numbers, is_dispatched
from ..capture.first_call_progress import Progress
from ..capture.kernel_operands import output_for, pack_rows, strides_fit, without_room
from ..masks.block_lists import TooLarge
from ..outputs.output_table import OUTPUT_NAMES, name_operator
from ..splicing.captured_arguments import Cache, State, are_unchanged, memory_of, sources_of, state_of
from ..splicing.dropout_splice import arguments_of
from ..splicing.splice import TransferResult, transfer
from ..tracing.read_ranges import Reads, trace_without_clashes
from ..tracing.splice_names import DROPOUT, VALUE_SCALE
from ..tracing.traced_result import Parameter, Traced
from .autograd import Gradients, Learnable, collect_learnable, collect_read_tensors, run_differentiable
from .backward_kernels import RequestedGradients
from .card_kernels import choose_target, choose_task, find_kernel, get_current_device
from .experts import Form
from .form_settings import make_settings
from .settings import KNOWN_LENGTHS, Settings, text_of
from .split_kv import join_shares, launch_arguments, share_count
from .transfers import transfer_to_expert

if TYPE_CHECKING:
    from ...lowering import Cuda
    from ...performance.selection import Choice
    from ...runtime.compiled_kernel import CompiledKernel, ReplayableCall
    from ...verification import VerifyReport

KNOWN_PROBABILITIES = 16  # of dropout: size limit of the cache of launches


@dataclass(frozen=True)
class Ready:
    """The prepared launch that calls of one signature share.

    Attributes:
        checked: the program for the interpreter, which has no kernel.
        arguments: all arguments but the tensors of the call; `device_arguments` among them.
        steady: it may be cached with its mods.
    """

    kernel: CompiledKernel | None
    checked: Checked | None
    arguments: Mapping[str, Any]
    device_arguments: DeviceArguments | None = None
    steady: bool = True
    columns: int = 0  # of values and O
    fits: bool = True  # rows of the tensors are aligned as the kernel reads them, if the first one is
    attention: Attention | None = None  # and `data`, the captured values of its mods: for the backward pass
    data: TransferResult | None = None
    setting: Mapping[str, Const] = field(default_factory=dict)  # the kernel's const parameters
    replays: list[ReplayableCall] = field(default_factory=list)  # the replay of a call whose tensors the kernel read in place
    seed: tuple[torch.Tensor, ...] = ()  # of dropout, or a scale of values: another tensor in each call
    seed_names: tuple[str, ...] = DROPOUT
    scaled: list[ReplayableCall] = field(default_factory=list)  # the replay of a call with a scale of values
    dropped: dict[float, list[ReplayableCall]] = field(default_factory=dict)  # the replays by probability of dropout
    differentiable: set[Hashable] = field(default_factory=set)  # requests for gradients that passed the checks

    def __call__(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return O, LSE and the further outputs of the kernel, for checked tensors.

        The outputs have gradients if an input requires one.
        """
        return run_differentiable(self, query, key, value) if self.asks(query, key, value) else self.outputs(query, key, value)

    @functools.cached_property
    def learnable(self) -> Learnable:
        """The captured tensors of floats."""
        return collect_learnable(self.data)

    @functools.cached_property
    def read(self) -> tuple[tuple[torch.Tensor, str], ...]:
        """Captured tensors of the mods, with their names."""
        return collect_read_tensors(self)

    def asks(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> bool:
        """Return True if a call must be differentiable: an input or a captured tensor requires a gradient."""
        inputs = query.requires_grad or key.requires_grad or value.requires_grad
        return (inputs and torch.is_grad_enabled()) or self._learns()

    def _learns(self) -> bool:
        return torch.is_grad_enabled() and any(t.requires_grad for t, _ in self.learnable)

    def outputs(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the outputs of a call without gradients."""
        replayed = self.replay(query, key, value)
        if replayed is not None:
            return replayed
        tensors = {"Q": query, "K": key, "V": value}
        if self.seed:
            tensors |= zip(self.seed_names, self.seed)
        if key.shape[0] != query.shape[0]:
            key, value = (x.expand(query.shape[0], -1, -1, -1) for x in (key, value))
        o = output_for(query, self.columns)
        as_they_lie = self.fits and (query.data_ptr() | key.data_ptr() | value.data_ptr()) % COPY_ALIGNMENT == 0
        if not as_they_lie:
            query, key, value = (x if strides_fit(x) and x.data_ptr() % COPY_ALIGNMENT == 0 else pack_rows(x) for x in (query, key, value))
        if self.device_arguments is not None:
            self.device_arguments.join()
        outputs = self.launch(query, key, value, o)
        if self.kernel is not None and as_they_lie and self.steady and share_count(self.setting) == 1:
            call = self.kernel.make_replay(tensors, {"Q": query, "K": key, "V": value, "O": o, **self.arguments})
            self.replays.clear()
            self.replays.extend([] if call is None else [call])
        return outputs if self.fits else (without_room(o, tensors["Q"]), *outputs[1:])

    def as_they_lie(self, captured: Sequence[torch.Tensor], at: Lengths) -> tuple[tuple[Parameter, int], ...] | None:
        """Return the parameters that take captured tensors, each with its tensor's index in `captured`.

        Other tensors of the same layout can then replace these without preparation or checks: there are no block lists,
        no zeros behind a tensor, no element whose index depends on data. Returns None otherwise.
        """
        data, attention = self.data, self.attention
        if data is None or attention is None or data.lists is not None or data.tables or not self.steady:
            return None
        places = []
        for p in data.captured:
            if isinstance(p.value, torch.Tensor):
                place = next((i for i, t in enumerate(captured) if t is p.value), None)
                argument = self.arguments.get(p.name)
                like = p.on(p.value.new_empty(p.value.shape, device="meta"), "meta")
                if place is None or not isinstance(argument, torch.Tensor) or argument.shape != like.shape:  # type: ignore[union-attr]
                    return None
                places.append((replace(p, value=None), place))  # keep no reference to the tensor
        return tuple(places) if attention._needs_no_check(data, at) else None

    def with_values(self, values: Mapping[str, Any]) -> Ready:
        """Return a call with other captured values, without gradients, which is never cached."""
        return replace(self, arguments={**self.arguments, **values}, device_arguments=None, steady=False, data=None, replays=[])

    def with_dropout(self, dropout: Seeded | None) -> Ready:
        """Return the call with a probability and a seed; the call itself for None."""
        if dropout is None:
            return self
        p, seed = dropout
        if p not in self.dropped and len(self.dropped) >= KNOWN_PROBABILITIES:
            self.dropped.clear()
        return replace(self, arguments={**self.arguments, **arguments_of(p, seed)}, seed=(seed,), replays=self.dropped.setdefault(p, []))

    def with_value_scale(self, scale: torch.Tensor) -> Ready:
        """Return the call with scales of its values, [1, 1] or [B, HK]."""
        arguments = {**self.arguments, VALUE_SCALE: scale}
        return replace(self, arguments=arguments, seed=(scale,), seed_names=(VALUE_SCALE,), replays=self.scaled)

    def replay(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, ...] | None:
        """Replay an earlier call for tensors of the same layout, without gradients.

        Returns None, and launches nothing, for other tensors and where gradients are requested.
        """
        if not self.replays or (self.learnable and torch.is_grad_enabled() and self._learns()):
            return None
        captured = capturing()
        if captured:
            self.pin_if_capturing()
        if self.device_arguments is not None:
            self.device_arguments.join()
        return self.replays[0].of((query, key, value) + self.seed, captured)

    def launch(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, o: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Launch the kernel with O in `o`; return the outputs."""
        arguments = launch_arguments({"Q": query, "K": key, "V": value, "O": o}, self.setting)
        if self.kernel is not None:
            outputs: tuple[torch.Tensor, ...] = self.kernel.launch({**arguments, **self.arguments})
        else:
            outputs = self._interpret(arguments)
        if arguments["O"] is o:
            return outputs
        assert self.attention is not None
        return o, join_shares(arguments["O"], outputs[1], o, self.setting, self.attention.arch, interpreted=self.kernel is None)

    def _interpret(self, tensors: Mapping[str, Any]) -> tuple[torch.Tensor, ...]:
        from ...interp import run

        assert self.checked is not None
        o, written = tensors["O"], {t.name for t in self.checked.tensors if t.written}
        rows = {n: torch.empty(o.shape[:-1], dtype=torch.float32, device=o.device) for n in ("LSE", *OUTPUT_NAMES) if n in written}
        # as long as the caller's lengths take
        run(self.checked, {**tensors, **rows, **self.arguments}, budget=math.inf)
        return o, *rows.values()

    def pin_if_capturing(self) -> Ready:
        """Return itself, kept alive for the process if the stream is captured.

        Replays of the graph read its tensors.
        """
        if self.kernel is not None and capturing() and id(self) not in _PINNED:
            _PINNED[id(self)] = self
        return self


class WarmLaunch(NamedTuple):
    """A prepared call with the states of captured tensors, and their memory, which is held."""

    ready: Ready
    states: tuple[tuple[torch.Tensor, State], ...]
    memory: tuple[object, ...]


# launches that captured CUDA graphs read: they live as long as the process, since no one tells when a graph dies
_PINNED: dict[int, Ready] = {}
_NAMES = itertools.count()
ATTENTIONS: WeakValueMemo[str, Attention] = WeakValueMemo("flex.attentions", key="handle in a graph", invalidation="it died")


class Attention:
    """A variant of attention for one dtype and head dim; `cuir.attention` makes it.

    Called with query [B, H, M, D], key and value [B, HK, N, D], HK a divisor of H, it returns O [B, H, M, D], and with
    `return_lse=True` also LSE [B, H, M] (f32, natural logarithm), followed by the further
    outputs that the specification asks for, [B, H, M] (f32), as MAX_SCORES. A query without keys has O = 0 and LSE =
    -inf. All lengths share its kernels.
    """

    def __init__(
        self,
        transferred: TransferResult,
        traced: Traced,
        capture_key: CaptureKey,
        settings: Settings,
        level: Level,
        plain: Callable[[], Attention],
    ):
        """Create an attention from a transfer.

        `plain` makes the same attention with a mask that is computed where this one reads bits.
        """
        self._plain = plain
        self.transferred, self.traced, self.level = transferred, traced, level
        self._capture_key, self.settings = capture_key, settings
        self._reads, self._checked, self._captured = Reads(traced), Cache(), self._in_order(transferred)
        self._gradients: dict[RequestedGradients, Gradients] = {}
        self.kept: dict[Hashable, object] = {}  # what calls that are not dense keep with it
        self._warm: dict[Hashable, WarmLaunch] = {}
        values = [p.value for p in transferred.captured]
        self._steady = not any(v is None or (isinstance(v, torch.Tensor) and v.is_inference()) for v in values)
        self.handle = f"attention{next(_NAMES)}"  # by which a graph of torch.compile calls it
        ATTENTIONS[self.handle] = self

    def __repr__(self) -> str:
        consts = ", ".join(f"{n}={v}" for n, v in self.settings.start.items())
        return f"Attention({self.spec.name}; {consts})"

    @functools.cached_property
    def plain(self) -> Attention:
        return self._plain()

    @property
    def spec(self) -> Specification:
        return self.transferred.spec

    @property
    def program(self) -> Program:
        """The variant's kernel in CuIR; `cuir.show` prints it."""
        return self.transferred.program

    @property
    def arch(self) -> str:
        """The architecture that its kernels are for."""
        return pick_kernel(self.program, None).arch

    @property
    def card(self) -> Card | None:
        """The GPU for which a model of cost chooses settings; None for Hopper's kernels."""
        return self.settings.card

    @property
    def report(self) -> VerifyReport | None:
        """The report of verification; None with verify="off".

        It is computed when first needed, on the CPU, in some seconds. Raises CuirError if the program is wrong.
        """
        return self.prove(self.settings.start)

    def choice(self, query: torch.Tensor, key: torch.Tensor) -> Choice:
        """Return the const parameters for tensors of these shapes on this GPU, and the reason for them."""
        return self.settings.choice(lengths_of(query, key), self.settings.numbers(self.transferred.captured))

    @property
    def cuda(self) -> Cuda:
        """The kernel as CUDA C++ (`.source`), with the setting of a problem for which nothing was tuned."""
        from ...lowering import lower

        return lower(self.settings.check_program(self.settings.start))

    def gradients(self, requested: RequestedGradients = RequestedGradients()) -> Gradients:
        """Return the backward pass for requested gradients.

        Raises CuirError X109 where there is none.
        """
        if requested not in self._gradients:
            self._gradients[requested] = Gradients(self, requested)
        return self._gradients[requested]

    @property
    def fixed(self) -> Mapping[str, Const]:
        """The const parameters that are not chosen: dtype, head dims, and for f32 the TF32 parts of operands."""
        parts = {"PARTS"} & self.settings.fixed.keys() if self.settings.fixed["T"] == F32 else set()
        return {n: self.settings.fixed[n] for n in ("T", "D", "DV", *parts)}

    @property
    def capture_key(self) -> CaptureKey:
        """Capture key of the mods."""
        return self._capture_key

    def prove(self, consts: Mapping[str, Const], progress: Progress | None = None) -> VerifyReport | None:
        """Return the report for a setting.

        Raises CuirError if the program is wrong.
        """
        from .transfers import verify_or_recall

        if self.level == "off":
            return None
        return verify_or_recall(
            self.program,
            self.settings.specification(self.transferred),
            self._capture_key,
            self.settings.choose_judged(consts),
            self.level,
            progress or Progress(self.spec.name),
        )

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        scale: float | None = None,
        return_lse: bool = False,
        backend: str = "auto",
    ) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """Compute attention.

        Args:
            scale: of the scores, 1 / sqrt(D) by default.
            backend: "auto" runs on the GPU that holds the tensors, "interpret" in the interpreter.

        Raises CuirError for arguments that do not fit (U1xx, U4xx), for a missing device or tool (U5xx), and for a
        program that verification finds wrong.
        """
        if scale is not None:
            scale = plain_number(scale)
        called = self.in_graph if torch.compiler.is_compiling() else self.call_outside_graph
        outputs = called(query, key, value, scale, backend)
        return outputs if return_lse else outputs[0]

    @staticmethod
    def _in_order(data: TransferResult) -> tuple[torch.Tensor, ...]:
        """Return the captured tensors in the order in which a graph passes them.

        Those that may have gradients come first; each is there once.
        """
        first = [t for t, _ in collect_learnable(data)]
        tensors = {id(p.value): p.value for p in data.captured if isinstance(p.value, torch.Tensor)}
        return (*first, *(t for i, t in tensors.items() if i not in {id(x) for x in first}))

    def in_graph(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None, backend: str
    ) -> tuple[torch.Tensor, ...]:
        """Return the outputs as a node of the graph that torch.compile traces: the operator of operator.py."""
        # with those without a gradient, whose writes before the backward pass are then detected
        captured = list(self._captured)
        check_differentiable(query, key, value, self.spec.normalize, captured)
        captured += [] if (dropout := self._draw_seed(query)) is None else [dropout[1]]
        scale = query.shape[3] ** -0.5 if scale is None else float(scale)
        operator = getattr(torch.ops.cuir, name_operator(self.spec.output_names)).default
        outputs: tuple[torch.Tensor, ...] = operator(query, key, value, captured, self.handle, scale, True, backend, "quick")
        return outputs

    def call_outside_graph(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None, backend: str
    ) -> tuple[torch.Tensor, ...]:
        """Return the outputs of a call outside of a graph, as an operator where PyTorch dispatches it."""
        signature, cached, dispatched = None, None, is_dispatched(query)
        if self._steady and not dispatched:
            try:
                signature = (
                    type(key),
                    type(value),
                    query.shape,
                    key.shape,
                    value.shape,
                    query.stride(),
                    key.stride(),
                    value.stride(),
                    query.dtype,
                    key.dtype,
                    value.dtype,
                    query.device,
                    key.device,
                    value.device,
                    torch.is_grad_enabled(),
                    query.requires_grad,
                    key.requires_grad,
                    value.requires_grad,
                    scale,
                    type(scale),
                    backend,
                )
                cached = self._warm.get(signature)
            except (AttributeError, RuntimeError, TypeError):
                signature = None  # no dense tensors: the checks say so
        if cached is not None and are_unchanged(cached.states):
            return cached.ready.replay(query, key, value) or self._run(cached.ready.pin_if_capturing(), query, key, value)
        self.check(query, key, value, scale, backend)
        if dispatched or is_dispatched(key) or is_dispatched(value) or has_no_numbers(query):
            return self.in_graph(query, key, value, scale, backend)
        ready = self.ready(query, key, value, scale, backend)
        if signature is not None:
            if len(self._warm) >= KNOWN_LENGTHS:
                self._warm.clear()
            captured = [p.value for p in self.transferred.captured if isinstance(p.value, torch.Tensor)]
            self._warm[signature] = WarmLaunch(ready, tuple((t, state_of(t)) for t in captured), tuple(map(memory_of, captured)))
        return self._run(ready, query, key, value)

    def _run(self, ready: Ready, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the outputs of a prepared call with new dropout, if there is any."""
        return ready.with_dropout(self._draw_seed(query))(query, key, value)

    def _draw_seed(self, query: torch.Tensor) -> Seeded | None:
        return None if self.spec.dropout is None else prepare_dropout(self.spec.dropout.p, None, query)

    def check(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None, backend: str) -> None:
        """Raise CuirError for arguments that do not fit."""
        check_options(scale, backend, self.level)
        check_tensors(query, key, value, enable_gqa=True)
        fixed, dims = self.settings.fixed, (query.shape[3], value.shape[3])
        if query.dtype != TORCH[fixed["T"]] or dims != (fixed["D"], fixed["DV"]):  # type: ignore[index]
            raise CuirError.of(
                "U404",
                f"this attention is for {fixed['T']} and head dims {fixed['D']} (values: {fixed['DV']}), found {query.dtype} and {dims[0]} ({dims[1]})",
                hint="cuir.attention(spec, dtype=..., head_dim=..., value_dim=...) makes another",
            )

    def ready(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float | None,
        backend: str,
        data: TransferResult | None = None,
    ) -> Ready:
        """Prepare a launch for checked tensors.

        `data` is the transfer with other captured values.
        """
        data, at = data or self.transferred, lengths_of(query, key)
        columns = value.shape[3]
        fits = all(map(strides_fit, (query, key, value))) and columns * value.element_size() % COPY_ALIGNMENT == 0
        numbers: dict[str, Any] = {"scale": query.shape[3] ** -0.5 if scale is None else float(scale)}
        if backend == "interpret":
            consts, kernel = self.settings.choose_untuned(at), None
        else:
            problem = at, self.settings.numbers(data.captured)
            if problem not in self.settings.by_problem:
                need_gpu(query.device, self.arch)
                if not capturing():  # report unfitting values before verification spends seconds
                    self._check_captured(list(sources_of(data.captured, data.spec, at).values()), at, query.device)
            consts, kernel = self.settings.compile_for(*problem, self.prove, self.spec.name)
        try:
            device_arguments = self.arguments(data, at, query.device, consts)
        except TooLarge:
            return self.plain.ready(query, key, value, scale, backend, replace(self.plain.transferred, captured=data.captured))
        prepared = Ready(
            kernel,
            self.settings.check_program(consts) if kernel is None else None,
            {**numbers, **(device_arguments or {})},
            device_arguments,
            columns=columns,
            fits=fits,
            attention=self,
            data=data,
            setting=consts,
        )
        return prepared if kernel is None else prepared.pin_if_capturing()

    def name_captured_values(self, data: TransferResult) -> Iterator[tuple[str, Parameter]]:
        """Yield the name of each captured value in the mods, for messages, and its parameter."""
        for place, parameter in enumerate(data.captured):
            yield self.own_name(place), parameter

    def own_name(self, place: int) -> str:
        """Return the name of a captured value in the mods, for messages.

        `place` is its index among the captured parameters.
        """
        return self.traced.own_names.get(self.traced.parameters[place].name, self.transferred.captured[place].name)

    def _needs_no_check(self, data: TransferResult, at: Lengths) -> bool:
        """Return True if reads of captured tensors of these shapes need no check of data and no padding."""
        return self._reads.passes_for_all_data(list(sources_of(data.captured, data.spec, at).values()), at)

    def _check_captured(self, values: list[Any], at: Lengths, device: torch.device) -> None:
        """Check the reads of captured values.

        Raises CuirError U416 for one outside of a tensor, U417 for float64 whose rounding changes the result.
        """
        if self.settings.lengths_on_device:  # reads by tokens give 0 outside
            self._reads.check_doubles(values, device)
        else:
            self._reads.check(values, at, device)

    def check_heads(self, data: TransferResult, at: Lengths) -> None:
        """Raise CuirError U416 if an element that the mods read by batch and head alone does not exist.

        Shapes and captured numbers decide this, no element of a tensor.
        """
        if self._reads.by_heads:
            self._reads.check_heads(list(sources_of(data.captured, data.spec, at).values()), at)

    def arguments(self, data: TransferResult, at: Lengths, device: torch.device, consts: Mapping[str, Const]) -> DeviceArguments | None:
        """Return the checked captured values of a call as its kernel takes them.

        They are cached while they stay the same. Raises CuirError U415, U416, U417.
        """
        if not (data.captured or data.lists is not None or data.tables):
            return None
        if data.lists is None and not data.tables and all(p.lies(device) for p in data.captured) and self._needs_no_check(data, at):
            # no argument depends on their data, and comparing it with that of an earlier call would wait for the device
            return DeviceArguments({p.name: p.argument(data.spec, at, device) for p in data.captured}, device)
        sources = sources_of(data.captured, data.spec, at)
        key = at, str(device), consts.get("BM"), consts.get("BN")
        if capturing():
            entry = self._checked.entries.get(Cache.make_key(key, sources))
            if entry is None or any(isinstance(v, torch.Tensor) and v is not entry[0][n][0] for n, v in sources.items()):
                need_warm("preparing what a mask captures")

        def make() -> DeviceArguments:
            need_warm("preparing what a mask captures")
            self._check_captured(list(sources.values()), at, device)
            return DeviceArguments(data.arguments(at, device, consts, dropout=False), device)

        prepared = self._checked.get(key, sources, make)
        assert isinstance(prepared, DeviceArguments)
        return prepared


def attention(
    spec: Specification | Callable[..., Any],
    *,
    dtype: torch.dtype | DType | str = torch.float16,
    head_dim: int = 128,
    value_dim: int | None = None,
    origin: Program | None = None,
    consts: Mapping[str, Const] | None = None,
    verify: Level = "quick",
) -> Attention:
    """Make the attention of a specification from the expert kernel for the current GPU; without one, for Hopper.

    It is traced, transferred and checked now, and verified and compiled when first run.

    Args:
        spec: a Specification, a mask_mod (b, h, q_idx, kv_idx) or a score_mod (score, b, h, q_idx, kv_idx).
        dtype: f16, bf16 or f32. Products of f32 are as accurate as f32 (const PARTS = 2) or, where PyTorch's settings
            allow it at this time, TF32 (1).
        head_dim: of query and key, 1 to 576.
        value_dim: of value and O, head_dim by default.
        origin: another expert kernel with splice points.
        consts: const parameters that are not to be chosen (BM, BN, STAGES, ...).
        verify: how much a kernel is verified before it runs on a GPU: "quick", "full" or "off".

    Raises CuirError: X1xx for what cannot be traced, U109, U110, U413, and the checker's errors.
    """
    check_options(None, "auto", verify)
    head_dim, value_dim = plain_integer(head_dim), plain_integer(value_dim)
    spec = as_specification(spec, name_of(spec))
    capture_key = make_capture_key(spec.mask_mod, spec.score_mod, dict(spec.captured), *spec.weighting)
    values = head_dim if value_dim is None else value_dim
    target = choose_target(get_current_device())
    form = Form(TORCH[dtype_of(dtype)], head_dim, values, consts=tuple((consts or {}).items()), target=target)
    return make_attention(spec, capture_key, form, verify, origin=origin)


def make_attention(
    spec: Specification,
    capture_key: CaptureKey,
    form: Form,
    level: Level = "quick",
    traced: Traced | None = None,
    origin: Program | None = None,
    bits: bool = True,
) -> Attention:
    """Make the attention of a specification whose capture key, and perhaps trace, is available.

    Args:
        origin: a kernel in place of the expert one of this form.
        bits: as for `transfer`.
    """
    dtype, kind, head_dims, (arch, card) = dtype_of(form.dtype), form.kind, (form.head_dim, form.value_dim), form.target
    if not kind.startswith("latent cache"):  # whose values are columns of two products
        check_head_dims(*head_dims)
    parts = {"PARTS": parts_for(form.dtype)} if dtype == F32 and origin is None else {}
    fixed: dict[str, Const] = {"T": dtype, "D": head_dims[0], "DV": head_dims[1], **parts, **dict(form.consts)}
    traced = trace_by_key(spec, capture_key) if traced is None else traced
    tables, by_key = bits and kind == "forward" and not form.invariant, form.invariant
    if origin is None:
        name = find_kernel(arch, choose_task(kind, *head_dims), dtype)
        transferred = transfer_to_expert(name, spec, traced, bits, tables, by_key)
    else:
        transferred = transfer(origin, spec, traced=traced, bits=bits, tables=tables, by_key=by_key)
    key = (transferred.text, text_of(fixed), level, capture_key.structure, card, form.invariant)
    settings = _SETTINGS.get(key)
    if settings is None:
        settings = make_settings(form, fixed, transferred, traced, origin is not None)
        settings.require_fit(settings.start)
        _SETTINGS[key] = settings
    return Attention(
        transferred,
        traced,
        capture_key,
        settings,
        level,
        lambda: make_attention(spec, capture_key, form, level, traced, origin, bits=False),
    )


def trace_by_key(spec: Specification, capture_key: CaptureKey) -> Traced:
    """Trace mods, each of which runs once.

    Mods that write to what they read are traced once more: values of a trace that they keep are refused where they are
    used.
    """
    traced = trace_without_clashes(spec)
    if not capture_key.unwritten():
        trace_without_clashes(spec)
    return traced


# shared by mods with other data
_SETTINGS: Memo[Any, Settings] = Memo("flex.settings", key="program, consts, level, structure of mods", invalidation="never", limit=256)


def name_of(mod: object) -> str:
    """Return an identifier for a mod or a specification."""
    name = mod.name if isinstance(mod, Specification) else getattr(mod, "__name__", type(mod).__name__)
    return "".join(c if c.isascii() and c.isalnum() else "_" for c in str(name)).strip("_") or "variant"


__all__ = ["ATTENTIONS", "Attention", "Level", "Ready", "attention", "make_attention", "name_of", "trace_by_key"]
