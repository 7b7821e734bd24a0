"""Attention of dense tensors: an operator in a graph, and a prepared or a new call outside of one."""

from __future__ import annotations

import torch
from torch.compiler import is_compiling

from ...spec.specification import lengths_of
from ..capture.attention_request import AttentionRequest
from ..capture.call_inputs import check_differentiable, check_options, check_ranks, check_tensors
from ..capture.dispatcher_calls import check_local, has_no_numbers, is_dispatched, wraps_tensors
from .block_masks import LazyBlockMask, check_mask, get_mask_mod
from .dynamo_closures import read_mods
from .materialised_block_masks import MASKS_ARE_CONSTANTS, mark_graph_inputs
from .operator import OPERATORS, sink_of
from .prepared_calls import prepare, run_warm


def run(request: AttentionRequest) -> tuple[torch.Tensor, ...]:
    """Return O, LSE and the requested further outputs of a call."""
    if is_compiling() or is_dispatched(request.query):
        return run_new(request, dispatched=True)
    return run_warm(*request[:5], request.key_of_options, request.weighting, request.dropout) or run_new(request, dispatched=False)


def run_new(request: AttentionRequest, dispatched: bool) -> tuple[torch.Tensor, ...]:
    """Run a call that is not cached.

    `dispatched`: it is traced, or goes to the dispatcher because of a mode or of its query.
    """
    if dispatched or wraps_tensors(request.key) or wraps_tensors(request.value):
        return run_dispatched(request) or run_cold(request)
    return run_cold(request)


def run_cold(request: AttentionRequest) -> tuple[torch.Tensor, ...]:
    """Run a call outside of a graph that is not cached; one of tensors without data becomes an operator."""
    query, key, value = request.query, request.key, request.value
    check_options(request.scale, request.backend, request.verify)
    check_tensors(query, key, value, request.enable_gqa)
    if has_no_numbers(query):
        return run_dispatched(request)
    mask_mod = get_mask_mod(request.block_mask)
    check_mask(request.block_mask, lengths_of(query, key))
    return prepare(request, mask_mod).with_dropout(request.dropout)(query, key, value)


def run_dispatched(request: AttentionRequest) -> tuple[torch.Tensor, ...]:
    """Run the call as an operator, which torch.compile traces and which takes tensors without data.

    The operator checks its arguments. Returns nothing for a call that needs none of this, with mods that an operator
    could only take as they are now.
    """
    query, key, value, score_mod, block_mask, scale, enable_gqa, backend, verify, weighting, dropout, invariant = request
    check_local(query, key, value)
    if torch.compiler.is_compiling():
        check_ranks(query, key, value)
    else:
        check_options(scale, backend, verify)
        check_tensors(query, key, value, enable_gqa)
    mask_mod = get_mask_mod(block_mask)
    check_mask(block_mask, lengths_of(query, key))
    stand = None if block_mask is None or (isinstance(block_mask, LazyBlockMask) and block_mask.unmade) else block_mask
    if stand is not None and MASKS_ARE_CONSTANTS:
        mark_graph_inputs(stand)
    mods = read_mods(query, mask_mod, score_mod, weighting, 0.0 if dropout is None else dropout.p)
    if mods is None:
        return ()
    captured, handle = mods
    if stand is not None:
        captured += [stand.kv_num_blocks, stand.kv_indices]
        if stand.full_kv_num_blocks is not None and stand.full_kv_indices is not None:
            captured += [stand.full_kv_num_blocks, stand.full_kv_indices]
    captured += sink_of(weighting.sink, query.shape[1], query.device)
    captured += [] if dropout is None else [dropout.seed]
    check_differentiable(query, key, value, weighting.normalize, captured)
    scale = query.shape[3] ** -0.5 if scale is None else float(scale)
    block_size = [] if stand is None else list(stand.BLOCK_SIZE)
    arguments = query, key, value, captured, handle, scale, enable_gqa, backend, verify, invariant, block_size
    outputs: tuple[torch.Tensor, ...] = OPERATORS[weighting.outputs](*arguments)
    # further outputs have no gradient
    return (*outputs[:2], *[x.detach() for x in outputs[2:]]) if weighting.outputs else outputs


__all__ = ["run", "run_new"]
