"""A small kernel to break: one loader, a ring of stages, one or two warpgroups that multiply what lands and store the sum."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

import cuir
from cuir.checking.checked import Checked
from cuir.interp import RunReport, Schedule
from cuir.syntax.types import F16

ROOT = Path(__file__).parent.parent.parent

PIPE = """\
@kernel(arch="sm_90a")
def pipe(X: Global[f16, N, R, 64], W: Global[f16, 64, 64], Y: Global[f16, U, 128, 64], *, STAGES: const = 2, R: const = 64):
    sX, sW, sY = shared(f16, [STAGES, 64, 64]), shared(f16, [64, 64]), shared(f16, [128, 64])
    w_full = mbarrier(1)
    full, empty = mbarrier(1, stages=STAGES), mbarrier(2, stages=STAGES)
    work = tiles(U)
    with role("load", warps=1, registers=24):
        w_full.expect(nbytes(sW))
        copy_async(W[0 : 64, :], sW, w_full)
        it = 0
        for t in work:
            for i in range(N):
                s = it % STAGES
                empty[s].wait(it // STAGES % 2 ^ 1)
                full[s].expect(nbytes(sX[s]))
                copy_async(X[i, 0 : 64, :], sX[s], full[s])
                it += 1
    with role("compute", warpgroups=2, registers=240) as wg:
        it = 0
        w_full.wait(0)
        for t in work:
            acc = full(f32, [64, 64], cast(t, f32))
            for i in range(N):
                s = it % STAGES
                full[s].wait(it // STAGES % 2)
                acc = mma_async(sX[s], sW, acc)
                mma_wait(acc)
                empty[s].arrive()
                it += 1
            store_wait()
            store(sY[wg * 64 : wg * 64 + 64], cast(acc, f16))
            fence_async()
            store_async(sY[wg * 64 : wg * 64 + 64], Y[t, wg * 64 : wg * 64 + 64, :])
"""


@pytest.fixture(scope="session")
def pipe_text() -> str:
    return PIPE


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@dataclass
class Ran:
    """Results of a run, or the error that it ended in."""

    report: RunReport | None = None
    error: cuir.CuirError | None = None
    arguments: dict[str, Any] = field(default_factory=dict)

    @property
    def code(self) -> str:
        return self.error.diagnostics[0].code if self.error else ""

    @property
    def at(self) -> str:
        """The text that the first diagnostic points at."""
        assert self.error is not None
        span = self.error.diagnostics[0].span
        return span.text() if span else ""


Runner = Callable[..., Ran]


@functools.lru_cache(maxsize=64)  # many runs are of one kernel, under other schedules or on other tensors
def _check(text: str, kernel: str | None, consts: tuple[tuple[str, type, Any], ...]) -> Checked:
    return cuir.check(cuir.parse(text, "k.cuir"), kernel, {name: value for name, _, value in consts})


@pytest.fixture(scope="session")
def execute() -> Runner:
    """Checks and runs a text on arguments; a fault comes back as a value."""

    def run(
        text: str, arguments: Mapping[str, Any], consts: Mapping[str, Any] | None = None, kernel: str | None = None, **options: Any
    ) -> Ran:
        ran = Ran(arguments=dict(arguments))
        inputs = sorted((consts or {}).items())
        checked = _check(text, kernel, tuple((name, type(value), value) for name, value in inputs))
        try:
            ran.report = cuir.run(checked, ran.arguments, **options)
        except cuir.CuirError as error:
            ran.error = error
        return ran

    return run


@pytest.fixture(scope="session")
def pipe(execute: Runner) -> Runner:
    """Runs PIPE, with some of its text replaced: pipe((old, new), ..., U=3, N=5, schedule=...)."""

    def run(*changes: tuple[str, str], U: int = 3, N: int = 5, **options: Any) -> Ran:
        text = PIPE
        for old, new in changes:
            assert text.count(old) >= 1, f"{old!r} is not in the kernel"
            text = text.replace(old, new, 1)
        g = torch.Generator().manual_seed(1)
        x = torch.randn(N, 64, 64, generator=g).to(torch.float16)
        w = (torch.randn(64, 64, generator=g) / 8).to(torch.float16)
        y = torch.full((U, 128, 64), float("nan"), dtype=torch.float16)
        return execute(text, {"X": x, "W": w, "Y": y} | options.pop("more", {}), {"R": 64} | options.pop("consts", {}), **options)

    return run


def pipe_reference(ran: Ran) -> torch.Tensor:
    """Return the expected Y, in float64."""
    x, w, y = (ran.arguments[n].double() for n in "XWY")
    return (x.sum(0) @ w).repeat(2, 1).expand(y.shape) + torch.arange(len(y)).reshape(-1, 1, 1)


@pytest.fixture(scope="session")
def pipe_error() -> Callable[[Ran], float]:
    return lambda ran: float((ran.arguments["Y"].double() - pipe_reference(ran)).abs().max())


SCHEDULES = [
    Schedule.in_order(),
    *(Schedule.random(seed) for seed in range(4)),
    *(Schedule.adversarial(seed) for seed in range(4)),
    *(Schedule.adversarial(policy) for policy in ("engines_first", "workers_first", "reverse")),
    *(Schedule.adversarial("starve", worker) for worker in range(3)),
]


@pytest.fixture(params=SCHEDULES, ids=str)
def any_schedule(request: pytest.FixtureRequest) -> Schedule:
    return request.param


Attention = Callable[..., tuple[Ran, torch.Tensor, torch.Tensor]]


def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, keep: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention and LSE in float64; rows without a key give 0 and -inf. `keep` [M, N]."""
    q, k, v = q.double(), k.double(), v.double()
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    s = q @ k.mT * q.shape[-1] ** -0.5
    if keep is not None:
        s = s.masked_fill(~keep, -torch.inf)
    return torch.softmax(s, -1).nan_to_num(0.0) @ v, torch.logsumexp(s, -1) if s.shape[-1] else torch.full(s.shape[:-1], -torch.inf)


def causal(m: int, n: int) -> torch.Tensor:
    return torch.arange(n)[None] <= torch.arange(m)[:, None] + (n - m)


@pytest.fixture(scope="session")
def attention(execute: Runner) -> Attention:
    """Runs an attention program, with some of its text replaced, on random inputs; gives (run, errors of O and LSE in float64)."""

    def run(
        path: str,
        B: int,
        H: int,
        HK: int,
        M: int,
        N: int,
        D: int = 64,
        dtype: torch.dtype = torch.float16,
        keep: Any = causal,
        consts: Mapping[str, Any] | None = None,
        changes: Iterable[tuple[str, str]] = (),
        **options: Any,
    ) -> tuple[Ran, torch.Tensor, torch.Tensor]:
        g = torch.Generator().manual_seed(0)
        q, k, v = (torch.randn(B, h, n, D, generator=g).to(dtype) for h, n in ((H, M), (HK, N), (HK, N)))
        out = torch.full_like(q, float("nan"))
        lse = torch.full((B, H, M), float("nan"))
        kind = {torch.float16: F16}.get(dtype, cuir.bf16)
        text = (ROOT / path).read_text(encoding="utf-8")
        for old, new in changes:
            assert old in text, f"{old!r} is not in the kernel"
            text = text.replace(old, new)
        arguments = {"Q": q, "K": k, "V": v, "O": out, "LSE": lse, "scale": D**-0.5}
        ran = execute(text, arguments, {"T": kind, "D": D, **(consts or {})}, **options)
        want, want_lse = reference(q, k, v, keep(M, N) if keep else None)
        same = torch.where(lse.double() == want_lse, 0.0, lse.double() - want_lse)
        return ran, (out.double() - want).abs(), same.abs()

    return run
