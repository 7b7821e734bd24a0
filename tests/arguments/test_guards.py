"""Calls like one before: what the guards let through has the signature of the call before, whatever is changed between the two."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cuir.arguments import guards as repeats
from cuir.arguments.guards import Allocator, CallGuard, make_call_guard
from cuir.runtime.compiled_kernel import CallRecord, CompiledKernel, _signature
from tests.strategies.selection import examples

FORM = (0, "X", "Y", "factor", 0)
CHANGES = {
    "nothing": lambda t: t,
    "other memory": lambda t: t.clone(),
    "length": lambda t: torch.zeros(t.shape[0] + 1, *t.shape[1:], dtype=t.dtype),
    "rank": lambda t: t[None],
    "stride": lambda t: torch.zeros(*t.shape[:-1], 2 * t.shape[-1], dtype=t.dtype)[..., : t.shape[-1]],
    "transposed in place": lambda t: t.clone().t_(),
    "dtype": lambda t: t.bfloat16(),
    "gradient": lambda t: t.clone().requires_grad_(),
    "parameter": lambda t: torch.nn.Parameter(t.clone(), requires_grad=False),
    "alignment": lambda t: torch.zeros(t.numel() + 8, dtype=t.dtype)[1 : t.numel() + 1].view(t.shape),
    "device": lambda t: t.to("meta"),
    "a number": lambda t: 1.0,
    "None": lambda t: None,
    "sparse": lambda t: t.to_sparse(),
}
NUMBERS = [1.0, 1, True, 2.0, 0.0, -0.0, False, 0, float("inf"), None, "1.0"]


def x() -> torch.Tensor:
    return torch.zeros(8, 8, dtype=torch.float16)


@examples(8)
@given(
    a=st.sampled_from(sorted(CHANGES)),
    b=st.sampled_from(sorted(CHANGES)),
    first_value=st.sampled_from(NUMBERS[:8]),
    second_value=st.sampled_from(NUMBERS),
    form=st.sampled_from([FORM, (3, 0), (0, "Y", "X", "factor", 0), (0, "X", "Y", "factor")]),
)
def test_what_is_covered_has_the_same_signature(a: str, b: str, first_value: Any, second_value: Any, form: tuple[Any, ...]) -> None:
    first = (x(), x(), first_value)
    repeat = make_call_guard(FORM, first)
    assert repeat is not None
    later = (CHANGES[a](x()), CHANGES[b](x()), second_value)
    same = _signature(later, form) == _signature(first, FORM)
    covered = repeat.covers(form, later)
    assert same or not covered
    if "parameter" not in (a, b):  # another class of tensor is examined in full
        assert covered == same, (a, b, first_value, second_value, form)


def test_a_tensor_that_is_changed_in_place_is_another() -> None:
    t = torch.zeros(8, 8)
    repeat = make_call_guard((1, 0), (t,))
    assert repeat is not None and repeat.covers((1, 0), (t,))
    t.resize_(4, 8)
    assert not repeat.covers((1, 0), (t,))


def test_gradients_are_left_to_the_signature() -> None:
    assert make_call_guard(FORM, (x().requires_grad_(), x(), 1.0)) is None


def test_without_guards_every_call_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats, "guards", None)
    assert make_call_guard(FORM, (x(), x(), 1.0)) is None
    assert [t.shape for t in Allocator([((2, 3), (3, 1), torch.float32)], torch.device("cpu")).allocate()] == [(2, 3)]


def test_guards_of_another_torch_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    class Odd:
        def TensorGuards(self, *tensors: torch.Tensor) -> None:
            return None

    monkeypatch.setattr(repeats, "guards", Odd())
    assert make_call_guard(FORM, (x(), x(), 1.0)) is None


class Launches:
    """A launcher that writes down what it is asked to launch."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, tuple[int, ...]]] = []

    def launch(self, plan: Any, places: tuple[int, ...]) -> None:
        self.calls.append((plan, places))


def test_calls_are_launched_as_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six signatures, more than are compared first, in turns: each is examined once and launched with its own plan and its own tensors."""
    kernel, launches, examined = CompiledKernel.__new__(CompiledKernel), Launches(), []
    kernel._records, kernel._repeats = {}, ()

    def examine(args: Any, named: Any, outs: Any, inputs: tuple[Any, ...]) -> CallRecord:
        examined.append(inputs[0].shape)
        result = (tuple(inputs[0].shape), inputs[0].stride(), inputs[0].dtype)
        return CallRecord(f"plan of {inputs[0].shape[0]}", launches, (0, result), (1,), torch.device("cpu"))

    monkeypatch.setattr(kernel, "_examine", examine)
    for _ in range(3):
        for n in range(1, 7):
            inputs = torch.zeros(n, 4)
            created = kernel(X=inputs, factor=0.5)
            assert created.shape == (n, 4) and launches.calls[-1] == (f"plan of {n}", (inputs.data_ptr(), created.data_ptr()))
            kernel(X=inputs, factor=0.5)
    assert len(examined) == 6 and all(isinstance(repeat, CallGuard) for repeat, _ in kernel._repeats)


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, lambda: torch.autocast("cpu")])
def test_calls_in_another_mode_are_recognised_too(mode: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, launches = CompiledKernel.__new__(CompiledKernel), Launches()
    kernel._records, kernel._repeats = {}, ()
    monkeypatch.setattr(kernel, "_examine", lambda *call: CallRecord("plan", launches, (0,), (0,), torch.device("cpu")))
    inputs = torch.zeros(3, 4)
    kernel(X=inputs)
    with mode():
        kernel(X=inputs)
        assert kernel._find_repeat((0, "X", 0), (inputs,)) is not None
        result = torch.zeros(3, 4)
        kernel(X=result)
        assert kernel._find_repeat((0, "X", 0), (result,)) is not None
    kernel(X=inputs)
    assert kernel._find_repeat((0, "X", 0), (inputs,)) is not None
