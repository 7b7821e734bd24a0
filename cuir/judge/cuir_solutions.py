"""CuIR programs as solutions: lowered to CUDA, compiled to PTX, and launched on the inputs of the reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from ..arguments.binding import TORCH, Argument
from ..checking.checked import Checked, Const, TensorParam
from ..checking.checker import check
from ..checking.const_defaults import fill_consts
from ..lowering import lower
from ..syntax.caller_values import program_of
from ..syntax.nodes import ConstType, GlobalType
from ..verification.ptx_launches import RESIDENT, PtxKernel, compile_lowered, make_call
from .arena_tensors import DeviceArena
from .launch_solutions import EnteredKernel

NAMES = {dtype: name for name, dtype in TORCH.items()}


class CuirSolution:
    """A program of one kernel, whose inputs are the reference's in their order; it returns its outputs.

    origin: a program, a decorated function, or the path of a file. Raises CuirError, ValueError for several kernels.
    """

    def __init__(self, origin: object, arena: DeviceArena, get_stream: Callable[[], int]):
        self.program, self.arena, self.get_stream = program_of(origin, "judge"), arena, get_stream
        kernels = list(self.program.kernels().values())
        if len(kernels) != 1:
            raise ValueError(f"a program of one kernel is judged, found {', '.join(k.name for k in kernels)}")
        self.kernel = kernels[0]
        self.compiled: dict[tuple[tuple[str, Const], ...], tuple[PtxKernel, EnteredKernel]] = {}

    def run(self, *inputs: object) -> tuple[torch.Tensor, ...]:
        """Launch the kernel for some inputs, and return what it writes. Raises CuirError."""
        consts = self._read_consts(inputs)
        key = tuple(sorted(consts.items(), key=lambda item: item[0]))
        if key not in self.compiled:
            lowered = compile_lowered(lower(check(self.program, None, consts)))
            module = lowered.kernel.module.module
            self.compiled[key] = lowered, EnteredKernel(self.arena, module.text, module.functions[lowered.kernel.name])
        lowered, entered = self.compiled[key]
        checked = lowered.cuda.checked
        written = {t.name for t in checked.outputs}
        names = [p.name for p in self.kernel.params if not isinstance(p.type, ConstType) and p.name not in written and not p.scratch]
        arguments: dict[str, Argument] = dict(zip(names, inputs, strict=True))  # type: ignore[arg-type]
        outputs = {t.name: self._make_output(checked, t, arguments) for t in checked.outputs}
        call = make_call(lowered.cuda, {**arguments, **outputs}, RESIDENT)
        values = [self.arena.move(a) if isinstance(a, torch.Tensor) else a for a in call.arguments]
        entered.launch(call.grid, call.block, values, call.shared, self.get_stream())
        return tuple(outputs.values())

    def _read_consts(self, inputs: tuple[object, ...]) -> dict[str, Const]:
        """Return consts that the inputs' dtypes and lengths give, and defaults."""
        params = [p for p in self.kernel.params if not isinstance(p.type, ConstType)]
        known = {p.name for p in self.kernel.params if isinstance(p.type, ConstType)}
        found: dict[str, Const] = {}
        for p, x in zip(params, inputs):
            if isinstance(p.type, GlobalType) and isinstance(x, torch.Tensor):
                pairs = [(p.type.dtype, NAMES[x.dtype]), *zip(p.type.dims, x.shape)]
                found |= {n: v for n, v in pairs if n in known and n not in found}  # type: ignore[misc]
        return fill_consts(self.kernel, found)

    def _make_output(self, checked: Checked, t: TensorParam, arguments: Mapping[str, Argument]) -> torch.Tensor:
        """Return memory for an output, of lengths that the inputs give."""
        lengths: dict[str, int] = {}
        for other in checked.tensors:
            x = arguments.get(other.name)
            if isinstance(x, torch.Tensor):
                lengths |= {d: n for d, n in zip(other.dims, x.shape) if isinstance(d, str)}
        shape = [lengths[d] if isinstance(d, str) else d for d in t.dims]
        return torch.empty(shape, dtype=TORCH[t.dtype], device="cuda")
