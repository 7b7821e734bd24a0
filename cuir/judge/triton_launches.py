"""Triton kernels of a solution: Triton compiles them to PTX without a GPU, and the machine for PTX runs them.

Where Triton is not installed, nothing is done, and a solution that imports it cannot be judged.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from ..ptx.module import read_module
from .arena_tensors import DeviceArena
from .launch_solutions import EnteredKernel

WARP = 32


def serve_triton(arena: DeviceArena, arch: str, get_stream: Callable[[], int]) -> bool:
    """Let Triton's kernels run in the machine; return whether Triton is installed."""
    if importlib.util.find_spec("triton") is None:
        return False
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.runtime.driver import driver
    from triton.runtime.jit import JITFunction

    target = GPUTarget("cuda", int("".join(c for c in arch if c.isdigit())), WARP)
    driver.set_active(
        SimpleNamespace(
            get_current_target=lambda: target,
            get_current_device=lambda: 0,
            get_current_stream=lambda device=0: get_stream(),
            get_active_torch_device=lambda: torch.device("cuda", 0),
            get_benchmarker=lambda: lambda function, **options: (function(), [1.0, 1.0, 1.0])[1],
            is_active=lambda: True,
        )
    )
    kernels: dict[object, tuple[EnteredKernel, Any]] = {}

    def run(self: Any, *arguments: Any, grid: Any, warmup: bool = False, **named: Any) -> object:
        """Compile a kernel for its arguments, and launch it."""
        names = [p.name for p in self.params]
        values = dict(zip(names, arguments)) | {n: v for n, v in named.items() if n in names}
        values |= {p.name: p.default for p in self.params if p.name not in values and p.has_default}
        options = {n: v for n, v in named.items() if n not in names and n in ("num_warps", "num_stages", "num_ctas", "maxnreg")}
        constants = {p.name: values[p.name] for p in self.params if p.is_constexpr or values[p.name] is None}
        constants |= {p.name: 1 for p in self.params if type(values[p.name]) is int and values[p.name] == 1 and not p.do_not_specialize}
        signature = {p.name: "constexpr" if p.name in constants else describe_argument(values[p.name]) for p in self.params}
        attributes = {(i,): [["tt.divisibility", 16]] for i, n in enumerate(names) if n not in constants and is_divisible(values[n])}
        key = (self, str(signature), str(constants), str(attributes), str(options))
        if key not in kernels:
            placed = {(names.index(n),): v for n, v in constants.items()}
            compiled = triton.compile(ASTSource(self, signature, placed, attributes), target=target, options=options)
            text = compiled.asm["ptx"]
            module = read_module(text)
            kernels[key] = EnteredKernel(arena, text, next(f for f in module.functions.values() if f.is_entry)), compiled.metadata
        kernel, metadata = kernels[key]
        sizes = grid(values) if callable(grid) else grid
        sizes = (*sizes, 1, 1)[:3]
        passed: list[object] = [values[n] for n in names if n not in constants]
        passed += [None] * (len(kernel.function.parameters) - len(passed))  # scratch memory that it does not use
        if not warmup:
            kernel.launch(sizes, (WARP * metadata.num_warps, 1, 1), passed, metadata.shared, get_stream())
        return compiled_facts(metadata)

    JITFunction.run = run
    return True


def compiled_facts(metadata: Any) -> SimpleNamespace:
    """Return what callers may read of a compiled kernel."""
    return SimpleNamespace(metadata=metadata, n_regs=32, n_spills=0)


def describe_argument(value: object) -> str:
    """Return Triton's type of an argument."""
    names = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64", "bool": "i1", "uint8": "u8"}
    if isinstance(value, torch.Tensor):
        name = str(value.dtype).removeprefix("torch.")
        return "*" + names.get(name, name.replace("int", "i"))
    if isinstance(value, bool):
        return "i1"
    if isinstance(value, int):
        return "i32" if -(2**31) <= value < 2**31 else "i64"
    return "fp32"


def is_divisible(value: object) -> bool:
    """Return whether Triton may assume that an argument is a multiple of 16."""
    if isinstance(value, torch.Tensor):
        return value.data_ptr() % 16 == 0
    return type(value) is int and value % 16 == 0
