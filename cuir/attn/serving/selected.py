"""`selected_attention`: each query attends to the blocks of keys that a list of its own names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.autograd.function import FunctionCtx

from ...spec.specification import Lengths, lengths_of
from ...syntax.caller_values import plain_number
from ..capture.attention_request import Level, Mod, Options, Variant
from ..capture.call_inputs import (
    check_dense,
    check_device,
    check_options,
    check_tensors,
    plain_integer,
    word,
    wrong,
)
from ..capture.double_backward import differentiate_once
from ..capture.graph_breaks import break_graphs
from ..capture.kernel_operands import as_kernels_read, autocast, autocasts, output_for, without_room
from ..kernels.attention_kernel import Attention
from ..kernels.autograd import BackwardInputs
from ..kernels.card_kernels import WIDEST, choose_target
from ..kernels.experts import Form
from ..kernels.selected_gradients import WIDEST_GRADIENT, SelectedGradients, SelectedSizes
from ..masks.selected_blocks import SelectedBlocks, sort_blocks
from ..splicing.splice import TransferResult
from .per_sequence import SequenceLaunch, launch_attention, lookup_rule_attention, mask_of, rule

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

SIZES = (16, 32, 64, 128)  # keys of a block


class Selection(NamedTuple):
    """The blocks that queries attend to.

    Attributes:
        lists: of groups of heads that share key head and list.
        block_size: keys of a block.
        span: queries that share a list.
    """

    lists: SelectedBlocks
    block_size: int
    span: int


@break_graphs
def selected_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    blocks: torch.Tensor,
    *,
    block_size: int = 64,
    queries_per_group: int = 1,
    counts: torch.Tensor | None = None,
    score_mod: Mod | None = None,
    block_mask: Mod | BlockMask | None = None,
    causal: bool = False,
    scale: float | None = None,
    return_lse: bool = False,
    backend: str = "auto",
    verify: Level = "quick",
) -> Any:
    """Compute attention to selected blocks of keys, as native sparse attention and block-sparse attention do.

    Args:
        query: [B, H, M, D], f16 or bf16, with any strides.
        key: [B, HK, N, D]. H is a multiple of HK.
        value: [B, HK, N, DV]. D and DV are from 1 to 256.
        blocks: int32 or int64 [B or 1, 1 or HK or H, groups, n] on the device: the blocks that each group of queries
            attends to, in any order. Block j has the keys j * block_size to j * block_size + block_size - 1. A block
            that is named twice counts once; -1, and on a GPU any block that does not exist, is none. On a CPU a block
            beyond the keys is refused (U413).
        block_size: 16, 32, 64 or 128.
        queries_per_group: queries that share a list: query i has that of group i // queries_per_group.
        counts: integers [B or 1, 1 or HK or H, groups]: only so many first entries of a list count. By default all do.
        score_mod: as for `flex_attention`.
        block_mask: a mask_mod, or a result of `create_block_mask`, of which only the mask_mod is used; it decides of
            pairs within the blocks.
        causal: a query sees no key behind its own; the last query's is the last key.
        scale: as for `flex_attention`, positive.
        return_lse: also return LSE.
        backend: as for `flex_attention`.
        verify: as for `flex_attention`.

    Returns:
        O [B, H, M, DV], and with return_lse also LSE [B, H, M], f32. A query without keys has O = 0 and LSE = -inf.

    Query, key and value have gradients, for head dims to 128: the same bits in every run. Captured tensors have none (U410). Lists are read on the device, which the host never waits for. Raises
    CuirError: U1xx, U4xx for arguments that do not fit, X1xx for mods, U5xx for a missing device or tool.
    """
    if autocasts(query):
        query, key, value = (autocast(x, query.device.type) for x in (query, key, value))
    options = Options(plain_number(scale), True, backend, verify)
    check_options(options.scale, backend, verify)
    check_tensors(query, key, value, enable_gqa=True)
    if max(query.shape[3], value.shape[3]) > WIDEST:
        wrong("U110", f"head dims of attention over selected blocks are from 1 to {WIDEST}, found {query.shape[3]} and {value.shape[3]}")
    selection = _read_selection(blocks, counts, plain_integer(block_size), plain_integer(queries_per_group), lengths_of(query, key), query)
    variant = Variant(mask_of(block_mask), score_mod)
    o, lse = _attend(query, key, value, selection, variant, causal, options)
    return (o, lse) if return_lse else o


def _read_selection(blocks: torch.Tensor, counts: torch.Tensor | None, size: int, span: int, at: Lengths, query: torch.Tensor) -> Selection:
    """Check lists, and return them sorted. Raises CuirError U403, U404, U407, U408, U413."""
    if size not in SIZES:
        wrong("U413", f"block_size must be {', '.join(map(str, SIZES[:-1]))} or {SIZES[-1]}, found {size!r}")
    if not isinstance(span, int) or isinstance(span, bool) or span < 1:
        wrong("U413", f"queries_per_group must be a positive integer, found {span!r}")
    groups, total = -(-at.M // span), -(-at.N // size)
    for name, x, dims in (("blocks", blocks, 4), ("counts", counts, 3)):
        if x is None and name == "counts":
            continue
        if not isinstance(x, torch.Tensor):
            wrong("U403", f"`{name}` must be a tensor of int32, found {type(x).__name__}")
        check_dense(name, x)
        check_device(name, x, query)
        if x.dtype not in (torch.int32, torch.int64):
            wrong("U404", f"`{name}` must be int32, found {word(x.dtype)}", f"{name}.to(torch.int32)")
        fits = x.dim() == dims and x.shape[0] in (1, at.B) and x.shape[1] in (1, at.HK, at.H) and x.shape[2] == groups
        if not fits:
            wrong(
                "U408",
                f"`{name}` must be [{at.B} or 1, 1, {at.HK} or {at.H} heads, {groups} groups of {span} queries{', n' if dims == 4 else ''}], "
                f"found {tuple(x.shape)}",
                f"queries_per_group is the number of queries that share a list, found {span}",
            )
    if blocks.device.type == "cpu" and blocks.numel() and int(blocks.max()) >= total:
        wrong("U413", f"blocks must be below {total}, the blocks of {size} of {at.N} keys, found {int(blocks.max())}", "-1 is no block")
    heads = max(at.HK, blocks.shape[1], 1 if counts is None else counts.shape[1])
    if counts is not None and counts.shape[1] != blocks.shape[1]:
        blocks = blocks.expand(-1, heads if blocks.shape[1] == 1 else -1, -1, -1)
        counts = counts if counts.shape[1] == blocks.shape[1] else counts.repeat_interleave(blocks.shape[1] // counts.shape[1], 1)
    listed = sort_blocks(blocks, total, counts)
    if listed.blocks.shape[1] not in (1, heads):
        listed = SelectedBlocks(*(x.repeat_interleave(heads // x.shape[1], 1) for x in listed))
    if not listed.blocks.shape[-1]:
        listed = SelectedBlocks(listed.blocks.new_full((*listed.counts.shape, 1), -1), listed.counts)
    return Selection(SelectedBlocks(listed.blocks.expand(at.B, heads, -1, -1), listed.counts.expand(at.B, heads, -1)), size, span)


class SelectedCall(NamedTuple):
    """A call of checked tensors, whose mods have a kernel.

    Attributes:
        data: the captured values of the mods.
    """

    attention: Attention
    data: TransferResult
    selection: Selection
    scale: float
    backend: str

    def launch(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute O and LSE."""
        at, lists = lengths_of(query, key), self.selection.lists
        o = output_for(query, value.shape[3])
        q, k, v = as_kernels_read(query, key, value)
        arguments = {"Q": q, "K": k, "V": v, "BLOCKS": lists.blocks, "COUNTS": lists.counts, "O": o, "scale": self.scale}
        rows = (at.B, at.H, at.M)
        lse = launch_attention(SequenceLaunch(self.attention, self.data, at, at.B, arguments, rows, self.backend))
        return without_room(o, query), lse

    def differentiate(self, tensors: BackwardInputs) -> tuple[torch.Tensor, ...]:
        """Compute dQ, dK and dV."""
        q, k, v, o, lse, do = (x.detach() for x in tensors[:6])
        lists, size, span = self.selection
        sizes = SelectedSizes(q.shape[1] // lists.blocks.shape[1], span, size)
        gradients = self.attention.kept.get(sizes)
        if not isinstance(gradients, SelectedGradients):
            gradients = self.attention.kept[sizes] = SelectedGradients(self.attention, sizes)
        q, k, v, o, do = as_kernels_read(q, k, v, o, do)
        inputs = BackwardInputs(q, k, v, o, lse, do, tensors.dlse)
        return gradients.compute(inputs, self.data, lists, self.scale, self.backend == "interpret")


class _Differentiable(torch.autograd.Function):
    """Attention over selected blocks with gradients of query, key and value."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, call: SelectedCall
    ) -> tuple[torch.Tensor, torch.Tensor]:
        o, lse = call.launch(query.detach(), key.detach(), value.detach())
        ctx.save_for_backward(query, key, value, o, lse)
        ctx.call = call  # type: ignore[attr-defined]
        ctx.set_materialize_grads(False)
        return o, lse

    @staticmethod
    def backward(ctx: FunctionCtx, do: torch.Tensor | None, dlse: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        query, key, value, o, lse = ctx.saved_tensors  # type: ignore[attr-defined]
        call: SelectedCall = ctx.call  # type: ignore[attr-defined]
        if do is None and dlse is None:
            return None, None, None, None
        inputs = BackwardInputs(query, key, value, o, lse, torch.zeros_like(o) if do is None else do, dlse)
        with torch.autocast(query.device.type, enabled=False):
            return (*differentiate_once(lambda: call.differentiate(inputs), (query, key, value, do, dlse)), None)


def _attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, selection: Selection, variant: Variant, causal: bool, options: Options
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute O and LSE of checked tensors."""
    head_dims = query.shape[3], value.shape[3]
    whole = Variant(rule(variant.mask_mod, causal), variant.score_mod)
    capture_key = whole.make_capture_key()
    consts = (("BLOCK", selection.block_size), ("SPAN", selection.span))
    form = Form(query.dtype, *head_dims, "selected", consts, choose_target(query.device, options.backend))
    differentiable = torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value))
    if differentiable and max(head_dims) > WIDEST_GRADIENT:
        wrong(
            "U410",
            f"gradients over selected blocks are for head dims to {WIDEST_GRADIENT}, found {head_dims[0]} and {head_dims[1]}",
            "call under torch.no_grad()",
        )
    known = lookup_rule_attention(whole, variant, capture_key, form, options.verify)
    data = known.data(capture_key)
    for name, p in known.attention.name_captured_values(data):
        if isinstance(p.value, torch.Tensor) and p.value.requires_grad and torch.is_grad_enabled():
            hint = f"call under torch.no_grad(), or give {name}.detach()"
            wrong("U410", f"`{name}`, which a mod captures, requires a gradient, and attention over selected blocks has none for it", hint)
    key, value = (x.expand(query.shape[0], -1, -1, -1) for x in (key, value))
    scale = head_dims[0] ** -0.5 if options.scale is None else float(options.scale)
    call = SelectedCall(known.attention, data, selection, scale, options.backend)
    if not differentiable:
        return call.launch(query, key, value)
    outputs: tuple[torch.Tensor, torch.Tensor] = _Differentiable.apply(query, key, value, call)
    return outputs


__all__ = ["selected_attention"]
