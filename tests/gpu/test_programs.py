"""Every program of the corpus on a GPU against float64 and against the interpreter."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

import corpus
from cuir.arguments.binding import TORCH
from cuir.checking.checked import Checked, Const
from cuir.checking.checker import check
from cuir.interp import run
from cuir.runtime.compiled import compile
from cuir.syntax.parser import parse
from cuir.syntax.types import BF16, DTYPES, F16
from tests.gpu.isolation import run_isolated

Tensors = dict[str, torch.Tensor]


@dataclass
class Problem:
    """Arguments by name, and the wanted values of what the kernel writes. `summed`: written by atomic additions, in any order."""

    arguments: dict[str, Any]
    expected: Tensors
    kernel: str | None = None
    consts: dict[str, Const] = field(default_factory=dict)
    summed: tuple[str, ...] = ()


def generator(seed: int) -> Callable[..., torch.Tensor]:
    g = torch.Generator("cuda").manual_seed(seed)
    return lambda *shape: torch.randn(*shape, device="cuda", generator=g)


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, keep: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """O and LSE in float64; keep: broadcast to [B, H, M, N]."""
    group = q.shape[1] // k.shape[1]
    q, k, v = q.double(), k.double().repeat_interleave(group, 1), v.double().repeat_interleave(group, 1)
    s = (q @ k.mT * scale).masked_fill(~keep, -torch.inf)
    lse = s.logsumexp(-1)
    return torch.exp(s - lse.masked_fill(lse == -torch.inf, 0.0)[..., None]) @ v, lse


def causal(m: int, n: int) -> torch.Tensor:
    return torch.arange(n, device="cuda")[None] <= torch.arange(m, device="cuda")[:, None] + n - m


def forward(seed: int, dtype: torch.dtype, b: int, h: int, hk: int, m: int, n: int, d: int) -> dict[str, Any]:
    random = generator(seed)
    q, k, v = random(b, h, m, d).to(dtype), random(b, hk, n, d).to(dtype), random(b, hk, n, d).to(dtype)
    return {"Q": q, "K": k, "V": v, "O": torch.empty_like(q), "LSE": torch.empty(b, h, m, device="cuda"), "scale": d**-0.5}


SIZES = [
    (1, 2, 1, 70, 130, 64),
    (2, 4, 2, 500, 500, 128),
    (1, 2, 2, 300, 1000, 64),
    (1, 4, 1, 1, 77, 128),
    (1, 2, 2, 600, 200, 64),
    (1, 16, 4, 2048, 2048, 128),
]


def _causal(dtype: torch.dtype) -> Iterator[Problem]:
    for i, size in enumerate(SIZES):
        a = forward(i, dtype, *size)
        o, lse = attention(a["Q"], a["K"], a["V"], a["scale"], causal(*size[3:5]))
        yield Problem(a, {"O": o, "LSE": lse})


# B, H, HK, M, N; head dims of keys and values; settings
AMPERE: list[tuple[tuple[int, int, int, int, int], int, int, dict[str, Const]]] = [
    ((1, 2, 1, 70, 130), 16, 16, {}),
    ((2, 4, 2, 500, 500), 64, 64, {"BN": 128}),
    ((1, 2, 2, 300, 1000), 96, 96, {"STAGES": 1}),
    ((1, 4, 1, 1, 77), 48, 80, {"STAGES": 3, "BN": 32}),
    ((1, 2, 2, 600, 200), 192, 128, {"STAGES": 1, "BM": 64}),
    ((1, 2, 2, 130, 0), 128, 128, {}),
    ((1, 4, 2, 333, 777), 256, 256, {"BM": 64, "STAGES": 1}),
    ((1, 4, 2, 333, 777), 128, 128, {"BM": 64, "QREGS": True, "DYNAMIC": False}),
    ((1, 4, 4, 1000, 1000), 128, 128, {"BM": 256, "WARPS": 8}),
    ((2, 16, 4, 2048, 2048), 128, 128, {}),
]


def _ampere(dtype: torch.dtype) -> Iterator[Problem]:
    for i, ((b, h, hk, m, n), d, dv, setting) in enumerate(AMPERE):
        a, random = forward(i, dtype, b, h, hk, m, n, d), generator(i + 100)
        a |= {"V": random(b, hk, n, dv).to(dtype), "O": torch.empty(b, h, m, dv, device="cuda", dtype=dtype)}
        o, lse = attention(a["Q"], a["K"], a["V"], a["scale"], causal(m, n))
        yield Problem(a, {"O": o, "LSE": lse}, consts=setting)


def _sigmoid(dtype: torch.dtype) -> Iterator[Problem]:
    for i, (b, h, hk, m, n, d) in enumerate(SIZES):
        a = {**forward(i, dtype, b, h, hk, m, n, d), "bias": -1.5}
        k, v = (a[x].double().repeat_interleave(h // hk, 1) for x in "KV")
        weights = torch.sigmoid(a["Q"].double() @ k.mT * a["scale"] + a["bias"]) * causal(m, n)
        yield Problem(a, {"O": weights @ v, "LSE": torch.zeros(b, h, m, device="cuda")})


def _documents(dtype: torch.dtype) -> Iterator[Problem]:
    BM = BN = 128
    for i, (b, h, hk, m, _, d) in enumerate(SIZES):
        a = forward(i, dtype, b, h, hk, m, m, d)
        doc = (torch.rand(b, m, device="cuda", generator=torch.Generator("cuda").manual_seed(i)) < 3.5 / m).cumsum(1).int()
        keep = (doc[:, :, None] == doc[:, None]) & causal(m, m)
        tiles = -(-m // BM)
        span = torch.zeros(b, tiles, 3, dtype=torch.int32)
        for x in range(b):
            for t in range(tiles):
                rows = keep[x, t * BM : t * BM + BM].cpu()
                blocks = [rows[:, j * BN : j * BN + BN] for j in range(-(-min(m, (t + 1) * BM) // BN))]
                first = next(j for j, block in enumerate(blocks) if block.any())
                full = [j for j, block in enumerate(blocks) if block.all() and block.shape[1] == BN]
                span[x, t] = torch.tensor([first, *((full[0], full[-1] + 1) if full else (first, first))])
        a |= {"doc": doc, "span": span.cuda()}
        o, lse = attention(a["Q"], a["K"], a["V"], a["scale"], keep[:, None])
        yield Problem(a, {"O": o, "LSE": lse})


def _windows(dtype: torch.dtype) -> Iterator[Problem]:
    for i, size in enumerate(SIZES):
        a, left, right, g = forward(i, dtype, *size), (64, 200)[i % 2], (32, 0)[i % 2], (16, 150)[i // 2 % 2]
        q, k = torch.arange(size[3], device="cuda")[:, None], torch.arange(size[4], device="cuda")[None]
        keep = (q >= k) & ((q - k <= left) | (k < g)) | (k >= q) & ((k - q <= right) | (q < g))
        o, lse = attention(a["Q"], a["K"], a["V"], a["scale"], keep)
        yield Problem(a, {"O": o, "LSE": lse}, consts={"L": left, "R": right, "g": g})


def _gemm(dtype: torch.dtype) -> Iterator[Problem]:
    for i, (m, n, k) in enumerate([(70, 136, 96), (128, 256, 64), (1000, 3000, 528), (2048, 2048, 4096), (64, 64, 0)]):
        random = generator(i)
        a, bt, bias = random(m, k).to(dtype), random(n, k).to(dtype), random(n)
        x = a.double() @ bt.double().mT + bias.double()
        yield Problem(
            {"A": a, "Bt": bt, "C": torch.empty(m, n, device="cuda", dtype=torch.float16 if dtype.itemsize == 1 else dtype), "bias": bias},
            {"C": x * torch.sigmoid(1.702 * x)},
        )


def _backward(dtype: torch.dtype) -> Iterator[Problem]:
    for i, (b, h, hk, m, n, d) in enumerate(
        [(1, 2, 1, 70, 130, 64), (2, 4, 2, 500, 500, 64), (1, 2, 2, 300, 1000, 64), (1, 4, 4, 1024, 1024, 64)]
    ):
        a = forward(i, dtype, b, h, hk, m, n, d)
        q, k, v = (x.double().repeat_interleave(h // x.shape[1], 1).requires_grad_() for x in (a["Q"], a["K"], a["V"]))
        o, lse = attention(q, k, v, a["scale"], causal(m, n))
        grad = generator(i + 100)(b, h, m, d).to(dtype)
        expected = torch.autograd.grad(o, (q, k, v), grad.double())
        o16 = o.detach().to(dtype)
        delta = (o16.double() * grad.double()).sum(-1)
        yield Problem({"O": o16, "dO": grad, "DL": torch.empty(b, h, m, device="cuda")}, {"DL": delta}, "delta")
        arguments = {x: a[x] for x in ("Q", "K", "V", "scale")} | {"dO": grad, "LSE": lse.detach().float(), "DL": delta.float()}
        arguments |= {
            "dQ": torch.empty(b, h, m, d, device="cuda"),
            **{x: torch.empty(b, h, n, d, device="cuda", dtype=dtype) for x in ("dK", "dV")},
        }
        yield Problem(arguments, dict(zip(("dQ", "dK", "dV"), expected, strict=True)), "flash_bwd", summed=("dQ",))


def _decode(dtype: torch.dtype) -> Iterator[Problem]:
    page_size = 64
    for i, (b, h, hk, m, splits, d) in enumerate([(2, 4, 2, 3, 2, 64), (3, 8, 1, 1, 4, 128), (1, 4, 4, 16, 1, 64)]):
        random, group = generator(i), h // hk
        cpu = torch.Generator().manual_seed(i)
        lengths = torch.randint(m, 700, (b,), generator=cpu)
        pages = -(-lengths // page_size)
        count = int(pages.sum()) + 3
        order = torch.randperm(count, generator=cpu).int()
        table = torch.full((b, int(pages.max())), -1, dtype=torch.int32)
        for x in range(b):
            table[x, : pages[x]] = order[int(pages[:x].sum()) : int(pages[: x + 1].sum())]
        q = random(b, h, m, d).to(dtype)
        k, v = (random(count, hk, page_size, d).to(dtype) for _ in range(2))
        part, part_lse = torch.empty(splits, b, h, m, d, device="cuda"), torch.empty(splits, b, h, m, device="cuda")
        o, lse = torch.empty(b, h, m, d, device="cuda", dtype=torch.float64), torch.empty(b, h, m, device="cuda", dtype=torch.float64)
        expected, wanted_lse = torch.zeros_like(part, dtype=torch.float64), torch.zeros_like(part_lse, dtype=torch.float64)
        for x in range(b):
            n = int(lengths[x])
            ours = table[x, : pages[x]].cuda().long()
            kx, vx = (y[ours].transpose(0, 1).reshape(1, hk, -1, d)[:, :, :n] for y in (k, v))
            o[x : x + 1], lse[x : x + 1] = attention(q[x : x + 1], kx, vx, d**-0.5, causal(m, n))
            blocks = -(-n // 64)
            for s in range(splits):
                mine = torch.zeros(n, dtype=torch.bool, device="cuda")
                mine[blocks * s // splits * 64 : blocks * (s + 1) // splits * 64] = True
                expected[s, x], wanted_lse[s, x] = (y[0] for y in attention(q[x : x + 1], kx, vx, d**-0.5, causal(m, n) & mine))
        arguments = {
            "Q": q,
            "K": k,
            "V": v,
            "page": table.cuda(),
            "len_k": lengths.int().cuda(),
            "OS": part,
            "LS": part_lse,
            "scale": d**-0.5,
        }
        yield Problem(arguments, {"OS": expected, "LS": wanted_lse}, "decode", {"G": group})
        arguments = {"OS": expected.float(), "LS": wanted_lse.float(), "O": torch.empty_like(q)}
        yield Problem(arguments, {"O": o}, "combine", {"T": F16 if dtype == torch.float16 else BF16})


PROGRAMS: Mapping[str, Callable[[torch.dtype], Iterator[Problem]]] = {
    "flash_fwd": _causal,
    "flash_fwd_over_v": _causal,
    "flash_fwd_sm75": _causal,
    "flash_fwd_warps": _causal,
    "flash_fwd_cluster": _causal,
    "sigmoid": _sigmoid,
    "causal_document": _documents,
    "global_sliding_window": _windows,
    "gemm": _gemm,
    "gemm_clusters": _gemm,
    "gemm_sm75": _gemm,
    "gemm_sm89": _gemm,
    "flash_bwd": _backward,
    "decode_paged": _decode,
}


EXPERTS = {"flash_fwd_sm80": _ampere}  # kernels of GPUs before Hopper; others have tests of their own


def distance(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Relative, in the Euclidean norm; infinite where infinities or NaNs differ."""
    f, w = actual.double(), expected.double()
    finite = torch.isfinite(w)
    if not torch.equal(torch.isfinite(f), finite) or not torch.equal(f[~finite], w[~finite]):
        return float("inf")
    size = w[finite].norm().item()
    return (f[finite] - w[finite]).norm().item() / (size if size > 0 else 1.0)


def consts_of(program: Any, problem: Problem) -> dict[str, Const]:
    """Dtypes and dims that the tensors say, and what the problem says."""
    from cuir.arguments.binding import bind

    kernels = program.kernels()
    kernel = kernels[problem.kernel] if problem.kernel else next(iter(kernels.values()))
    return dict(bind(kernel, problem.arguments, problem.consts).consts)


def _interpret(checked: Checked, problem: Problem) -> Tensors:
    arguments = {n: v.cpu() if isinstance(v, torch.Tensor) else v for n, v in problem.arguments.items()}
    for x in problem.expected:
        arguments[x] = torch.full_like(arguments[x], 0.0 if x in problem.summed else torch.nan)
    run(checked, arguments)
    return {x: arguments[x] for x in problem.expected}


def right(name: str, dtype_name: str) -> int:
    """Runs a program on all its problems; how many there are."""
    dtype = DTYPES[dtype_name]
    limit = 1.5e-3 if dtype == F16 else 1e-2
    program = parse({**corpus.programs(), **corpus.kernels()}[name].read_text(encoding="utf-8"), f"{name}.cuir")
    wrong, count = [], 0
    for problem in {**PROGRAMS, **EXPERTS}[name](TORCH[dtype]):
        count += 1
        checked = check(program, problem.kernel, consts_of(program, problem))
        launch, arguments = compile(checked), dict(problem.arguments)
        results: list[Tensors] = []
        for _ in range(2):
            for x in problem.expected:
                arguments[x].fill_(0.0 if x in problem.summed else torch.nan)
            launch(**arguments)
            torch.cuda.synchronize()
            results.append({x: arguments[x].clone() for x in problem.expected})
        interpreted = _interpret(checked, problem) if all(w.numel() < 100_000 for w in problem.expected.values()) else {}
        for x, w in problem.expected.items():
            far = distance(results[0][x], w)
            same = distance(results[0][x], results[1][x]) <= (1e-5 if x in problem.summed else 0.0)
            difference = distance(results[0][x].cpu(), interpreted[x]) if interpreted else 0.0
            good = far <= limit and same and difference <= limit
            line = f"{checked.name} {x} {list(w.shape)} from float64 {far:.1e} from the interpreter {difference:.1e} repeatable {same}"
            print("ok  " if good else "FAIL", line, flush=True)
            wrong += [] if good else [line]
    assert not wrong, "\n".join(wrong)
    return count


def test_every_program_has_problems() -> None:
    assert set(PROGRAMS) == set(corpus.programs())


DTYPE_NAMES = {"flash_fwd_sm75": ("f16",), "gemm_sm75": ("f16",), "gemm_sm89": ("f8e4m3", "f8e5m2")}
CASES = [(name, dtype) for name in sorted({**PROGRAMS, **EXPERTS}) for dtype in DTYPE_NAMES.get(name, ("f16", "bf16"))]


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_program(name: str, dtype: str) -> None:
    run_isolated(right, name, dtype, seconds=200)
