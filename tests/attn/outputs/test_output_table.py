"""Entries of the table of outputs are complete, and graphs that users saved find their operators and handles."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention.flex_attention import AuxOutput, AuxRequest

from cuir import CuirError, Specification
from cuir.attn.api.operator import OPERATORS, SCHEMA, handle_of
from cuir.attn.outputs.max_scores import MAX_SCORES
from cuir.attn.outputs.output_table import OUTPUT_NAMES, OUTPUT_SETS, OUTPUTS, can_merge, describe_outputs, find_outputs, name_operator


def test_names_are_told_apart() -> None:
    states = [state.name for output in OUTPUTS for state in output.states]
    assert len(set(states)) == len(states) and len(set(OUTPUT_NAMES)) == len(OUTPUTS)
    assert all(output.name.isidentifier() and output.name.isupper() for output in OUTPUTS)


def test_requests_have_fields_of_pytorch_and_options() -> None:
    for output in OUTPUTS:
        if output.request_field is not None:
            assert output.request_field in AuxRequest._fields and output.request_field in AuxOutput._fields
            assert Specification("asked", **{output.request_field: True}).output_names == (output.name,)


def test_a_set_follows_the_order_of_the_table() -> None:
    assert find_outputs(reversed(OUTPUT_NAMES)) == OUTPUTS
    assert OUTPUT_SETS[0] == (MAX_SCORES.name,) and OUTPUT_SETS[-1] == OUTPUT_NAMES
    assert describe_outputs((MAX_SCORES.name,)) == "the largest scores" and describe_outputs(()) == ""
    assert can_merge(()) and can_merge((MAX_SCORES.name,))


def test_an_unknown_output_is_refused() -> None:
    with pytest.raises(CuirError, match=r"X101(.|\n)*MAX_SCORES, found 'max_scores'"):
        Specification("wrong", outputs=("max_scores",))


def test_operators_of_saved_graphs_are_there() -> None:
    assert name_operator(()) == "flex_attention" and name_operator((MAX_SCORES.name,)) == "flex_attention_max_scores"
    for outputs, operator in OPERATORS.items():
        tensors = ", ".join(["Tensor"] * (2 + len(outputs)))
        assert str(operator._schema).removeprefix(f"cuir::{name_operator(outputs)}") == f"{SCHEMA} -> ({tensors})"


def test_handles_of_saved_graphs_stay() -> None:
    assert handle_of(None, None, "softmax", False, ()) == "cuir_8d6295ac2166847e"
    assert handle_of(None, None, "softmax", False, (MAX_SCORES.name,)) == "cuir_e31f3e556f29c4d7"


def test_rows_without_keys_have_the_value_of_the_entry() -> None:
    scores = torch.tensor([[0.5, -torch.inf], [-torch.inf, -torch.inf]], dtype=torch.float64)
    weights = torch.tensor([[1.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    for entry in OUTPUTS:
        computed = entry.compute_expected(scores, weights)
        assert computed.dtype == torch.float64 and computed.shape == (2,) and computed[1] == entry.without_keys
        assert entry.compute_expected(scores[:, :0], weights[:, :0]).tolist() == [entry.without_keys] * 2
        assert entry.allow(computed, 2.0**-19).shape == computed.shape
