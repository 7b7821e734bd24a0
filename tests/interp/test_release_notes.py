"""A stage that is written to too early: the report names the arrival that released it."""

from __future__ import annotations

import pytest
import torch

import corpus
from cuir import CuirError, check, parse, run


@pytest.mark.parametrize(
    ("name", "line", "says"),
    [
        ("R401_released_too_early", 28, "compute[0] arrives on `empty[0]` here"),
        ("R401_released_under_a_product", 30, "compute[0] arrives on `empty[0]` here"),
        ("R401_missing_wait", None, ""),
        ("R401_swapped_parity_of_reader", None, ""),
    ],
)
def test_the_arrival_that_released_is_named(name: str, line: int | None, says: str) -> None:
    checked = check(parse(corpus.faulty()[name], f"{name}.cuir"))
    shapes = {t.name: [320 if isinstance(d, str) else d for d in t.dims] for t in checked.tensors}
    dtypes = {t.name: torch.float32 if str(t.dtype) == "f32" else torch.float16 for t in checked.tensors}
    with pytest.raises(CuirError) as caught:
        run(checked, {n: torch.zeros(shape, dtype=dtypes[n]) for n, shape in shapes.items()}, grid=1)
    result = caught.value.diagnostics[0]
    notes = [(n.span.line, n.message) for n in result.notes if n.span is not None and "arrives on" in n.message]
    assert result.code == "R401" and [at for at, _ in notes] == ([line] if line else [])
    assert all(says in message for _, message in notes)
