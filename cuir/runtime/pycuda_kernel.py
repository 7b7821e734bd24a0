"""A kernel on the loader by PyCUDA: calls with torch's tensors or arrays of PyCUDA, and launches.

It also gives the arguments that `pycuda.driver.Function` is launched with.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, SupportsInt, TypeGuard

import numpy as np
import torch

from ..arguments.binding import TORCH
from ..arguments.foreign_arrays import INTERFACE, ArrayView, make_view, numpy_dtype, view_array
from ..arguments.requirements import require_layout
from ..checking.checked import Checked
from ..syntax.caller_values import plain_number
from ..text.diagnostics import CuirError
from .argument_buffer import ArgumentLayout, Arguments
from .compiled_kernel import CallRecord, CompiledKernel
from .launch import Launcher, Plan, bind_arguments, require_capability
from .nvcc import Compiled
from .pycuda_loader import Context, OwnStream, PyCudaFunction, get_current_context, import_pycuda, retain_primary_context

# PyCUDA takes no np.bool_
NUMPY = {"": np.void, "Q": np.uint64, "q": np.int64, "f": np.float32, "i": np.int32, "?": np.uint8}
CONTEXTS = "`import pycuda.autoprimaryctx` makes the device's primary context PyCUDA's, in which torch works too; `pycuda.autoinit` makes another one"


@dataclass(frozen=True)
class PyCudaLaunch:
    """A repeatable launch with its arguments.

    Equivalent to `function(*arguments, grid=grid, block=block, shared=shared)`. Launches that may overlap need a
    `prepare` each, since the arguments have one counter of tiles and one scratch memory. results: what a call returns.
    """

    function: Any
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    arguments: tuple[np.generic, ...]
    results: object
    kernel: PyCudaFunction
    packed: Arguments
    device: torch.device | None  # whose current stream of torch is the default; None with arrays of PyCUDA
    keep: tuple[object, ...]  # memory that the arguments point to

    def __call__(self, stream: OwnStream | None = None) -> Any:
        """Launch on a `pycuda.driver.Stream`.

        Without one on torch's current stream, or on the default stream with arrays of PyCUDA.
        """
        if self.grid[0]:
            if stream is not None or self.device is None:
                start = self.kernel.prepare_own(self.grid[0], stream, self.packed)
            else:
                start = self.kernel.prepare(self.grid[0], torch.cuda.current_stream(self.device).cuda_stream, self.packed)
            self.kernel.start(start)
        return self.results


class PyCudaKernel(CompiledKernel):
    """A kernel that PyCUDA loads and launches, called as a `CompiledKernel` is.

    Tensors of torch are taken in the primary context of their device, on torch's current stream. Arrays with
    `__cuda_array_interface__` and `pycuda.driver.DeviceAllocation`s are taken in PyCUDA's current context, on the
    default stream; missing results are then GPUArrays. An array of unsigned integers holds the bits of floats that
    NumPy does not have. An allocation has the lengths of the other arguments.
    """

    def __init__(self, compiled: Compiled, check: Callable[[], Checked] | None = None):
        super().__init__(compiled, check)
        self._by_context: dict[int, Launcher] = {}  # by the handle of PyCUDA's context

    # ---- launches
    @property
    def function(self) -> Any:
        """The `pycuda.driver.Function` in PyCUDA's current context; without one in torch's current device's."""
        context = get_current_context()
        if context is None and not torch.cuda.is_available():
            raise CuirError.of("U511", "PyCUDA has no current context in this thread", hint=CONTEXTS)
        kernel = self._launcher_in(context or retain_primary_context(torch.cuda.current_device())).kernel
        assert isinstance(kernel, PyCudaFunction)
        return kernel.function

    @property
    def block(self) -> tuple[int, int, int]:
        """Threads of a CTA."""
        return (self.compiled.cuda.threads, 1, 1)

    @property
    def shared(self) -> int:
        """Bytes of dynamic shared memory of a CTA."""
        return self.compiled.cuda.shared_bytes

    def grid(self, /, *args: object, **named: object) -> tuple[int, int, int]:
        """Return the CTAs of a call; the first number is 0 where there is nothing to launch."""
        return self.prepare(*args, **named).grid

    def arguments(self, /, *args: object, **named: object) -> tuple[np.generic, ...]:
        """Return the arguments of a call as `function` takes them, tensor maps included.

        `prepare` also keeps the memory that they point to.
        """
        return self.prepare(*args, **named).arguments

    def prepare(self, /, *args: object, out: object = None, **named: object) -> PyCudaLaunch:
        """Check a call, and make its launch.

        Raises CuirError as a call does.
        """
        outs = () if out is None else tuple(out) if isinstance(out, (tuple, list)) else (out,)
        return self._prepare(args, named, outs, private=True)

    def _run(self, args: tuple[object, ...], named: Mapping[str, object], outs: tuple[object, ...]) -> Any:
        if any(map(_is_array, (*args, *named.values(), *outs))):
            return self._prepare(args, named, outs, private=False)()
        return super()._run(_convert_plain(args), dict(zip(named, _convert_plain(named.values()), strict=True)), outs)

    # ---- implementation
    def _examine(
        self, args: tuple[object, ...], named: Mapping[str, object], outs: tuple[object, ...], values: tuple[object, ...]
    ) -> CallRecord:
        current = get_current_context()
        if current is not None:
            _require_torch_context(current, values)
        return super()._examine(args, named, outs, values)

    def _make_launcher(self, device: torch.device) -> Launcher:
        return self._launcher_in(retain_primary_context(device.index))

    def _launcher_in(self, context: Context) -> Launcher:
        if context.handle not in self._by_context:

            def load(compiled: Compiled, layout: ArgumentLayout, _: torch.device) -> PyCudaFunction:
                return PyCudaFunction(compiled, layout, context)

            require_capability(self._interface, context.capability)
            self._by_context[context.handle] = Launcher(self.compiled, torch.device("cuda", context.index), load)
        return self._by_context[context.handle]

    def _prepare(self, args: tuple[object, ...], named: Mapping[str, object], outs: tuple[object, ...], private: bool) -> PyCudaLaunch:
        """Make the launch of a call.

        private: with a new counter, whichever stream the launch goes to.
        """
        args, named = _convert_plain(args), dict(zip(named, _convert_plain(named.values()), strict=True))
        values: tuple[Any, ...] = (*args, *named.values(), *outs)
        if any(map(_is_array, values)):
            return self._prepare_arrays(dict(zip(self._names(args, named, outs), values, strict=True)), private)
        record = self._look_up(args, named, outs, (len(args), *named, len(outs)))
        tensors = record.collect_tensors(values)
        return self._bind_launch(record.launcher, record.plan, tensors, [tensors[i] for i in record.results], record.device, private)

    def _prepare_arrays(self, named_values: Mapping[str, object], private: bool) -> PyCudaLaunch:
        context = self._context_of(named_values)
        with context.activate():
            arguments = self._as_views(named_values, context.index)
            self._allocate(arguments, functools.partial(_allocate_array, self._interface, context.index))
            bound = bind_arguments(self._interface, arguments)
            require_layout(self._interface, self.compiled.cuda.aligned, arguments)
            launcher = self._launcher_in(context)
            views = [arguments[t.name] for t in self._interface.tensors]
            results = [arguments[t.name] for t in self._interface.outputs]
            return self._bind_launch(launcher, launcher.plan(arguments, bound), views, results, None, private)

    def _bind_launch(
        self,
        launcher: Launcher,
        plan: Plan,
        tensors: Sequence[torch.Tensor],
        results: Sequence[torch.Tensor],
        device: torch.device | None,
        private: bool,
    ) -> PyCudaLaunch:
        kernel = launcher.kernel
        assert isinstance(kernel, PyCudaFunction)
        packed = launcher.pack_arguments(plan, tuple(t.data_ptr() for t in tensors), launcher.get_counter(None if private else 0))
        memory = tuple(t.array if isinstance(t, ArrayView) else t for t in tensors)
        values = [t.array if isinstance(t, ArrayView) else t for t in results]
        return PyCudaLaunch(
            kernel.function,
            (plan.grid, 1, 1),
            self.block,
            self.shared,
            split_arguments(launcher.layout, packed, kernel.first_offset),
            values[0] if len(values) == 1 else tuple(values),
            kernel,
            packed,
            device,
            memory,
        )

    def _context_of(self, named_values: Mapping[str, object]) -> Context:
        """Return PyCUDA's current context.

        Raises CuirError U511 without one, and for tensors of torch that lie in another.
        """
        context = get_current_context()
        if context is None:
            raise CuirError.of("U511", "arrays need a context of PyCUDA, and there is none in this thread", hint=CONTEXTS)
        _require_torch_context(context, named_values.values())
        return context

    def _as_views(self, named_values: Mapping[str, object], index: int) -> dict[str, Any]:
        """Describe arrays as tensors; allocations last, with the lengths of the others."""
        params = {t.name: t for t in self._interface.tensors}
        arguments = {
            n: view_array(params[n], v, index) if n in params and hasattr(v, INTERFACE) and not isinstance(v, torch.Tensor) else v
            for n, v in named_values.items()
        }
        lengths: dict[int | str, int] = {}
        for name, value in arguments.items():
            if isinstance(value, torch.Tensor) and name in params and value.dim() == len(params[name].dims):
                lengths.update(zip(params[name].dims, value.shape))
        for name, value in arguments.items():
            if name in params and _is_allocation(value):
                param = params[name]
                unknown = [d for d in param.dims if isinstance(d, str) and d not in lengths]
                if unknown:
                    raise CuirError.of(
                        "U403",
                        f"`{name}` is an allocation, and no other argument says how long {', '.join(unknown)} is",
                        param.span,
                        f"pycuda.gpuarray.GPUArray(shape, dtype, gpudata={name})",
                    )
                shape = [d if isinstance(d, int) else lengths[d] for d in param.dims]
                arguments[name] = make_view(value, int(value), shape, None, TORCH[param.dtype], index)
        return arguments


def split_arguments(layout: ArgumentLayout, packed: Arguments, first: int) -> tuple[np.generic, ...]:
    """Split packed arguments into NumPy scalars, one for each parameter of the kernel.

    PyCUDA packs these unchanged. first: offset of the first parameter; where it is not 0, that many zeros come first,
    as a separate argument.
    """
    whole = packed.as_bytes()
    parts = [(p, whole[p.offset : p.offset + p.size]) for p in layout.parameters]
    values = [np.void(part) if not p.code else np.frombuffer(part, NUMPY[p.code])[0] for p, part in parts]
    return (np.void(bytes(first)), *values) if first else tuple(values)


def _allocate_array(interface: Checked, index: int, name: str, shape: Sequence[int], _: torch.device) -> ArrayView:
    """Allocate memory for a result or for scratch in the current context, as a GPUArray."""
    from pycuda import gpuarray

    param = next(t for t in interface.tensors if t.name == name)
    array = gpuarray.empty(tuple(shape), numpy_dtype(param.dtype))
    return view_array(param, array, index)


def _require_torch_context(context: Context, values: Iterable[object]) -> None:
    """Raise CuirError U511 for tensors of torch that do not lie in this context."""
    tensor = next((v for v in values if isinstance(v, torch.Tensor) and v.device.type == "cuda"), None)
    if tensor is not None and retain_primary_context(tensor.device.index).handle != context.handle:
        raise CuirError.of("U511", "the tensors are torch's, and PyCUDA's current context is not torch's", hint=CONTEXTS)


def _convert_plain(values: Iterable[object]) -> tuple[object, ...]:
    """Convert NumPy's scalars, with which functions of PyCUDA are called, to numbers."""
    return tuple([bool(v) if isinstance(v, np.bool_) else plain_number(v) for v in values])


def _is_allocation(value: object) -> TypeGuard[SupportsInt]:
    drv = import_pycuda()
    return isinstance(value, (drv.DeviceAllocation, drv.PooledDeviceAllocation))


def _is_array(value: object) -> bool:
    return not isinstance(value, (torch.Tensor, int, float)) and (hasattr(value, INTERFACE) or _is_allocation(value))
