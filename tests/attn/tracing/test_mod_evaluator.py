"""Values of traced expressions for many pairs at once: what is read at whole spans of indices is what is gathered."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from cuir.attn.tracing.mod_evaluator import evaluate
from cuir.syntax.nodes import Expr, Return
from cuir.syntax.parser import parse

NAMES = "bhqk"


def expression(text: str) -> Expr:
    (statement,) = parse(f"@func\ndef f(X, b, h, q, k):\n    return {text}\n").funcs()["f"].body
    assert isinstance(statement, Return)
    return statement.value  # type: ignore[return-value]


@st.composite
def reads(draw: st.DrawFn) -> tuple[str, dict[str, torch.Tensor], dict[str, tuple[int, int]]]:
    """An expression that reads a table at some of the indices, in any order, the table, and the spans of all indices, which may end behind it."""
    named = draw(st.permutations(NAMES))[: draw(st.integers(1, 4))]
    shape = [draw(st.integers(1, 5)) for _ in named]
    spans = {n: (first := draw(st.integers(0, 3)), first + draw(st.integers(1, 3))) for n in NAMES}
    table = torch.randint(-9, 9, shape, dtype=torch.int32, generator=torch.Generator().manual_seed(draw(st.integers(0, 99))))
    index = ", ".join(draw(st.sampled_from([n, n, n, f"{n} + 1"])) for n in named)
    return draw(st.sampled_from([f"X[{index}]", f"X[{index}] * 2 + q", f"X[{index}] == k"])), {"X": table}, spans


@given(case=reads())
def test_reads_at_spans(case: tuple[str, dict[str, torch.Tensor], dict[str, tuple[int, int]]]) -> None:
    text, tables, spans = case
    expected_values = {
        n: torch.arange(*span, dtype=torch.int32).view([-1 if d == e else 1 for e in range(4)]) for d, (n, span) in enumerate(spans.items())
    }
    expected = evaluate(expression(text), {**tables, **expected_values})
    actual = evaluate(expression(text), {**tables, **expected_values}, spans)
    shape = [last - first for first, last in spans.values()]
    assert actual.dtype == expected.dtype and torch.equal(actual.expand(shape), expected.expand(shape))


def test_a_view_is_no_copy() -> None:
    table = torch.arange(12, dtype=torch.int32).view(3, 4)
    result = evaluate(expression("X[b, k]"), {"X": table}, {"b": (1, 3), "q": (0, 7), "k": (0, 4)})
    assert result.shape == (2, 1, 4) and result.untyped_storage().data_ptr() == table.untyped_storage().data_ptr()
