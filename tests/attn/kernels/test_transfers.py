"""Transfers kept on disk: those that `transfer` makes, for each call's own values, and made anew for all that changes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
import torch

import cuir
from cuir import Specification
from cuir.attn.api import prepared_calls
from cuir.attn.kernels import attention_kernel, experts, transfers
from cuir.attn.kernels.transfers import transfer_backward_to_expert, transfer_queries_to_expert, transfer_to_expert
from cuir.attn.splicing.backward import transfer_backward, transfer_query_gradients
from cuir.attn.splicing.splice import TransferResult, transfer
from cuir.attn.tracing.read_ranges import trace_without_clashes
from cuir.spec.dropout_hash import Dropout
from cuir.spec.specification import Lengths
from cuir.syntax import parser
from cuir.syntax.nodes import Literal
from cuir.syntax.printer import show
from tests.attn.launches import Launches

EXPERT = "flash_fwd_sm90"
IDS = torch.tensor([[0, 0, 1, 1, 1, 2, 2, 2]])
SLOPES = torch.tensor([0.5, 0.25])
LEARNED = torch.tensor([0.5, 0.25], requires_grad=True)
BIAS = torch.linspace(-1, 1, 15)
CAP, WINDOW = 20.0, 3


def causal(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q >= k


def near(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (q - k < WINDOW) & (q >= k)


def documents(b: Any, h: Any, q: Any, k: Any) -> Any:
    return IDS[b, q] == IDS[b, k]


def costly(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (torch.sin(q * 0.5 + IDS[b, k]) * torch.cos(k * 0.3) > 0) | (q == k)


def capped(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return CAP * torch.tanh(s / CAP)


def sloped(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return s + SLOPES[h] * (k - q)


def learned(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return s + LEARNED[h] * torch.exp((q - k) * 0.1) * torch.sin((q - k) * 0.2)


def of_distance(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return s + SLOPES[h] * torch.exp((q - k) * 0.1) * torch.sin((q - k) * 0.2)


def biased(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return s + BIAS[q - k + 7]


SPECS = {
    "plain": Specification("plain"),
    "causal": Specification("causal", causal),
    "another name": Specification("other", causal),
    "window": Specification("window", near),
    "documents": Specification("documents", documents),
    "bits": Specification("bits", costly),
    "soft cap": Specification("capped", None, capped),
    "slopes": Specification("sloped", causal, sloped),
    "table": Specification("table", None, of_distance),
    "learned": Specification("table", None, learned),
    "bias": Specification("biased", documents, biased),
    "sigmoid": Specification("causal", causal, normalize="sigmoid"),
    "relu": Specification("causal", causal, normalize="relu"),
    "sink": Specification("causal", causal, sink=SLOPES),
    "largest": Specification("causal", causal, max_scores=True),
    "dropout": Specification("causal", causal, dropout=Dropout(0.3)),
}


def assert_equal(actual: TransferResult, expected: TransferResult) -> None:
    """All fields, and where expressions share their text, the arguments of a launch."""
    for f in fields(TransferResult):
        a, b = getattr(actual, f.name), getattr(expected, f.name)
        if f.name == "captured":
            assert [replace(p, value=None) for p in a] == [replace(p, value=None) for p in b]
            assert all(x.value is y.value or x.value == y.value for x, y in zip(a, b, strict=True))
        elif f.name != "_cache":
            assert a == b, f.name
    assert actual.program.span == expected.program.span and show(actual.program) == expected.text
    at, consts = Lengths(1, 2, 2, 8, 8), {"BM": 64, "BN": 64}
    mine, second = actual.arguments(at, "cpu", consts), expected.arguments(at, "cpu", consts)
    assert mine.keys() == second.keys() and all(torch.equal(torch.as_tensor(mine[n]), torch.as_tensor(second[n])) for n in mine)


@pytest.mark.sweep
@pytest.mark.parametrize("name", SPECS)
def test_what_is_read_is_what_was_made(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = SPECS[name]
    traced = trace_without_clashes(spec)
    expected = transfer(experts.origin_of(EXPERT), spec, traced=traced)
    assert_equal(transfer_to_expert(EXPERT, spec, traced, bits=True, tables=True), expected)
    monkeypatch.setattr(transfers, "transfer", None)
    repeated = transfer_to_expert(EXPERT, spec, trace_without_clashes(spec), bits=True, tables=True)
    assert_equal(repeated, expected)
    assert repeated.spec is spec


GRADIENTS = [n for n in SPECS if n not in ("sigmoid", "relu", "another name", "largest")]


@pytest.mark.sweep
@pytest.mark.parametrize("name", GRADIENTS)
def test_kernels_of_gradients_are_read_as_they_were_made(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = SPECS[name]
    traced = trace_without_clashes(spec)
    learned = [i for i, p in enumerate(traced.parameters) if isinstance(p.value, torch.Tensor) and p.value.requires_grad]
    keys, queries = (experts.origin_of(n) for n in ("flash_bwd_sm90", "flash_bwd_dq_sm90"))
    expected = transfer_backward(keys, spec, traced=traced, learned=learned), transfer_query_gradients(queries, spec, traced=traced)
    for _ in range(2):
        assert_equal(transfer_backward_to_expert("flash_bwd_sm90", spec, traced, learned), expected[0])
        assert_equal(transfer_queries_to_expert("flash_bwd_dq_sm90", spec, traced), expected[1])
        monkeypatch.setattr(transfers, "transfer_backward", None)
        monkeypatch.setattr(transfers, "transfer_query_gradients", None)


def test_errors_are_those_of_the_whole_specification() -> None:
    spec = SPECS["sigmoid"]
    traced = trace_without_clashes(spec)
    with pytest.raises(cuir.CuirError) as expected:
        transfer_backward(experts.origin_of("flash_bwd_sm90"), spec, traced=traced)
    with pytest.raises(cuir.CuirError) as actual:
        transfer_backward_to_expert("flash_bwd_sm90", spec, traced, ())
    assert str(actual.value) == str(expected.value)


def test_every_specification_has_an_entry() -> None:
    """And so have transfers without bits, without tables, of another kernel, of other notes."""
    key_of: list[tuple[str, ...]] = []

    def note(kind: str, key: list[str], cls: type, make: Callable[[], object]) -> Any:
        key_of.append(tuple(key))
        return make()

    with pytest.MonkeyPatch.context() as m:
        m.setattr(transfers, "remember", note)
        for spec in SPECS.values():
            transfer_to_expert(EXPERT, spec, trace_without_clashes(spec), bits=True, tables=True)
        spec = SPECS["causal"]
        traced = trace_without_clashes(spec)
        transfer_to_expert(EXPERT, spec, traced, bits=False, tables=True)
        transfer_to_expert(EXPERT, spec, traced, bits=True, tables=False)
        transfer_to_expert("flash_fwd_f32", spec, traced, bits=True, tables=True)
        transfer_to_expert(EXPERT, spec, replace(traced, decided=("n",)), bits=True, tables=True)
        transfer_to_expert(EXPERT, spec, replace(traced, factor=Literal(2.0)), bits=True, tables=True)
        transfer_backward_to_expert("flash_bwd_sm90", spec, traced, ())
        sloped_trace = trace_without_clashes(SPECS["slopes"])
        transfer_backward_to_expert("flash_bwd_sm90", SPECS["slopes"], sloped_trace, ())
        transfer_backward_to_expert("flash_bwd_sm90", SPECS["slopes"], sloped_trace, (0,))
        transfer_queries_to_expert("flash_bwd_dq_sm90", spec, traced)
        m.setattr(transfers, "origin_text", lambda name: "another text")
        transfer_to_expert(EXPERT, spec, traced, bits=True, tables=True)
    assert len(set(key_of)) == len(key_of) == len(SPECS) + 10


def test_values_are_those_of_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other data of the same kinds share an entry, and no value of one call is in it."""

    def near_of(size: int, ids: torch.Tensor) -> Specification:
        return Specification("near", lambda b, h, q, k: (q - k < size) & (ids[b, q] == ids[b, k]))

    first, second = near_of(3, IDS), near_of(5, IDS + 1)
    result = transfer_to_expert(EXPERT, first, trace_without_clashes(first), bits=True, tables=True)
    monkeypatch.setattr(transfers, "transfer", None)
    read = transfer_to_expert(EXPERT, second, trace_without_clashes(second), bits=True, tables=True)
    assert result.numbers["size"] == 3 and read.numbers["size"] == 5
    assert any(isinstance(p.value, torch.Tensor) and torch.equal(p.value, IDS + 1) for p in read.captured)


def test_a_second_process_neither_parses_nor_checks(launches: Launches, monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = (torch.randn(1, 2, 128, 64).half() for _ in range(3))

    def call() -> Any:
        mask = cuir.create_block_mask(lambda b, h, q, k: q >= k, None, None, 128, 128, device="cpu")
        return cuir.flex_attention(q, k, v, lambda s, b, h, q, k: 20.0 * torch.tanh(s / 20.0), mask, verify="off")

    call()
    for module, name in (
        (prepared_calls, "_ATTENTIONS"),
        (prepared_calls, "_TRACED"),
        (prepared_calls, "_WARM"),
        (attention_kernel, "_SETTINGS"),
    ):
        getattr(module, name).clear()
    experts.origin_of.cache_clear()
    parser._parse_cached.cache_clear()

    def never(*_: object, **__: object) -> Any:
        raise AssertionError("worked out again")

    monkeypatch.setattr("cuir.syntax.parser._try_parse", never)
    monkeypatch.setattr("cuir.checking.checker._check_cached", never)
    monkeypatch.setattr(transfers, "transfer", never)
    call()
