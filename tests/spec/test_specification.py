"""Specifications: reference, yardstick, and what users write wrongly."""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib.resources import files
from typing import Any

import pytest
import torch

from cuir.attn.splicing.splice import transfer
from cuir.spec.function_specification import FunctionSpecification
from cuir.spec.specification import Lengths, Specification
from cuir.syntax.parser import parse
from cuir.text.diagnostics import CuirError

EXPERT = files("corpus").joinpath("kernels/flash_fwd_sm90.cuir").read_text(encoding="utf-8")


def test_reference_agrees_with_scaled_dot_product_attention() -> None:
    q, k, v = torch.randn(2, 4, 9, 16), torch.randn(2, 2, 9, 16), torch.randn(2, 2, 9, 16)
    o, lse = Specification("causal", lambda b, h, q_idx, kv_idx: kv_idx <= q_idx).reference(q, k, v, 0.3)
    expected = torch.nn.functional.scaled_dot_product_attention(
        q.double(), k.double(), v.double(), is_causal=True, scale=0.3, enable_gqa=True
    )
    torch.testing.assert_close(o, expected)
    s = (q.double() @ k.repeat_interleave(2, 1).double().mT * 0.3).masked_fill(torch.ones(9, 9).triu(1).bool(), -torch.inf)
    torch.testing.assert_close(lse, s.logsumexp(-1))


def test_a_query_without_keys_gives_zero_and_minus_infinity() -> None:
    q, k = torch.randn(1, 1, 4, 8).half(), torch.randn(1, 1, 3, 8).half()
    spec = Specification("some", lambda b, h, q_idx, kv_idx: kv_idx < q_idx - 1)
    for o, lse in (spec.reference(q, k, k, 1.0), spec.half(q, k, k, 1.0)):
        assert (o[0, 0, :2] == 0).all() and (lse[0, 0, :2] == -torch.inf).all()
        assert not o.isnan().any() and (o[0, 0, 2:] != 0).any()
    o, lse = spec.reference(q, k[:, :, :0], k[:, :, :0], 1.0)
    assert (o == 0).all() and (lse == -torch.inf).all()


def test_half_precision_differs_by_half_precision() -> None:
    q, k, v = (torch.randn(1, 2, 50, 64).bfloat16() for _ in range(3))
    spec = Specification("full")
    error = (spec.reference(q, k, v, 0.125)[0] - spec.half(q, k, v, 0.125)[0]).norm() / spec.reference(q, k, v, 0.125)[0].norm()
    assert 1e-4 < error < 2e-2


def test_mods_ask_for_lengths_and_captured_values_by_name() -> None:
    def mask_mod(b: Any, h: Any, q: Any, k: Any, *, N: int, doc: Any, shift: int = 1) -> Any:
        return (doc[k] == shift) & (k < N - 1)

    spec = Specification("named", mask_mod, captured={"doc": lambda at: torch.arange(at.N) % 2})
    assert spec.mask(Lengths(1, 1, 1, 2, 5))[0, 0].tolist() == [[False, True, False, True, False]] * 2
    plain, _ = spec.mods(Lengths(1, 1, 1, 2, 5))
    assert plain is not None and bool(plain(0, 0, 0, torch.tensor(3)))


def test_lengths_in_functions_of_tensors_and_numbers_that_follow_them() -> None:
    """A bias of -log N: torch.log of a length by name, or captured as a function of the lengths."""
    at = Lengths(1, 1, 1, 3, 5)
    s = torch.randn(1, 1, 3, 5, dtype=torch.float64)

    def by_name(score: Any, b: Any, h: Any, q: Any, k: Any, *, N: Any) -> Any:
        return score - torch.log(N)

    def captured(score: Any, b: Any, h: Any, q: Any, k: Any, *, bias: Any) -> Any:
        return score + bias

    following = Specification("captured", score_mod=captured, captured={"bias": lambda lengths: -math.log(lengths.N)})
    for spec in (Specification("by name", score_mod=by_name), following):
        torch.testing.assert_close(spec.scores(s, at), s - math.log(5), rtol=0, atol=1e-6)
    result = transfer(parse(EXPERT), following)
    assert result.parameters == {} and result.arguments(at)["bias"].tolist() == pytest.approx([-math.log(5)])


def test_float64_throughout() -> None:
    spec = Specification("bias", score_mod=lambda s, b, h, q, k: s + 0.1 * (k - q))
    s = spec.scores(torch.zeros(1, 1, 2, 2, dtype=torch.float64), Lengths(1, 1, 1, 2, 2))
    assert s[0, 0, 0, 1].item() == 0.1 and torch.get_default_dtype() == torch.float32


def test_weights_without_a_softmax() -> None:
    """Dropped pairs weigh nothing, a query without keys gives 0, and LSE is 0."""
    q, k = torch.randn(1, 2, 4, 8).half(), torch.randn(1, 2, 3, 8).half()
    for normalize in ("sigmoid", "relu"):
        spec = Specification("some", lambda b, h, q_idx, kv_idx: kv_idx < q_idx - 1, normalize=normalize)  # type: ignore[arg-type]
        for o, lse in (spec.reference(q, k, k, 1.0), spec.half(q, k, k, 1.0)):
            assert (o[:, :, :2] == 0).all() and (lse == 0).all() and not o.isnan().any()
        expected = torch.sigmoid((q.double() @ k.double().mT)[0, 0, 2, 0]) * k[0, 0, 0].double()
        if normalize == "sigmoid":
            torch.testing.assert_close(spec.reference(q, k, k, 1.0)[0][0, 0, 2], expected)
        assert (spec.reference(q, k[:, :, :0], k[:, :, :0], 1.0)[0] == 0).all()


def test_a_sink_enters_the_sum() -> None:
    q, k, v = torch.randn(1, 2, 4, 8), torch.randn(1, 2, 3, 8), torch.randn(1, 2, 3, 8)
    sink = torch.tensor([0.5, -torch.inf])
    o, lse = Specification("sink", lambda b, h, q_idx, kv_idx: kv_idx < q_idx, sink=sink).reference(q, k, v, 1.0)
    plain, plain_lse = Specification("plain", lambda b, h, q_idx, kv_idx: kv_idx < q_idx).reference(q, k, v, 1.0)
    torch.testing.assert_close((o[0, 1], lse[0, 1]), (plain[0, 1], plain_lse[0, 1]))  # -inf: no sink
    assert lse[0, 0, 0] == 0.5 and (o[0, 0, 0] == 0).all()
    torch.testing.assert_close(o[0, 0, 1:], plain[0, 0, 1:] * torch.sigmoid(plain_lse[0, 0, 1:] - 0.5)[:, None])
    torch.testing.assert_close(lse[0, 0], torch.logaddexp(plain_lse[0, 0], torch.tensor(0.5, dtype=torch.float64)))
    for second in (0.5, lambda at: torch.full((at.H,), 0.5)):
        assert torch.equal(Specification("s", lambda b, h, q, k: k < q, sink=second).reference(q, k, v, 1.0)[0][0, 0], o[0, 0])
    with pytest.raises(CuirError) as caught:
        Specification("few", sink=torch.zeros(1)).reference(q, k, v, 1.0)
    assert caught.value.diagnostics[0].code == "X104"


@pytest.mark.parametrize("mod", [lambda *args: args[0] * 2, lambda s, *rest: s * 2, lambda s, b, h, q, k, *none: s * 2])
def test_arguments_by_position_may_be_taken_together(mod: Callable[..., Any]) -> None:
    q, k, v = (torch.randn(1, 1, 5, 8, dtype=torch.float64) for _ in range(3))
    for actual, expected in zip(
        Specification("taken", score_mod=mod).reference(q, k, v, 0.5), Specification("plain").reference(q, k, v, 1.0), strict=True
    ):
        torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ({"mask_mod": lambda q, k: q <= k}, "X101", "2 positional"),
        ({"score_mod": lambda s, h, q, k: s}, "X101", "(score, b, h, q_idx, kv_idx)"),
        ({"score_mod": lambda s, b, h, q, k, more, *rest: s}, "X101", "6 positional"),
        ({"mask_mod": 3}, "X101", "must be a function"),
        ({"mask_mod": lambda b, h, q, k, *, doc: k}, "X102", "`doc`"),
        ({"normalize": "softmin"}, "X103", "softmax, sigmoid, relu"),
        ({"normalize": "sigmoid", "sink": 1.0}, "X103", "of a softmax"),
        ({"sink": math.inf}, "X103", "found inf"),
        ({"sink": math.nan}, "X103", "found nan"),
        ({"sink": torch.zeros(2, 2)}, "X103", "[2, 2]"),
        ({"sink": torch.zeros(2, dtype=torch.int32)}, "X103", "int32"),
        ({"sink": "1.0"}, "X103", "found str"),
        ({"sink": 1.0, "captured": {"sink": 2.0}}, "X103", "another value"),
    ],
)
def test_wrong_specifications_are_refused(arguments: dict[str, Any], code: str, says: str) -> None:
    with pytest.raises(CuirError) as caught:
        Specification("wrong", **arguments)
    assert caught.value.diagnostics[0].code == code and says in caught.value.diagnostics[0].message


def test_a_reference_may_view_what_a_call_passes_with_strides() -> None:
    spec = FunctionSpecification("view", lambda x: x.view(-1))
    x = torch.arange(12.0).reshape(3, 4).T
    assert torch.equal(spec.exact({"X": x}, ["Y"])["Y"], x.reshape(-1).double())
