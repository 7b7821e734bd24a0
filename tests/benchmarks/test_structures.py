"""Structures that no mask says: the reference of each specification gives what its text says, also for queries without keys."""

from __future__ import annotations

import inspect
import re

import pytest
import torch

from benchmarks import structures
from cuir.cli.command_inputs import read_specification
from cuir.spec import FunctionSpecification

NAMES = [name for name, value in vars(structures).items() if inspect.isfunction(value)]
LENGTHS = {"B": 2, "H": 4, "HK": 2, "M": 5, "N": 7, "D": 8, "L": 3}


def call(name: str, **lengths: int) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Return the results of the reference for random inputs, and these."""
    spec = read_specification(f"{structures.__file__}:{name}", ())
    assert isinstance(spec, FunctionSpecification) and spec.doc.strip()
    dims, g = {**LENGTHS, **lengths}, torch.Generator().manual_seed(1)
    shapes = {"q": "B H M D", "k": "B HK N D", "v": "B HK N D"}
    shapes |= {
        name.lower(): dims_of.replace(",", "")
        for name, dims_of in re.findall(r"(\w+): Global\[\w+, ([^\]]+)\]", str(spec.parameters or ""))
    }
    requests = spec.reference.__code__.co_varnames[: spec.reference.__code__.co_argcount]
    inputs = {
        name: torch.randn([dims[d] for d in shape.split()], generator=g, dtype=torch.float64)
        for name, shape in shapes.items()
        if name in requests
    }
    numbers = {name: 0.4 for name in requests if name not in inputs}
    return spec.reference(**inputs, **numbers), inputs


@pytest.mark.parametrize("structure", NAMES)
def test_outputs_have_the_shapes_of_queries(structure: str) -> None:
    for n in (7, 0):
        result, _ = call(structure, N=n)
        for name, x in result.items():
            assert x.shape == ((2, 4, 5, 8) if name.startswith("O") else (2, 4, 5)), name
            assert not x.isnan().any() or (name == "ENT" and n == 0), name


def plain(inputs: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Scores, weights and values of plain attention."""
    k, v = (inputs[n].repeat_interleave(2, 1) for n in "kv")
    s = inputs["q"] @ k.mT * 0.4
    return s, s.softmax(-1), v


def test_they_are_what_their_names_say() -> None:
    """Against plain attention by other means."""
    result, inputs = call("two_values")
    _, p, v = plain(inputs)
    assert torch.allclose(result["O"], p @ v) and torch.allclose(result["O2"], p @ inputs["v2"].repeat_interleave(2, 1))
    result, inputs = call("row_entropy")
    _, p, _ = plain(inputs)
    assert torch.allclose(result["ENT"], torch.distributions.Categorical(p).entropy())
    result, inputs = call("largest_weight")
    _, p, _ = plain(inputs)
    assert torch.equal(result["TOP"], p.max(-1).values)
    result, inputs = call("joint_attention", L=0)
    _, p, v = plain(inputs)
    assert torch.allclose(result["O"], p @ v)
    result, inputs = call("retention", N=5)
    s, _, v = plain(inputs)
    assert torch.allclose(result["O"][:, :, 0], s[:, :, 0, :1] * v[:, :, 0]), (
        "the first query sees the first key alone, which has not faded"
    )
    result, inputs = call("normed_output")
    assert torch.allclose((result["O"] / inputs["w"][:, None]).square().mean(-1), torch.ones(()).double(), atol=1e-2)
