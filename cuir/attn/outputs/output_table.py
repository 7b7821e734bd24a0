"""The table of further outputs of the attention kernel, and what a set of them has in common.

A set is a tuple of names in the order of the table.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence

from .attention_output import AttentionOutput
from .max_scores import MAX_SCORES

OUTPUTS: tuple[AttentionOutput, ...] = (MAX_SCORES,)

OUTPUT_NAMES = tuple(output.name for output in OUTPUTS)
# pairs (field of PyTorch's AuxRequest, name)
REQUEST_FIELDS = tuple((output.request_field, output.name) for output in OUTPUTS if output.request_field is not None)
OUTPUT_SETS = tuple(names for count in range(1, len(OUTPUTS) + 1) for names in itertools.combinations(OUTPUT_NAMES, count))
_ROOM = 1  # states of a part that kernels which share out the keys have room for, beside those of the softmax


def find_outputs(names: Collection[str]) -> tuple[AttentionOutput, ...]:
    """Return the outputs of these names, in the order of the table."""
    return tuple(output for output in OUTPUTS if output.name in names)


def describe_outputs(names: Collection[str]) -> str:
    """Return the descriptions of outputs, for a message."""
    return " and ".join(output.description for output in find_outputs(names))


def can_merge(names: Collection[str]) -> bool:
    """Return True if split-KV kernels can compute these outputs: their states merge, and fit."""
    states = [state for output in find_outputs(names) for state in output.states]
    return len(states) <= _ROOM and all(state.merge is not None for state in states)


def name_operator(names: Sequence[str]) -> str:
    """Return the name of the operator of torch.library whose kernel has these outputs."""
    return "_".join(("flex_attention", *(name.lower() for name in names)))


__all__ = ["OUTPUTS", "OUTPUT_NAMES", "OUTPUT_SETS", "REQUEST_FIELDS", "can_merge", "describe_outputs", "find_outputs", "name_operator"]
