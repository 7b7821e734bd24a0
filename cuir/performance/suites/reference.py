"""External kernel as a contender: a folder with `bench_ref.py`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import torch

from ...spec.loading import import_file
from ...text.diagnostics import CuirError
from ..timing.timing_protocol import AttentionCall

FILE, SET, FAMILY = "bench_ref.py", "golden", "reference"


class UserKernel(Protocol):
    """Kernel of the user's file, made for a configuration."""

    def prepare(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, o: torch.Tensor, lse: torch.Tensor) -> Callable[[], object]: ...


class Reference:
    """File with kernels to compare with.

    `SETS["golden"]` of the file maps names to configurations, each with at least D (head dim) and, if the kernel is
    causal, a true CAUSAL. `Kernel(configuration).prepare(q, k, v, o, lse)` returns a function without arguments that
    launches the kernel on torch's current stream: q, o [B, H, M, D], k, v [B, HK, N, D] in f16, lse [B, H, M] in f32,
    scores scaled by D^-0.5.
    """

    def __init__(self, folder: Path):
        """Import the file. Raises CuirError U121, or X113 if it fails."""
        path = folder / FILE
        if not path.is_file():
            raise CuirError.of("U121", f"{folder} has no {FILE}", hint="--reference names a folder that holds it")
        self.module = import_file(path, "the reference")
        sets = getattr(self.module, "SETS", None)
        golden = sets.get(SET) if isinstance(sets, Mapping) else None
        if not isinstance(golden, Mapping) or not all(isinstance(c, Mapping) and "D" in c for c in golden.values()):
            raise CuirError.of("U121", f'{path} has no SETS["{SET}"] of names and configurations with D')
        if not callable(getattr(self.module, "Kernel", None)):
            raise CuirError.of("U121", f"{path} has no class Kernel")
        self.golden: Mapping[str, Mapping[str, object]] = golden
        self.kernels: dict[str, UserKernel] = {}

    def fitting(self, head_dim: int, causal: bool) -> list[str]:
        """Return the names of the configurations for full or causal attention of a head dim."""
        return [n for n, c in self.golden.items() if c["D"] == head_dim and bool(c.get("CAUSAL")) == causal]

    def kernel(self, name: str) -> UserKernel:
        """Return Kernel(configuration), made once: it may compile.

        Raises RuntimeError, also where the file would end the process.
        """
        if name not in self.kernels:
            try:
                self.kernels[name] = self.module.Kernel(self.golden[name])
            except SystemExit as end:
                raise RuntimeError(str(end)) from None
        return self.kernels[name]

    def contenders(self, causal: bool, problem: Mapping[str, torch.Tensor]) -> dict[str, AttentionCall]:
        """Return calls that compute (O, LSE), by `reference NAME`; kernels are built at the first call."""
        q, k, v = (problem[n] for n in "QKV")
        if q.dtype != torch.float16:
            return {}
        return {f"{FAMILY} {name}": self._call(name, q, k, v) for name in self.fitting(q.shape[-1], causal)}

    def _call(self, name: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> AttentionCall:
        """Return the call of a configuration."""
        prepared: list[tuple[Callable[[], object], torch.Tensor, torch.Tensor]] = []

        def call() -> tuple[torch.Tensor, torch.Tensor]:
            if not prepared:
                o, lse = torch.full_like(q, math.nan), torch.full(q.shape[:-1], math.nan, device=q.device)
                prepared.append((self.kernel(name).prepare(q, k, v, o, lse), o, lse))
            launch, o, lse = prepared[0]
            launch()
            return o, lse

        return call
