"""Binding of a call's arguments: values of consts and dims, and checks of tensors and scalars."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from ..checking.checked import Const, TensorParam
from ..syntax.nodes import ConstType, GlobalType, Kernel, Param, ScalarType
from ..syntax.types import BOOL, DTYPES, F16, DType
from ..text.diagnostics import Sink
from .requirements import COPY_ALIGNMENT

TORCH: dict[DType, torch.dtype] = {d: getattr(torch, d.torch) for d in DTYPES.values() if d != BOOL}  # of tensors
_FROM_TORCH = {t: d for d, t in TORCH.items()}
Argument = torch.Tensor | float | int | bool


@dataclass(frozen=True)
class Bound:
    """The result of binding: consts of tensors and caller, and the length of every named dim."""

    consts: Mapping[str, Const]
    dims: Mapping[str, int]
    device: torch.device | None


def bind(kernel: Kernel, arguments: Mapping[str, Argument], consts: Mapping[str, Const] | None = None) -> Bound:
    """Check the arguments of a kernel by name, and read consts and dims off the tensors.

    arguments: a tensor for each `Global`, a number for each scalar; a `Scratch` is optional. consts: further const
    parameters. Raises CuirError (codes U4xx) with every mistake: missing or unknown names, dtype, rank, an innermost
    stride other than 1, equal names with unequal lengths, different devices, scalars that are not finite or do not
    fit.
    """
    sink = Sink()
    binder = _Binder(kernel, dict(consts or {}), sink)
    names = {p.name for p in kernel.params if not isinstance(p.type, ConstType)}
    for name in arguments:
        if name not in names:
            sink.error("U401", f"`{kernel.name}` has no parameter `{name}`; it takes: {', '.join(sorted(names))}", kernel.span)
    for p in kernel.params:
        if isinstance(p.type, ConstType):
            continue
        if p.name not in arguments:
            if p.scratch:
                continue
            sink.error("U402", f"`{kernel.name}` needs `{p.name}`", p.span)
        elif isinstance(p.type, GlobalType):
            binder.bind_tensor(p, p.type, arguments[p.name])
        else:
            binder.bind_scalar(p, p.type, arguments[p.name])
    sink.stop_if_any()
    return Bound(binder.consts, binder.dims, binder.device)


class _Binder:
    def __init__(self, kernel: Kernel, consts: dict[str, Const], sink: Sink):
        self.kernel, self.consts, self.sink = kernel, consts, sink
        self.const_names = {p.name for p in kernel.params if isinstance(p.type, ConstType)}
        self.defaults = {p.name: p.default for p in kernel.params if isinstance(p.type, ConstType)}
        self.origin: dict[str, str] = {}  # const or dim -> the tensor that it was read off
        self.dims: dict[str, int] = {}
        self.device: torch.device | None = None
        self.first: str | None = None

    def bind_tensor(self, p: Param, t: GlobalType, value: object) -> None:
        if not isinstance(value, torch.Tensor):
            self.sink.error("U403", f"`{p.name}` must be a torch.Tensor, found {type(value).__name__}", p.span)
            return
        if value.layout is not torch.strided or value.is_nested:
            found_layout = "a nested tensor" if value.is_nested else str(value.layout).removeprefix("torch.")
            self.sink.error("U403", f"`{p.name}` must be a dense tensor, found {found_layout}", p.span)
            return
        dtype = _FROM_TORCH.get(value.dtype)
        expected = DTYPES.get(t.dtype)
        if expected is None and t.dtype in self.const_names:
            if dtype is None:
                self.sink.error(
                    "U404", f"`{p.name}` has dtype {value.dtype}; kernels take {', '.join(str(d) for d in TORCH.values())}", p.span
                )
            else:
                self.bind_value(p, t.dtype, dtype)
        elif expected is not None and dtype != expected:
            self.sink.error(
                "U404",
                f"`{p.name}` must have dtype {TORCH.get(expected, expected)}, found {value.dtype}",
                p.span,
                f"{p.name}.to({TORCH.get(expected, expected)})",
            )
        if value.dim() != len(t.dims):
            self.sink.error(
                "U405",
                f"`{p.name}` must have {len(t.dims)} dims ({', '.join(map(str, t.dims))}), found {value.dim()}: {list(value.shape)}",
                p.span,
            )
            return
        for dim, size in zip(t.dims, value.shape, strict=True):
            self.bind_value(p, dim, int(size))
        if value.numel() and value.shape[-1] > 1 and value.stride(-1) != 1:
            self.sink.error(
                "U406", f"`{p.name}` must have innermost stride 1, found strides {list(value.stride())}", p.span, f"{p.name}.contiguous()"
            )
        if p.scratch and not (value.is_contiguous() and value.data_ptr() % COPY_ALIGNMENT == 0):
            lies = f"strides {list(value.stride())}, address % {COPY_ALIGNMENT} = {value.data_ptr() % COPY_ALIGNMENT}"
            self.sink.error(
                "U406",
                f"`{p.name}` is scratch, so it must be contiguous and start at a multiple of {COPY_ALIGNMENT} bytes, found {lies}",
                p.span,
                "leave it out: each launch brings its own along",
            )
        if any(s < 0 for s in value.stride()):
            self.sink.error("U406", f"`{p.name}` must not have negative strides", p.span, f"{p.name}.contiguous()")
        if self.device is None:
            self.device, self.first = value.device, p.name
        elif value.device != self.device:
            self.sink.error(
                "U407", f"`{p.name}` is on {value.device}, `{self.first}` on {self.device}", p.span, "move all tensors to one device"
            )
        if value.requires_grad and torch.is_grad_enabled():
            self.sink.error(
                "U410", f"`{p.name}` requires a gradient; kernels are not differentiated", p.span, "call under torch.no_grad(), or detach()"
            )

    def bind_value(self, p: Param, key: str | int, value: DType | int) -> None:
        """Give a dim or a const the value of a tensor, or compare it with the value that it has."""
        if isinstance(key, int):
            if key != value:
                self.sink.error(
                    "U408", f"a dim of `{p.name}` must be {key}, found {value}", p.span, "the kernel's signature fixes this length"
                )
            return
        table: dict[str, Const] | dict[str, int] = self.consts if key in self.const_names else self.dims
        if key not in table:
            table[key] = value  # type: ignore[assignment]
            self.origin[key] = f"`{p.name}`"
        elif table[key] != value:
            source = self.origin.get(key, "the consts given")
            message = f"`{key}` is {_show(table[key])} in {source} and {_show(value)} in `{p.name}`"
            bound_value = table[key]
            if isinstance(value, DType):
                self.sink.error(
                    "U404", message, p.span, f"{p.name}.to({TORCH.get(bound_value) if isinstance(bound_value, DType) else bound_value})"
                )
            else:
                self.sink.error("U408", message, p.span, "dims of one name have one length")

    def bind_scalar(self, p: Param, t: ScalarType, value: object) -> None:
        kinds: dict[str, tuple[type, ...]] = {"i32": (int,), "f32": (int, float), "bool": (bool,)}
        expected = kinds.get(t.dtype, ())
        if not isinstance(value, expected) or (isinstance(value, bool) and t.dtype != "bool"):
            self.sink.error("U409", f"`{p.name}` must be {'an' if t.dtype == 'i32' else 'a'} {t.dtype} number, found {value!r}", p.span)
        elif isinstance(value, (int, float)) and t.dtype == "f32" and not abs(value) < 3.5e38:  # nor NaN
            self.sink.error("U409", f"`{p.name}` must be finite, found {value}", p.span, "compute it in Python first")
        elif isinstance(value, int) and t.dtype == "i32" and not -(2**31) <= value < 2**31:
            self.sink.error("U409", f"`{p.name}` must fit 32 bits, found {value}", p.span)


def add_scratch(tensors: Iterable[TensorParam], arguments: Mapping[str, Argument], fill: float | None = None) -> dict[str, Argument]:
    """Return the arguments, with new memory for the scratch tensors of a launch.

    fill: initial value, else the memory is not initialised. Errors about unknown lengths are left to `bind`.
    """
    lengths: dict[str | int, int] = {}
    device, completed = None, dict(arguments)
    for t in tensors:
        x = completed.get(t.name)
        if isinstance(x, torch.Tensor) and x.dim() == len(t.dims):
            device = x.device if device is None else device
            lengths.update(zip(t.dims, x.shape))
    for t in tensors:
        if t.scratch and t.name not in completed and device is not None and all(isinstance(d, int) or d in lengths for d in t.dims):
            shape = [d if isinstance(d, int) else lengths[d] for d in t.dims]
            empty = torch.empty(shape, dtype=TORCH[t.dtype], device=device)
            completed[t.name] = empty if fill is None else empty.fill_(fill if t.dtype.is_float else -(2**31))
    return completed


def _show(value: object) -> str:
    return value.name if isinstance(value, DType) else str(value)


def assume_consts(kernel: Kernel, consts: Mapping[str, Const]) -> dict[str, Const]:
    """Return consts for checking a kernel without tensors: f16, innermost dims 128, other dims 64.

    Only consts without a value in `consts` and without a default are assumed; a const that is no tensor's dtype or dim
    stays missing.
    """
    values = dict(consts)
    tensors = [p.type for p in kernel.params if isinstance(p.type, GlobalType)]
    for p in kernel.params:
        if isinstance(p.type, ConstType) and p.default is None and p.name not in values:
            if any(t.dtype == p.name for t in tensors):
                values[p.name] = F16
            elif any(t.dims and t.dims[-1] == p.name for t in tensors):
                values[p.name] = 128
            elif any(p.name in t.dims for t in tensors):
                values[p.name] = 64
    return values
