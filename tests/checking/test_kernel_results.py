"""Results that are kept with a checked kernel: computed once for each of their arguments, and dropped with the kernel."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

import corpus
from cuir import Checked, check, parse
from cuir.checking.kernel_results import KernelResults, ResultKey, SameObject, keep_with_kernel
from cuir.syntax.types import F16

COUNT = ResultKey[int]("count of a test")


@pytest.fixture(scope="module")
def checked() -> Checked:
    return check(parse(corpus.programs()["gemm"].read_text(encoding="utf-8")), consts={"T": F16})


def test_a_function_is_called_once_for_each_argument(checked: Checked) -> None:
    calls: list[object] = []

    @keep_with_kernel
    def measure(kernel: Checked, factor: int = 1, *, plus: int = 0) -> int | None:
        calls.append((factor, plus))
        return factor + plus if factor else None

    second = replace(checked)
    assert measure(checked) == measure(checked) == 1 and measure(checked, 2) == 2
    assert measure(checked, 2, plus=3) == measure(checked, 2, plus=3) == 5
    assert measure(checked, 0) is measure(checked, 0) is None, "None is a result, too"
    assert calls == [(1, 0), (2, 0), (2, 3), (0, 0)] and measure(second) == 1 and len(calls) == 5, "each kernel has its own"
    assert measure.__name__ == "measure"


def test_a_function_that_fails_keeps_nothing(checked: Checked) -> None:
    calls: list[int] = []

    @keep_with_kernel
    def fail_once(kernel: Checked) -> int:
        calls.append(1)
        if len(calls) == 1:
            raise ValueError
        return 7

    with pytest.raises(ValueError):
        fail_once(checked)
    assert fail_once(checked) == fail_once(checked) == 7 and len(calls) == 2


def test_keys_and_their_parts_are_told_apart() -> None:
    results, second_key = KernelResults(), ResultKey[int]("another of a test")
    first, second = [1], [1]
    assert results.find(COUNT) is None and results.store(COUNT, 5) == 5 == results.find(COUNT)
    results.store(COUNT, 6, SameObject(first))
    assert results.find(COUNT, SameObject(first)) == 6 and results.find(COUNT, SameObject(second)) is None
    assert results.values(COUNT) == [5, 6] and results.find(second_key) is None and not results.values(second_key)


def test_results_are_not_stored() -> None:
    results = KernelResults()
    results.store(COUNT, 5)
    assert pickle.loads(pickle.dumps(results)).find(COUNT) is None
