"""`compile`: a program to a kernel that is called with torch tensors. Owns the way of calling; lowering, compiling and launching are `cuir.lowering`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from .bind import TORCH
from .checked import Checked, Const
from .diagnostics import CuirError
from .lowering import Compiled, compile_cuda, lower
from .nodes import Program


class CompiledKernel:
    """A kernel to be called with its parameters, by name or in order of the signature.

    Tensors that the kernel writes may be left out, or given in order by `out=`: those left out are allocated, with the lengths that the other tensors
    say. Returns the written tensors: one, or a tuple in order of the signature. Runs on torch's current stream without synchronising.
    Raises CuirError for arguments that do not fit (U4xx) and for what cannot run here (U5xx).
    """

    def __init__(self, compiled: Compiled):
        self.compiled = compiled
        self._launchers: dict[torch.device, Any] = {}

    @property
    def checked(self) -> Checked:
        return self.compiled.cuda.checked

    @property
    def source(self) -> str:
        return self.compiled.cuda.source

    def __call__(self, *args: Any, out: torch.Tensor | Sequence[torch.Tensor] | None = None, **named: Any) -> Any:
        from .lowering.launch import Launcher, bound_arguments, check_alignment, need_device

        arguments = self._arguments(args, named, out)
        bound = bound_arguments(self.checked, arguments)
        device = need_device(self.checked, bound.device)
        check_alignment(self.checked, self.compiled.cuda.aligned, arguments)
        if device not in self._launchers:
            self._launchers[device] = Launcher(self.compiled, device)
        self._launchers[device].launch(arguments, bound)
        written = tuple(arguments[t.name] for t in self.checked.tensors if t.written)
        return written[0] if len(written) == 1 else written

    def _arguments(
        self, args: tuple[Any, ...], named: Mapping[str, Any], out: torch.Tensor | Sequence[torch.Tensor] | None
    ) -> dict[str, Any]:
        kernel = self.checked.origin
        order = [p.name for p in kernel.params if p.name not in self.checked.consts]
        written = [t.name for t in self.checked.tensors if t.written]
        if len(args) > len(order):
            raise CuirError.of("U401", f"`{kernel.name}` takes {len(order)} arguments ({', '.join(order)}), found {len(args)}", kernel.span)
        arguments = dict(zip(order, args, strict=False))
        for name, value in named.items():
            if name in arguments:
                raise CuirError.of("U401", f"`{kernel.name}` got `{name}` twice", kernel.span)
            arguments[name] = value
        if out is not None:
            outs = [out] if isinstance(out, torch.Tensor) else list(out)
            free = [w for w in written if w not in arguments]
            if len(outs) > len(free):
                raise CuirError.of(
                    "U401", f"out= is for {', '.join(free) or 'nothing that was not given'}, found {len(outs)} tensors", kernel.span
                )
            arguments.update(zip(free, outs, strict=False))
        self._allocate(arguments, [w for w in written if w not in arguments])
        return arguments

    def _allocate(self, arguments: dict[str, Any], names: list[str]) -> None:
        """Tensors for results that were left out, of the lengths that the given tensors have."""
        lengths: dict[str, int] = {}
        device = None
        for t in self.checked.tensors:
            given = arguments.get(t.name)
            if isinstance(given, torch.Tensor) and given.dim() == len(t.dims):
                device = device or given.device
                lengths.update({d: n for d, n in zip(t.dims, given.shape, strict=True) if isinstance(d, str)})
        for name in names:
            t = next(p for p in self.checked.tensors if p.name == name)
            if device is None or any(isinstance(d, str) and d not in lengths for d in t.dims):
                continue  # bind says what is missing
            arguments[name] = torch.empty([lengths[d] if isinstance(d, str) else d for d in t.dims], dtype=TORCH[t.dtype], device=device)


def compile(program: Program | Checked, *, kernel: str | None = None, consts: Mapping[str, Const] | None = None) -> CompiledKernel:
    """Check (a program), lower and compile a kernel; cached on disk.

    program: a parsed program, or a checked kernel. kernel: its name, if there are several. consts: const parameters by name.
    Raises CuirError with every error of the program, or U503 without nvcc.
    """
    if isinstance(program, Program):
        from .check import check

        program = check(program, kernel, consts)
    return CompiledKernel(compile_cuda(lower(program)))
