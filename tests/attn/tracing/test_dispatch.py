"""Operations are applied by the trace that runs: to numbers, and to rows of captured tensors."""

import pytest
import torch

from cuir.attn.tracing.dispatch import tracing
from cuir.attn.tracing.proxy import Proxy
from cuir.attn.tracing.trace import trace
from cuir.spec.specification import Specification
from cuir.syntax.nodes import Name
from cuir.syntax.printer import show
from cuir.syntax.types import F32
from cuir.text.diagnostics import CuirError

TABLE = torch.arange(8.0).reshape(2, 4)


@pytest.mark.parametrize(
    "use", [lambda x: x + 1, lambda x: torch.exp(x), lambda x: x[None], lambda x: torch.stack([x, x]), lambda x: x > 2]
)
def test_a_value_takes_no_operation_when_its_trace_has_ended(use) -> None:
    with tracing():
        x = Proxy(Name("x"), F32, True)
        use(x)
    with pytest.raises(CuirError, match="in an earlier call") as caught:
        use(x)
    assert caught.value.diagnostics[0].code == "X122"


def test_a_captured_number_beside_a_row() -> None:
    factor = 0.5
    traced = trace(
        Specification("scaled", score_mod=lambda s, b, h, q, k: s + (factor * (TABLE[h] + 1.0)).sum() + (TABLE[h] * 2 - factor)[1])
    )
    assert {p.name for p in traced.parameters} == {"TABLE", "factor"}
    assert show(traced.score).count("factor") == 5


def test_a_list_of_rows_is_named_as_such() -> None:
    with pytest.raises(CuirError, match="`column_stack` of a row or a view"):
        trace(Specification("blocks", score_mod=lambda s, b, h, q, k: s + torch.column_stack([TABLE[h], TABLE[h]])[0, 0]))
