"""Promises of calls of a compiled kernel, one function each; `test_calls.py` runs each in a process."""

from __future__ import annotations

import statistics
import threading
import time
from typing import Any

import pytest
import torch

import corpus
from cuir.runtime.compiled import CompiledKernel, compile
from cuir.syntax.parser import parse
from cuir.syntax.types import F16
from cuir.text.diagnostics import CuirError

DIM = 64
SCALE = DIM**-0.5


def kernel() -> CompiledKernel:
    """The expert kernel: causal, tiles handed out dynamically."""
    text = corpus.kernels()["flash_fwd_sm90"].read_text(encoding="utf-8")
    return compile(parse(text, "flash_fwd_sm90.cuir"), consts={"T": F16, "D": DIM})


def problem(m: int = 300, n: int = 300, heads: int = 4, seed: int = 0) -> dict[str, Any]:
    g = torch.Generator("cuda").manual_seed(seed)
    q, k, v = (torch.randn(2, heads, s, DIM, device="cuda", generator=g).half() for s in (m, n, n))
    return {"Q": q, "K": k, "V": v, "scale": SCALE}


def compute_expected(p: dict[str, Any]) -> torch.Tensor:
    q, k, v = (p[x].double() for x in "QKV")
    m, n = q.shape[2], k.shape[2]
    keep = torch.arange(n, device="cuda")[None] <= torch.arange(m, device="cuda")[:, None] + n - m
    return (q @ k.mT * p["scale"]).masked_fill(~keep, -torch.inf).softmax(-1).nan_to_num() @ v


def right(o: torch.Tensor, p: dict[str, Any]) -> bool:
    w = compute_expected(p)
    return bool((o.double() - w).norm() <= 1e-3 * w.norm())


def ways_of_calling() -> None:
    f, p = kernel(), problem()
    o, lse = f(**p)
    assert right(o, p)
    assert o.shape == p["Q"].shape and o.dtype == torch.float16 and lse.shape == p["Q"].shape[:-1] and lse.dtype == torch.float32
    q, k, v, scale = p.values()
    mine, mine_lse = torch.full_like(q, torch.nan), torch.full_like(lse, torch.nan)
    for call in (
        lambda: f(q, k, v, mine, mine_lse, scale),
        lambda: f(q, k, v, scale=scale, out=(mine, mine_lse)),
        lambda: f(q, k, v, scale=scale, out=[mine, mine_lse]),
        lambda: f(q, k, v, O=mine, LSE=mine_lse, scale=scale),
        lambda: f(scale=scale, LSE=mine_lse, V=v, K=k, Q=q, O=mine),
    ):
        for _ in range(2):  # the second call finds its signature known
            mine.fill_(torch.nan)
            mine_lse.fill_(torch.nan)
            a, b = call()
            assert a is mine and b is mine_lse and torch.equal(a, o) and torch.equal(b, lse)
    a, b = f(q, k, v, scale=scale, out=mine)  # the other result is allocated
    assert a is mine and torch.equal(b, lse)


def known_signatures_with_other_tensors() -> None:
    f = kernel()
    for seed in range(5):
        p = problem(seed=seed)
        assert right(f(**p)[0], p)
    p = problem()
    assert right(f(**{**p, "V": p["K"]})[0], {**p, "V": p["K"]})  # one tensor twice; the next call has two
    assert right(f(**p)[0], p)
    for scale in (0.5, 0.125, 1):
        assert right(f(**{**p, "scale": scale})[0], {**p, "scale": scale})
    for m, n in ((300, 200), (200, 300), (1, 300), (300, 300)):
        p = problem(m, n)
        assert right(f(**p)[0], p)
    strided = {**problem(), **{x: problem()[x].transpose(1, 2).contiguous().transpose(1, 2) for x in "QKV"}}
    assert right(f(**strided)[0], strided)


def errors_of_a_call() -> None:
    f, p = kernel(), problem()
    f(**p)
    q = p["Q"]
    odd = torch.empty(q.numel() + 8, device="cuda", dtype=torch.float16)[1 : q.numel() + 1].view(q.shape)
    uneven = torch.empty(*q.shape[:-1], DIM + 4, device="cuda", dtype=torch.float16)[..., :DIM]
    for code, wrong in (
        ("U502", {x: p[x].cpu() for x in "QKV"}),
        ("U404", {"Q": q.bfloat16()}),
        ("U405", {"Q": q[0]}),
        ("U406", {"Q": q.mT.contiguous().mT}),
        ("U407", {"K": p["K"].cpu()}),
        ("U408", {"V": p["V"][:, :, 1:]}),
        ("U409", {"scale": float("nan")}),
        ("U409", {"scale": float("inf")}),
        ("U409", {"scale": "1"}),
        ("U410", {"Q": q.float().half().requires_grad_()}),
        ("U403", {"Q": q.to_sparse()}),
        ("U403", {"Q": [1, 2]}),
        ("U401", {"W": q}),
        ("U506", {"Q": odd}),
        ("U506", {"Q": uneven}),
        ("U506", {"O": torch.empty_like(q)[:, :1].expand(q.shape)}),  # one place for the results of all heads
    ):
        for _ in range(2):
            with pytest.raises(CuirError) as caught:
                f(**{**p, **wrong})
            assert code in [d.code for d in caught.value.diagnostics], (code, str(caught.value))
    with pytest.raises(CuirError, match="U402"):
        f(Q=q, scale=1.0)
    with pytest.raises(CuirError, match="U403"):
        f(**p, out=5)
    with pytest.raises(CuirError, match="U401"):
        f(**p, out=(q, q, q))
    with torch.no_grad():
        f(**{**p, "Q": q.clone().requires_grad_()})
    o, _ = f(**p)
    torch.cuda.synchronize()
    assert right(o, p)


def side_streams() -> None:
    """Launches on streams that overlap, each with tiles handed out dynamically."""
    f = kernel()
    problems = [problem(1000, 1000, 8, seed) for seed in range(4)]
    expected = [f(**p)[0] for p in problems]
    streams = [torch.cuda.Stream() for _ in problems]
    torch.cuda.synchronize()
    for _ in range(20):
        outs = []
        for p, s in zip(problems, streams, strict=True):
            with torch.cuda.stream(s):
                outs.append([f(**p)[0] for _ in range(5)])
        torch.cuda.synchronize()
        assert all(torch.equal(o, e) for group, e in zip(outs, expected, strict=True) for o in group)
    p = problems[0]
    q = torch.zeros_like(p["Q"])
    s = streams[0]
    with torch.cuda.stream(s):
        torch.cuda._sleep(20_000_000)
        q.copy_(p["Q"])
        o, _ = f(**{**p, "Q": q})  # in order of its stream: after the copy
    s.synchronize()
    assert torch.equal(o, expected[0])


def graphs() -> None:
    """Capture, also of the very first call; graphs that share a stream at capture and overlap at replay."""
    f, p = kernel(), problem(1000, 1000, 8)
    o, lse = torch.empty_like(p["Q"]), torch.empty(p["Q"].shape[:-1], device="cuda")
    first = torch.cuda.CUDAGraph()
    with torch.cuda.graph(first):
        f(**p, O=o, LSE=lse)
    o.fill_(torch.nan)
    first.replay()
    torch.cuda.synchronize()
    assert right(o, p)
    expected = o.clone()
    result = []
    capture = torch.cuda.Stream()
    for _ in range(3):
        mine = torch.full_like(o, torch.nan)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=capture):
            for _ in range(3):
                f(**p, O=mine, LSE=torch.empty_like(lse))
        result.append((graph, mine, torch.cuda.Stream()))
    for _ in range(20):
        for _, mine, _ in result:
            mine.fill_(torch.nan)
        torch.cuda.synchronize()
        for graph, _, stream in result:
            with torch.cuda.stream(stream):
                graph.replay()
        eager, _ = f(**p)
        torch.cuda.synchronize()
        assert all(torch.equal(mine, expected) for _, mine, _ in result) and torch.equal(eager, expected)
    new = problem(1000, 1000, 8, seed=7)
    for x in "QKV":
        p[x].copy_(new[x])  # a graph reads what lies at its addresses when it is replayed
    first.replay()
    torch.cuda.synchronize()
    assert right(o, new)


def threads() -> None:
    """Calls from threads, one of which has not used the device before."""
    f, p = kernel(), problem()
    expected, _ = f(**p)
    torch.cuda.synchronize()
    results: list[bool] = []

    def work() -> None:
        o, lse = torch.empty_like(expected), torch.empty(expected.shape[:-1], device="cuda")
        for _ in range(50):
            f(**p, O=o, LSE=lse)
        torch.cuda.synchronize()
        results.append(torch.equal(o, expected))

    fresh_o, fresh_lse = torch.empty_like(expected), torch.empty(expected.shape[:-1], device="cuda")
    starters = [
        threading.Thread(target=f, kwargs={**p, "O": fresh_o, "LSE": fresh_lse}),
        *[threading.Thread(target=work) for _ in range(4)],
    ]
    for t in starters:
        t.start()
    for t in starters:
        t.join()
    torch.cuda.synchronize()
    assert results == [True] * 4 and torch.equal(fresh_o, expected)


def nothing_to_do() -> None:
    f = kernel()
    for m, n in ((0, 300), (0, 0), (300, 0)):
        p = problem(m, n)
        o, lse = torch.full((2, 4, m, DIM), torch.nan, device="cuda").half(), torch.full((2, 4, m), torch.nan, device="cuda")
        for _ in range(2):
            f(**p, O=o, LSE=lse)
        torch.cuda.synchronize()
        assert (o == 0).all() and (lse == -torch.inf).all()


def small_run() -> None:
    """A little of everything, for compute-sanitizer."""
    f = kernel()
    for m, n in ((130, 200), (64, 64), (1, 1)):
        p = problem(m, n, 2)
        o, _ = f(**p)
        torch.cuda.synchronize()
        assert right(o, p)


def same_bits() -> int:
    """Launches whose tiles fall to the CTAs in another order each time give the same bits."""
    f, p = kernel(), problem(2000, 2000, 16)
    o, lse = f(**p)
    for _ in range(50):
        a, b = torch.full_like(o, torch.nan), torch.full_like(lse, torch.nan)
        f(**p, out=(a, b))
        assert torch.equal(a, o) and torch.equal(b, lse)
    return 50


def host_cost(calls: int = 2000) -> dict[str, float]:
    """Microseconds of host time of a warm call: as a whole, with allocated results, and of the driver's launch alone."""
    f, p = kernel(), problem(64, 64, 1)
    o, lse = f(**p)

    def per_call(call: Any) -> float:
        times = []
        for _ in range(9):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(calls // 9):
                call()
            times.append((time.perf_counter() - start) / (calls // 9) * 1e6)
        return round(statistics.median(times), 2)

    launcher = next(iter(f._launchers.values()))
    packed = list(launcher.packed.values())[-1]
    return {
        "warm call": per_call(lambda: f(**p, O=o, LSE=lse)),
        "warm call, results allocated": per_call(lambda: f(**p)),
        "driver's launch alone": per_call(lambda: launcher._start(packed.launch)),
        "torch.add, for comparison": per_call(lambda: torch.add(lse, lse, out=lse)),
    }
