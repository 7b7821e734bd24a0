"""The request of an attention call: what travels from the public functions to the launch.

All are named tuples, which torch.compile traces, and which cost a call a fraction of a microsecond.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch

from ...spec.dropout_hash import Dropout
from ...spec.specification import Normalize, Specification
from .call_inputs import Seeded
from .capture_keys import CaptureKey, make_capture_key

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

Level = Literal["quick", "full", "off"]
Mod = Callable[..., torch.Tensor]


class Options(NamedTuple):
    """Options of a call beside its tensors and mods, in the order of the operators' schemas."""

    scale: float | None
    enable_gqa: bool
    backend: str
    verify: Level
    batch_invariant: bool = False


class Weighting(NamedTuple):
    """The weights of a call: how scores become weights, and what else a kernel computes of them.

    Attributes:
        sink: a logit of each head, [H] or a number.
        outputs: names of further outputs of the kernel, in the order of their table.
        dropout: weights are dropped; probability and seed are arguments of the launch.
    """

    normalize: Normalize = "softmax"
    sink: torch.Tensor | float | None = None
    outputs: tuple[str, ...] = ()
    dropout: bool = False

    @property
    def plain(self) -> bool:
        """True for a softmax and nothing else."""
        return self.normalize == "softmax" and self.sink is None and not self.outputs and not self.dropout

    @property
    def sink_tensor(self) -> torch.Tensor | None:
        return self.sink if isinstance(self.sink, torch.Tensor) else None

    def key(self) -> tuple[object, ...]:
        """Return the weighting's part of a capture key: empty for a plain softmax."""
        if self is SOFTMAX or self.plain:
            return ()
        return (self.normalize, self.sink, *self.outputs, *((True,) if self.dropout else ()))


SOFTMAX = Weighting()


def weighting_of(normalize: Normalize, sink: torch.Tensor | float | None) -> Weighting:
    """Return weights without other outputs and dropout; SOFTMAX itself for a plain softmax."""
    return SOFTMAX if sink is None and normalize == "softmax" else Weighting(normalize, sink)


class Variant(NamedTuple):
    """Variant that a kernel computes: its mods and its weights."""

    mask_mod: Mod | None
    score_mod: Mod | None
    weighting: Weighting = SOFTMAX

    def make_capture_key(self) -> CaptureKey:
        return make_capture_key(self.mask_mod, self.score_mod, *self.weighting.key())

    def specification(self, name: str) -> Specification:
        """Return it as a specification of this name. Raises CuirError X101."""
        normalize, sink, outputs, dropout = self.weighting
        return Specification(
            name,
            self.mask_mod,
            self.score_mod,
            normalize=normalize,
            sink=sink,
            dropout=Dropout() if dropout else None,
            outputs=outputs,
        )


class AttentionRequest(NamedTuple):
    """A call of `flex_attention`; its numbers are Python's, and `scale` is positive or None."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    score_mod: Mod | None
    block_mask: BlockMask | None
    scale: float | None
    enable_gqa: bool
    backend: str
    verify: Level
    weighting: Weighting = SOFTMAX
    dropout: Seeded | None = None
    batch_invariant: bool = False

    @property
    def options(self) -> Options:
        return Options(*self[5:9], self.batch_invariant)

    @property
    def key_of_options(self) -> Hashable:
        """The options as part of a cache key, which tells apart 1, 1.0 and True."""
        return type(self.scale), *self.options


__all__ = ["SOFTMAX", "AttentionRequest", "Level", "Mod", "Options", "Variant", "Weighting", "weighting_of"]
