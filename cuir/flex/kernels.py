"""Attention as an object: a variant's program, what verification says of it, its CUDA, and the call. Owns which const parameters a call gets."""

from __future__ import annotations

import functools
import itertools
import math
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch

from ..calls.binding import TORCH
from ..calls.requirements import COPY_ALIGNMENT
from ..checking.checked import Checked, Const
from ..spec.loading import as_specification
from ..spec.specification import Lengths, Specification, lengths_of
from ..syntax.nodes import Program
from ..syntax.types import BF16, DTYPES, F16, DType
from ..text.diagnostics import CuirError
from ..variants import MAX_SCORES, Traced, TransferResult, transfer
from ..variants.arguments import Cache, memory_of, sources_of, state_of
from ..variants.ranges import Reads, traced_apart
from .inputs import capturing, check_gradient, check_head_dims, check_options, check_tensors, need_hopper, need_warm
from .mods import CaptureKey, identity
from .packing import output_for, packed, strides_fit, without_room
from .progress import Progress

if TYPE_CHECKING:
    from ..lowering import Cuda
    from ..runtime.compiled import CompiledKernel
    from ..verification import VerifyReport

Level = Literal["quick", "full", "off"]
ORIGIN = "flash_fwd_sm90"
KNOWN_LENGTHS = 1024  # problems whose setting is kept


class Settings:
    """The settings of const parameters with which one program runs, each checked, verified and compiled at most once."""

    def __init__(self, program: Program, fixed: Mapping[str, Const], starts: tuple[Mapping[str, Const], ...]):
        """fixed: T, D and what the user has chosen; starts: settings to take the first of that fits, where nothing was tuned."""
        self.program, self.fixed, self.starts = program, dict(fixed), starts
        self.by_lengths: dict[Lengths, tuple[dict[str, Const], CompiledKernel]] = {}
        self.by_class: dict[object, dict[str, Const]] = {}
        self.checks: dict[str, Checked] = {}
        self.kernels: dict[str, CompiledKernel] = {}

    @functools.cached_property
    def start(self) -> dict[str, Const]:
        """The setting of a problem for which nothing was tuned."""
        from ..tuning.space import ruled_out

        settings = ({**start, **self.fixed} for start in self.starts)
        return next((consts for consts in settings if ruled_out(self.program, None, consts) is None), self.fixed)

    def tuned(self, at: Lengths) -> dict[str, Const]:
        """The setting that `cuir tune` has found for lengths like these, else the start."""
        from ..measure.problem import Shape
        from ..tuning import completed, shape_class
        from ..tuning.cache import device

        lengths = (at.B, at.H, at.HK, at.M, at.N)
        kind = shape_class(Shape(*lengths, int(self.fixed["D"])), max(1, device()[1]))  # type: ignore[arg-type]
        if kind not in self.by_class:
            consts = completed(self.program, self.fixed, lengths)
            self.by_class[kind] = consts if consts != self.fixed else self.start
        return self.by_class[kind]

    def checked(self, consts: Mapping[str, Const]) -> Checked:
        from ..checking.checker import check

        key = _text(consts)
        if key not in self.checks:
            self.checks[key] = check(self.program, None, consts)
        return self.checks[key]

    def compiled(
        self, at: Lengths, prove: Callable[[Mapping[str, Const], Progress], object], name: str
    ) -> tuple[dict[str, Const], CompiledKernel]:
        """The consts and the kernel for lengths. prove: raises CuirError if the program is wrong with these consts; asked while nvcc works. name: for progress."""
        known = self.by_lengths.get(at)
        if known is not None:
            return known
        need_warm("compiling a kernel")
        from ..runtime.compiled import compile

        consts = self.tuned(at)
        key = _text(consts)
        if key not in self.kernels:
            pool, progress = ThreadPoolExecutor(1), Progress(name)
            try:
                with progress.step("compiling"):
                    compiling = pool.submit(compile, self.program, consts=consts)
                    prove(consts, progress)
                    self.kernels[key] = compiling.result()
            finally:
                pool.shutdown(wait=False)
        if len(self.by_lengths) >= KNOWN_LENGTHS:
            self.by_lengths.clear()
        self.by_lengths[at] = consts, self.kernels[key]
        return self.by_lengths[at]


class Made(dict[str, Any]):
    """Captured values and block lists as a kernel takes them; other streams than the one that they were made on wait for it."""

    def __init__(self, values: Mapping[str, Any], device: torch.device):
        super().__init__(values)
        self.index = device.index if device.type == "cuda" else None
        self.streams: set[int] = set()  # that may use them
        if self.index is not None:
            self.streams.add(torch._C._cuda_getCurrentRawStream(self.index))
            self.event = torch.cuda.current_stream(device).record_event()

    def join(self) -> None:
        """Makes the current stream one that may use them. A captured stream may: whoever begins a capture has waited for the device."""
        if self.index is None:
            return
        here = torch._C._cuda_getCurrentRawStream(self.index)
        if here in self.streams or capturing():
            return
        stream = torch.cuda.current_stream(self.index)
        stream.wait_event(self.event)
        for t in self.values():
            if isinstance(t, torch.Tensor):
                t.record_stream(stream)
        self.streams.add(here)


@dataclass(frozen=True)
class Ready:
    """What calls of one signature share. checked: for the interpreter, which has no kernel. arguments: all but the tensors of the call, `made` among them.
    steady: it may be remembered with the mods that it is of."""

    kernel: CompiledKernel | None
    checked: Checked | None
    arguments: Mapping[str, Any]
    made: Made | None = None
    steady: bool = True
    columns: int = 0  # of values, and so of O
    fits: bool = True  # rows of the tensors lie as the kernel reads them, if their first does

    def __call__(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """O, LSE and, of a kernel that gives them, the largest scores, for tensors that are known to fit."""
        if key.shape[0] != query.shape[0]:
            key, value = (x.expand(query.shape[0], -1, -1, -1) for x in (key, value))
        o, given = output_for(query, self.columns), query
        if not self.fits or (query.data_ptr() | key.data_ptr() | value.data_ptr()) % COPY_ALIGNMENT:
            query, key, value = (x if strides_fit(x) and x.data_ptr() % COPY_ALIGNMENT == 0 else packed(x) for x in (query, key, value))
        if self.made is not None:
            self.made.join()
        outputs = self.launched(query, key, value, o)
        return outputs if self.fits else (without_room(o, given), *outputs[1:])

    def launched(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, o: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The outputs, O in `o`."""
        if self.kernel is not None:
            outputs: tuple[torch.Tensor, ...] = self.kernel(Q=query, K=key, V=value, O=o, **self.arguments)
            return outputs
        from ..interp import run

        assert self.checked is not None
        written = {t.name for t in self.checked.tensors if t.written}
        rows = {n: torch.empty(query.shape[:-1], dtype=torch.float32, device=query.device) for n in ("LSE", MAX_SCORES) if n in written}
        run(
            self.checked, {"Q": query, "K": key, "V": value, "O": o, **rows, **self.arguments}, budget=math.inf
        )  # as long as the caller's lengths take
        return o, *rows.values()

    def pinned(self) -> Ready:
        """Itself, kept for as long as the process if the stream is captured: replays of the graph read its tensors."""
        if self.kernel is not None and capturing() and id(self) not in _PINNED:
            _PINNED[id(self)] = self
        return self


_PINNED: dict[int, Ready] = {}
_NAMES = itertools.count()
ATTENTIONS: weakref.WeakValueDictionary[str, Attention] = weakref.WeakValueDictionary()  # by handle


class Attention:
    """A variant of attention for one dtype and head dim; `cuir.attention` makes it.

    Called with query [B, H, M, D], key and value [B, HK, N, D], HK a divisor of H, it gives O [B, H, M, D], and LSE [B, H, M] (f32, natural logarithm) with
    `return_lse=True`, and then MAX_SCORES [B, H, M] (f32) behind it if the specification asks for `max_scores`. A query without keys has O = 0 and LSE = -inf. All lengths share its kernels.
    """

    def __init__(self, transferred: TransferResult, traced: Traced, who: CaptureKey, settings: Settings, level: Level):
        self.transferred, self.traced, self.level = transferred, traced, level
        self._who, self._settings = who, settings
        self._reads, self._checked = Reads(traced), Cache()
        self._warm: dict[Any, tuple[Ready, tuple[tuple[torch.Tensor, Any, Any], ...]]] = {}
        values = [p.value for p in transferred.captured]
        self._steady = not any(v is None or (isinstance(v, torch.Tensor) and v.is_inference()) for v in values)
        self.handle = f"attention{next(_NAMES)}"  # by which a graph of torch.compile calls it
        ATTENTIONS[self.handle] = self

    def __repr__(self) -> str:
        consts = ", ".join(f"{n}={v}" for n, v in self._settings.start.items())
        return f"Attention({self.spec.name}; {consts})"

    @property
    def spec(self) -> Specification:
        return self.transferred.spec

    @property
    def program(self) -> Program:
        """The variant's kernel in CuIR; `cuir.show` prints it."""
        return self.transferred.program

    @property
    def report(self) -> VerifyReport | None:
        """What verification found; None with verify="off". Asked when first needed, on the CPU, in some seconds. Raises CuirError if the program is wrong."""
        return self.prove(self._settings.start)

    @property
    def cuda(self) -> Cuda:
        """The kernel as CUDA C++ (`.source`), with the setting of a problem for which nothing was tuned."""
        from ..lowering import lower

        return lower(self._settings.checked(self._settings.start))

    def prove(self, consts: Mapping[str, Const], progress: Progress | None = None) -> VerifyReport | None:
        """The report for a setting. Raises CuirError if the program is wrong."""
        from .verified import verified

        if self.level == "off":
            return None
        return verified(self.program, self.spec, self._who, consts, self.level, progress or Progress(self.spec.name))

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
        """scale: of the scores, 1 / sqrt(D) if left out. backend: "auto" runs on the Hopper GPU that the tensors are on, "interpret" in the interpreter.

        Raises CuirError for arguments that do not fit (U1xx, U4xx), for what is missing (U5xx), and for a program that verification finds wrong.
        """
        called = self.in_graph if torch.compiler.is_compiling() else self.called
        outputs = called(query, key, value, scale, backend)
        return outputs if return_lse else outputs[0]

    def in_graph(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None, backend: str
    ) -> tuple[torch.Tensor, ...]:
        """The outputs as a node of the graph that torch.compile traces: the operator of operator.py."""
        for name, x in (("query", query), ("key", key), ("value", value)):
            check_gradient(name, x)
        scale = query.shape[3] ** -0.5 if scale is None else float(scale)
        own = torch.ops.cuir
        called = own.flex_attention_max_scores.default if self.spec.max_scores else own.flex_attention.default
        outputs: tuple[torch.Tensor, ...] = called(query, key, value, [], self.handle, scale, True, backend, "quick")
        return outputs

    def called(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None, backend: str
    ) -> tuple[torch.Tensor, ...]:
        """The outputs."""
        signature, known = None, None
        if self._steady:
            try:
                signature = (query.shape, key.shape, value.shape, query.stride(), key.stride(), value.stride(), query.dtype, key.dtype, value.dtype, query.device,
                             key.device, value.device, torch.is_grad_enabled(), query.requires_grad, key.requires_grad, value.requires_grad, scale, type(scale), backend)  # fmt: skip
                known = self._warm.get(signature)
            except (AttributeError, RuntimeError, TypeError):
                signature = None  # no dense tensors: the checks say so
        if known is not None and all(state_of(t) == state for t, state, _ in known[1]):
            return known[0].pinned()(query, key, value)
        self.check(query, key, value, scale, backend)
        ready = self.ready(query, key, value, scale, backend)
        if signature is not None:
            if len(self._warm) >= KNOWN_LENGTHS:
                self._warm.clear()
            held = [p.value for p in self.transferred.captured if isinstance(p.value, torch.Tensor)]
            self._warm[signature] = ready, tuple((t, state_of(t), memory_of(t)) for t in held)
        return ready(query, key, value)

    def check(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None, backend: str) -> None:
        """Raises CuirError for arguments that do not fit."""
        check_options(scale, backend, self.level)
        check_tensors(query, key, value, enable_gqa=True)
        fixed, dims = self._settings.fixed, (query.shape[3], value.shape[3])
        if query.dtype != TORCH[fixed["T"]] or dims != (fixed["D"], fixed["DV"]):  # type: ignore[index]
            raise CuirError.of("U404", f"this attention is for {fixed['T']} and head dims {fixed['D']} (values: {fixed['DV']}), found {query.dtype} and {dims[0]} ({dims[1]})",
                               hint="cuir.attention(spec, dtype=..., head_dim=..., value_dim=...) makes another")  # fmt: skip

    def ready(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None, backend: str, data: TransferResult | None = None
    ) -> Ready:  # fmt: skip
        """What a call needs beside its tensors, which are known to fit. data: the transfer with other captured values."""
        data, at = data or self.transferred, lengths_of(query, key)
        columns = value.shape[3]
        fits = all(map(strides_fit, (query, key, value))) and columns * value.element_size() % COPY_ALIGNMENT == 0
        numbers: dict[str, Any] = {"scale": query.shape[3] ** -0.5 if scale is None else float(scale)}
        if backend == "interpret":
            consts = self._settings.start
            made = self.arguments(data, at, query.device, consts)
            return Ready(None, self._settings.checked(consts), {**numbers, **(made or {})}, made, columns=columns, fits=fits)
        if at not in self._settings.by_lengths:
            need_hopper(query.device)
        consts, kernel = self._settings.compiled(at, self.prove, self.spec.name)
        made = self.arguments(data, at, query.device, consts)
        return Ready(kernel, None, {**numbers, **(made or {})}, made, columns=columns, fits=fits).pinned()

    def arguments(self, data: TransferResult, at: Lengths, device: torch.device, consts: Mapping[str, Const]) -> Made | None:
        """The captured values of a call as its kernel takes them, found to fit it; kept while they stay the same. Raises CuirError U415, U416, U417."""
        if not data.captured and data.lists is None:
            return None
        sources = sources_of(data.captured, data.spec, at)
        key = at, str(device), consts.get("BM"), consts.get("BN")
        if capturing():
            entry = self._checked.entries.get(key)
            if entry is None or any(isinstance(v, torch.Tensor) and v is not entry[0][n][0] for n, v in sources.items()):
                need_warm("preparing what a mask captures")

        def make() -> Made:
            need_warm("preparing what a mask captures")
            self._reads.check(list(sources.values()), at, device)
            return Made(data.arguments(at, device, consts), device)

        prepared = self._checked.get(key, sources, make)
        assert isinstance(prepared, Made)
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
    """The attention that a specification describes, from the expert kernel for Hopper: traced, transferred and checked now, verified and compiled when first run.

    spec: a Specification, a mask_mod (b, h, q_idx, kv_idx) or a score_mod (score, b, h, q_idx, kv_idx). dtype: f16 or bf16. head_dim: of query and key, 1 to 256;
    value_dim: of value and O, as head_dim if left out. origin: another expert kernel with splice points. consts: const parameters that are not to be chosen (BM, BN, STAGES, ...). verify: how much is asked
    before a kernel runs on a GPU: "quick", "full" or "off". Raises CuirError: X1xx for what cannot be traced, U109, U110, U413, and what the checker finds.
    """
    check_options(None, "auto", verify)
    spec = as_specification(spec, name_of(spec))
    return made(
        spec,
        identity(spec.mask_mod, spec.score_mod, dict(spec.captured), spec.normalize, spec.sink, spec.max_scores),
        dtype_of(dtype),
        (head_dim, head_dim if value_dim is None else value_dim),
        origin,
        consts,
        verify,
    )


def made(
    spec: Specification,
    who: CaptureKey,
    dtype: DType,
    head_dims: tuple[int, int],
    origin: Program | None = None,
    consts: Mapping[str, Const] | None = None,
    level: Level = "quick",
    traced: Traced | None = None,
) -> Attention:
    """`attention` for a specification whose identity, and perhaps what it traces to, is known."""
    check_head_dims(*head_dims)
    fixed: dict[str, Const] = {"T": dtype, "D": head_dims[0], "DV": head_dims[1], **(consts or {})}
    traced = traced_with(spec, who) if traced is None else traced
    transferred = transfer(origin if origin is not None else _origin(), spec, traced=traced)
    key = (transferred.text, _text(fixed), level, who.structure)
    settings = _SETTINGS.get(key)
    if settings is None:
        starts = _starts(transferred.program, fixed) if origin is None else ()
        settings = Settings(transferred.program, fixed, starts)
        settings.checked(settings.start)
        if len(_SETTINGS) >= KNOWN_PROGRAMS:
            _SETTINGS.pop(next(iter(_SETTINGS)))
        _SETTINGS[key] = settings
    return Attention(transferred, traced, who, settings, level)


def traced_with(spec: Specification, who: CaptureKey) -> Traced:
    """What mods trace to, for which each runs once; those that write to what they read once more, as what they keep of a trace is refused where it is used."""
    traced = traced_apart(spec)
    if not who.unwritten():
        traced_apart(spec)
    return traced


KNOWN_PROGRAMS = 256
_SETTINGS: dict[
    Any, Settings
] = {}  # by program, fixed consts, level and structure of the mods: other data, or another window, have their kernels here


@functools.cache
def _origin() -> Program:
    import corpus

    from ..syntax.parser import parse

    return parse(corpus.kernels()[ORIGIN].read_text(encoding="utf-8"), f"{ORIGIN}.cuir")


def _starts(program: Program, fixed: Mapping[str, Const]) -> tuple[Mapping[str, Const], ...]:
    """The settings of the expert kernel that are known to be good and agree with what is fixed."""
    import corpus

    from ..tuning import Space

    space = Space.parse(corpus.spaces()[ORIGIN].read_text(encoding="utf-8"), f"{ORIGIN}.tune.json")
    return space.within(program, None).narrowed(fixed).starts


def _text(consts: Mapping[str, Const]) -> str:
    return repr(sorted((name, str(value)) for name, value in consts.items()))


def dtype_of(dtype: torch.dtype | DType | str) -> DType:
    known: dict[object, DType] = {t: d for d, t in TORCH.items()} | dict(DTYPES) | {d: d for d in DTYPES.values()}
    cuir_dtype = known.get(dtype)
    if cuir_dtype not in (F16, BF16):
        raise CuirError.of("U109", f"attention kernels are for f16 and bf16, found `{dtype}`")
    return cuir_dtype


def name_of(mod: object) -> str:
    name = mod.name if isinstance(mod, Specification) else getattr(mod, "__name__", type(mod).__name__)
    return "".join(c if c.isascii() and c.isalnum() else "_" for c in str(name)).strip("_") or "variant"


__all__ = ["ATTENTIONS", "Attention", "Level", "Ready", "attention", "dtype_of", "made", "name_of", "traced_with"]
