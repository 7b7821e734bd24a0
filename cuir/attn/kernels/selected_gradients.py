"""Gradients of attention over selected blocks: the kernels, their settings and launches.

dQ comes from CTAs that each hold the queries of a list, dK and dV from CTAs that each hold keys of a block; each element is
summed in one order. Captured tensors have no gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch

from ...checking.checked import Const
from ...spec.function_specification import FunctionSpecification
from ...spec.gradients import pad_rows
from ...spec.specification import Specification, lengths_of
from ...syntax.types import DType
from ..capture.call_inputs import need_gpu
from ..capture.first_call_progress import Progress
from ..capture.kernel_operands import output_for, without_room
from ..masks.selected_blocks import SelectedBlocks, Slots, invert_blocks
from ..splicing.splice import TransferResult
from ..verification.selected_specifications import Arguments, make_selected_key_gradients, make_selected_query_gradients
from .autograd import BackwardInputs, join_arguments
from .backward_kernels import BY_QUERIES, KERNEL, Attention, Part, Step
from .card_kernels import find_kernel
from .experts import origin_of
from .selected_settings import LEAST_STEP, NARROW, ROWS, power_of_two, tile_rows
from .serving_settings import make_captured_arguments
from .step_kernels import StepKernels
from .transfers import transfer_queries_to_expert, transfer_selected_keys_to_expert, verify_or_recall

LEAST_ROWS = 8  # of a slot, which a copy brings to shared memory
WIDEST_GRADIENT = NARROW  # head dim up to which registers hold dK and dV of 64 keys


class SelectedSizes(NamedTuple):
    """Sizes of a problem that choose the settings of its gradients' kernels.

    Attributes:
        per: heads that share a list.
        span: queries that share a list.
        block: keys of a block.
    """

    per: int
    span: int
    block: int

    def choose_slots(self) -> Slots:
        """Return how the kernel of dK and dV goes through the queries that select a block."""
        heads = min(ROWS, power_of_two(self.per))
        queries = min(ROWS // heads, self.span & -self.span)
        return Slots(self.block, self.span, queries, max(heads, LEAST_ROWS // queries), min(self.block, LEAST_STEP))


class SelectedPart(Part):
    """A kernel of gradients whose splice points a transfer has replaced, with its own specification."""

    def __init__(
        self,
        attention: Attention,
        transferred: TransferResult,
        setting: Mapping[str, Const],
        specify: Callable[[Specification, Arguments], FunctionSpecification],
    ):
        super().__init__(attention, transferred, setting)
        self.specify = specify

    def prove(self, progress: Progress) -> None:
        attention, step = self.attention, self.step
        if attention.level != "off":
            specification = self.specify(attention.spec, make_captured_arguments(step.program, self.transferred))
            verify_or_recall(step.program, specification, attention.capture_key, step.consts, attention.level, progress, self.kernel)


class SelectedGradients:
    """The backward pass of an attention over selected blocks of some sizes."""

    def __init__(self, attention: Attention, sizes: SelectedSizes):
        """Plan the pass.

        Raises CuirError X109 for a score whose derivative is unknown.
        """
        self.attention, self.sizes, self.slots = attention, sizes, sizes.choose_slots()
        T = attention.fixed["T"]
        assert isinstance(T, DType)
        by_keys, by_queries = (find_kernel(attention.arch, task, T) for task in ("selected keys", "selected queries"))
        queries, heads = tile_rows(sizes.per, sizes.span, 2 * ROWS)
        tile: dict[str, Const] = {"BM": queries, "GROUP": heads, "WG": queries * heads // ROWS, "BN": max(sizes.block, LEAST_STEP)}
        self.by_queries = SelectedPart(
            attention,
            transfer_queries_to_expert(by_queries, attention.spec, attention.traced),
            {**tile, "SPAN": sizes.span, "BLOCK": sizes.block},
            make_selected_query_gradients,
        )
        self.by_keys = SelectedPart(
            attention,
            transfer_selected_keys_to_expert(by_keys, attention.spec, attention.traced),
            {"BM": self.slots.queries, "GROUP": self.slots.heads, "BN": self.slots.keys, "WG": self.slots.warpgroups},
            make_selected_key_gradients,
        )
        fixed, program = attention.fixed, origin_of(by_keys)
        steps = {
            "prepare": Step(program, "prepare", {"T": T, "DV": fixed["DV"]}),
            BY_QUERIES: self.by_queries.step,
            KERNEL: self.by_keys.step,
            "join keys": Step(program, "join_parts", {"T": T, "D": fixed["D"], "BN": self.slots.keys}),
            "join values": Step(program, "join_parts", {"T": T, "D": fixed["DV"], "BN": self.slots.keys}),
        }
        self.kernels = StepKernels(attention.spec.name, steps, (self.by_queries, self.by_keys))

    def compute(
        self, tensors: BackwardInputs, data: TransferResult, lists: SelectedBlocks, scale: float, interpret: bool
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Compute dQ, dK and dV of tensors that lie as kernels read them.

        data: the captured values of the forward call's mods.
        """
        q, k, v, o, lse, do, dlse = tensors
        at, heads = lengths_of(q, k), lists.blocks.shape[1]
        gq, gk, gv = (output_for(x, x.shape[3]) for x in (q, k, v))
        if not min(q.numel(), k.numel()):
            return gq.zero_(), gk.zero_(), gv.zero_()
        if not interpret:
            need_gpu(q.device, self.attention.arch)
        runs = self.kernels.interpreted if interpret else self.kernels.compiled
        L, DL = (torch.empty(at.B, at.H, pad_rows(at.M), dtype=torch.float32, device=q.device) for _ in range(2))
        runs["prepare"].launch({"O": o, "dO": do, "LSE": lse, "L": L, "DL": DL})
        if dlse is not None:  # each weight is what its score changes LSE by
            DL[..., : at.M] -= dlse
        captured = [join_arguments(part.arguments(data, at, q.device)) for part in (self.by_queries, self.by_keys)]
        rows = {"K": k, "V": v, "L": L, "DL": DL, "scale": scale}
        runs[BY_QUERIES].launch({"Q": q, "dO": do, **rows, "BLOCKS": lists.blocks, "COUNTS": lists.counts, "dQ": gq, **captured[0]})
        units, slots, ends = invert_blocks(lists, at, self.slots)
        shape = len(units) * self.slots.warpgroups, self.slots.keys
        parts = [torch.empty(*shape, x.shape[3], dtype=torch.float32, device=x.device) for x in (k, v)]
        by_list = {"Q": q.unflatten(1, (heads, -1)), "dO": do.unflatten(1, (heads, -1))}
        runs[KERNEL].launch({**by_list, **rows, "UNITS": units, "INVERSE": slots, "dK": parts[0], "dV": parts[1], **captured[1]})
        for step, part, gradient in zip(("join keys", "join values"), parts, (gk, gv), strict=True):
            runs[step].launch({"X": part, "ENDS": ends, "Y": gradient})
        return without_room(gq, q), without_room(gk, k), without_room(gv, v)


__all__ = ["WIDEST_GRADIENT", "SelectedGradients", "SelectedSizes"]
