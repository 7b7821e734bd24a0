"""Calls of a compiled kernel up to the launch: names, what a signature tells apart, errors without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from cuir.checking.checker import check
from cuir.lowering import lower
from cuir.runtime.compiled_kernel import CompiledKernel, _signature
from cuir.runtime.launch import Launcher, Packed, Plan
from cuir.runtime.nvcc import Compiled, Resources
from cuir.syntax.parser import parse
from cuir.text.diagnostics import CuirError

TEXT = """\
@kernel(arch="sm_90a")
def scale(X: Global[f16, M, 64], Y: Global[f16, M, 64], S: Global[f32, M], factor: f32):
    work = tiles(cdiv(M, 64))
    with role("all", warpgroups=1):
        for t in work:
            i = t * 64 + rows(64)
            x = cast(X[i, cols(64)], f32) * factor
            store(Y[i, cols(64)], cast(x, f16))
            store(S[i], row_sum(x))
"""


@pytest.fixture
def kernel() -> CompiledKernel:
    cuda = lower(check(parse(TEXT, "scale.cuir")))
    return CompiledKernel(Compiled(cuda, b"", Resources("scale", 0, 0, 0, 0, 0, 128, 0.0, "none")))


def x(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.zeros(*(shape or (8, 64)), dtype=dtype)


@pytest.mark.parametrize(
    ("code", "call"),
    [
        ("U401", lambda f: f(x(), x(), x(8), 1.0, 2.0)),
        ("U401", lambda f: f(x(), X=x(), factor=1.0)),
        ("U401", lambda f: f(X=x(), factor=1.0, W=x())),
        ("U401", lambda f: f(x(), x(), factor=1.0, out=(x(8), x(8)))),
        ("U402", lambda f: f(X=x())),
        ("U402", lambda f: f(factor=1.0)),
        ("U403", lambda f: f(X=[1.0], factor=1.0)),
        ("U403", lambda f: f(X=x(), factor=1.0, out=5)),
        ("U403", lambda f: f(X=x().to_sparse(), factor=1.0)),
        ("U404", lambda f: f(X=x(dtype=torch.float32), factor=1.0)),
        ("U405", lambda f: f(X=x(8, 8, 64), factor=1.0)),
        ("U406", lambda f: f(X=x(64, 8).T, factor=1.0)),
        ("U408", lambda f: f(X=x(), Y=x(9, 64), factor=1.0)),
        ("U409", lambda f: f(X=x(), factor=float("nan"))),
        ("U410", lambda f: f(X=x().requires_grad_(), factor=1.0)),
    ],
)
def test_bad_calls(kernel: CompiledKernel, code: str, call: Callable[[CompiledKernel], Any]) -> None:
    for _ in range(2):  # nothing bad is remembered as good
        with pytest.raises(CuirError) as caught:
            call(kernel)
        assert code in [d.code for d in caught.value.diagnostics], str(caught.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is there")
def test_a_good_call_without_a_gpu(kernel: CompiledKernel) -> None:
    with pytest.raises(CuirError) as caught:
        kernel(X=x(), factor=1.0)
    (result,) = caught.value.diagnostics
    assert result.code == "U501" and "interpreter" in (result.hint or "")


def test_a_signature_tells_apart_what_the_checks_depend_on() -> None:
    base = x(8, 64)
    wide = x(8, 128)[:, :64]
    odd = torch.zeros(8 * 64 + 8, dtype=torch.float16)[1 : 8 * 64 + 1].view(8, 64)
    arguments: list[tuple[Any, ...]] = [
        (base, 1.0),
        (base, 1),
        (base, True),
        (base, 2.0),
        (base, 0.0),
        (base, -0.0),
        (x(9, 64), 1.0),
        (wide, 1.0),
        (odd, 1.0),
        (base.bfloat16(), 1.0),
        (base.clone().requires_grad_(), 1.0),
        (base,),
        (base[None], 1.0),
        (base.to("meta"), 1.0),
    ]
    results = [_signature(a, ("X", "factor")) for a in arguments]
    assert None not in results and len(set(results)) == len(results)
    assert _signature((base, 1.0), ("X", "factor")) == _signature((base.clone(), 1.0), ("X", "factor"))  # addresses are no part of it
    assert _signature((base, 1.0), ("X", "factor")) != _signature((base, 1.0), ("X", "other"))
    with torch.no_grad():
        assert _signature((base, 1.0), ("X", "factor")) not in results


@pytest.mark.parametrize("value", ["1", None, [1.0], x().to_sparse(), 1j])
def test_what_no_kernel_takes_has_no_signature(value: Any) -> None:
    assert _signature((value,), ("X",)) is None


PLAN = Plan(1, {}, (), (), (), ())


class Launches:
    """A launcher that writes down what it is asked to launch."""

    def __init__(self, *_: Any) -> None:
        self.grids: list[tuple[int, ...]] = []

    def plan(self, *_: Any) -> Plan:
        return PLAN

    def launch(self, plan: Plan, places: tuple[int, ...], captured: bool | None = None) -> bool:
        assert replace(plan, rest=None) == PLAN
        whole = plan.whole(places)
        if whole is not None:
            self.grids.append(whole)
        return whole is not None


def test_a_call_is_made_again_with_other_tensors(kernel: CompiledKernel, monkeypatch: pytest.MonkeyPatch) -> None:
    launches = Launches()
    monkeypatch.setattr("cuir.runtime.launch.Launcher", lambda *_: launches)
    monkeypatch.setattr("cuir.runtime.launch.require_device", lambda checked, device: device)
    first, out = x(), torch.zeros(8, 80, dtype=torch.float16)[:, :64]
    repeated = kernel.make_replay({"X": first}, {"X": first, "Y": out, "factor": 2.0})
    assert repeated is not None
    second = x()
    assert repeated(x(9, 64)) is None and repeated(x(dtype=torch.bfloat16)) is None
    assert repeated(x(9 * 64)[4 : 4 + 8 * 64].view(8, 64)) is None  # another alignment
    assert not launches.grids
    inputs = repeated(second)
    assert inputs is not None
    y, s = inputs
    assert y.shape == (8, 64) and y.stride() == out.stride() and s.shape == (8,) and s.dtype == torch.float32
    assert launches.grids[-1] == (second.data_ptr(), y.data_ptr(), s.data_ptr())
    assert kernel.make_replay({"X": first.requires_grad_()}, {"X": first, "factor": 2.0}) is None


def test_what_is_written_may_come_from_the_caller(kernel: CompiledKernel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums that a kernel before has begun."""
    launches = Launches()
    monkeypatch.setattr("cuir.runtime.launch.Launcher", lambda *_: launches)
    monkeypatch.setattr("cuir.runtime.launch.require_device", lambda checked, device: device)
    first, sums = x(), x()
    repeated = kernel.make_replay({"Y": sums, "X": first}, {"X": first, "Y": sums, "factor": 2.0})
    assert repeated is not None
    second, begun = x(), x()
    inputs = repeated(begun, second)
    assert inputs is not None and len(inputs) == 1
    assert launches.grids[-1] == (second.data_ptr(), begun.data_ptr(), inputs[0].data_ptr())


def test_what_a_call_has_always_is_kept(kernel: CompiledKernel, monkeypatch: pytest.MonkeyPatch) -> None:
    launches = Launches()
    monkeypatch.setattr("cuir.runtime.launch.Launcher", lambda *_: launches)
    monkeypatch.setattr("cuir.runtime.launch.require_device", lambda checked, device: device)
    retained = x()
    repeated = kernel.make_replay({}, {"X": retained, "factor": 2.0})
    assert repeated is not None
    inputs = repeated()
    assert inputs is not None
    y, s = inputs
    assert launches.grids[-1] == (retained.data_ptr(), y.data_ptr(), s.data_ptr())


class Driverless(Launcher):
    """A launcher whose driver only writes down what it packs and starts."""

    def __init__(self) -> None:
        self.device, self.index, self.counts = torch.device("cuda", 0), 0, True
        self.counters, self.packed = {}, {}
        self.calls: list[Any] = []
        self.started: list[Any] = []
        self.handed_out = 0

    def _new_counter(self) -> int:
        self.handed_out += 1
        return self.handed_out

    def _pack(self, *launch: Any) -> Any:
        self.calls.append(launch)
        return Packed(launch, launch[0])

    def _start(self, launch: Any) -> None:
        self.started.append(launch[1:])


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    def set_to(number: int) -> None:
        monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: number, raising=False)

    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 0, raising=False)
    set_to(7)
    return set_to


def test_launches_of_the_same_addresses_are_packed_once(stream: Callable[[int], None]) -> None:
    launcher = Driverless()
    item, second = (PLAN.make_replay((0, 2), always, (2, 0, 1)) for always in ((64,), (80,)))
    for _ in range(2):
        assert launcher.launch(item, (16, 34), captured=False) and launcher.launch(second, (16, 34), captured=False)
        assert launcher.launch(PLAN, (16, 34), captured=False)
    assert launcher.started == 2 * [((64, 16, 34), 7, 1), ((80, 16, 34), 7, 1), ((16, 34), 7, 1)] and len(launcher.calls) == 3
    assert launcher.launch(item, (32, 18), captured=False) and launcher.started[-1] == ((64, 32, 18), 7, 1)
    stream(8)
    assert launcher.launch(item, (16, 34), captured=False) and launcher.started[-1] == ((64, 16, 34), 8, 2)
    for _ in range(2):  # replays may overlap, so each captured launch has a counter
        assert launcher.launch(item, (16, 34), captured=True)
    assert launcher.started[-2:] == [((64, 16, 34), 8, 3), ((64, 16, 34), 8, 4)]


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("grid", [0, 1])
def test_addresses_that_are_not_aligned_as_they_were_are_not_launched(stream: Callable[[int], None], grid: int, captured: bool) -> None:
    launcher, plan = Driverless(), replace(PLAN, grid=grid).make_replay((0, 2), (64,), (0, 1, 2))
    for places in ((16, 32), (18, 34), (24, 34), (16, 36)):
        assert not launcher.launch(plan, places, captured)
    assert not launcher.started and not launcher.handed_out
    assert launcher.launch(plan, (16, 34), captured) and len(launcher.started) == grid
    assert not launcher.launch(plan, (16, 32), captured)
