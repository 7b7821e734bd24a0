"""Requests have the order of the operators' schemas, and plain weights have no key."""

from __future__ import annotations

import pytest
import torch

from cuir.attn.api.operator import BACKWARD, OPERATOR, BackwardCall, GraphMods, OperatorCall
from cuir.attn.capture.attention_request import SOFTMAX, AttentionRequest, Options, Variant, Weighting, weighting_of
from cuir.attn.serving import cached, varlen
from cuir.attn.serving.serving_requests import CacheInputs, CacheOptions, PackedInputs


def names_of(operator: torch._ops.OpOverload) -> tuple[str, ...]:
    return tuple(a.name for a in operator._schema.arguments)


@pytest.mark.parametrize(
    ("operator", "names"),
    [
        (OPERATOR, OperatorCall._fields),
        (BACKWARD, BackwardCall._fields),
        (varlen.OPERATOR, (*PackedInputs._fields, *GraphMods._fields, "causal", *Options._fields)),
        (cached.APPENDING, (*CacheInputs._fields, *GraphMods._fields, *CacheOptions._fields)),
        (cached.OPERATOR, (*(n for n in CacheInputs._fields if n not in ("k", "v")), *GraphMods._fields, *CacheOptions._fields)),
    ],
)
def test_calls_have_the_order_of_their_schemas(operator: torch._ops.OpOverload, names: tuple[str, ...]) -> None:
    assert names_of(operator) == names


def test_parts_of_an_operators_arguments() -> None:
    call = OperatorCall(*(torch.zeros(n) for n in (1, 2, 3)), [], "handle", 0.5, True, "auto", "off")
    assert call.options == Options(0.5, True, "auto", "off") and [len(x) for x in call.tensors] == [1, 2, 3]
    o, lse, do = (torch.zeros(n) for n in (4, 5, 6))
    backward = BackwardCall(*call.tensors, o, lse, do, None, [True] * 3, [], *call[3:])
    assert all(a is b for a, b in zip(backward.forward, call, strict=True))


def test_options_of_a_request() -> None:
    q = torch.zeros(1)
    request = AttentionRequest(q, q, q, None, None, 2.0, False, "interpret", "off")
    assert request.options == Options(2.0, False, "interpret", "off")


def test_plain_weights_have_no_key() -> None:
    assert weighting_of("softmax", None) is SOFTMAX and SOFTMAX.key() == Weighting().key() == ()
    sink = torch.ones(2)
    for weighting in (Weighting("relu"), Weighting(sink=1.0), Weighting(sink=sink), Weighting(outputs=("MAX_SCORES",))):
        assert weighting.key() == (*weighting[:2], *weighting.outputs) and not weighting.plain
    assert Weighting(dropout=True).key() == ("softmax", None, True)
    assert weighting_of("softmax", sink).sink_tensor is sink and weighting_of("softmax", 1.0).sink_tensor is None


def test_a_variant_is_a_specification() -> None:
    def causal(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return q >= k

    spec = Variant(causal, None, Weighting("softmax", 0.5, ("MAX_SCORES",), True)).specification("name")
    assert (spec.name, spec.mask_mod, spec.score_mod) == ("name", causal, None)
    assert (spec.normalize, spec.sink, spec.output_names) == ("softmax", 0.5, ("MAX_SCORES",)) and spec.dropout is not None
    assert Variant(causal, None).specification("plain").dropout is None
    plain, sunk = (Variant(causal, None, w).make_capture_key() for w in (SOFTMAX, Weighting(sink=0.5)))
    assert (plain.structure, plain.values) != (sunk.structure, sunk.values)
