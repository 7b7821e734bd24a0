"""`context_parallel_attention`: attention of a sequence whose tokens are spread over the ranks of a mesh."""

from __future__ import annotations

import hashlib
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from ..attn.api.block_masks import LazyBlockMask, check_mask, get_mask_mod
from ..attn.capture.attention_request import Level, Mod
from ..attn.capture.call_inputs import check_options, check_sink, check_tensors, make_scale_positive, wrong
from ..attn.capture.capture_keys import make_capture_key
from ..attn.capture.graph_breaks import break_graphs
from ..spec.specification import Lengths
from .agreement import TIMEOUT, Facts, Group, Member, check_equal, connect_ranks, exchange_facts, make_group
from .kept_pairs import count_pairs
from .plans import Method, ParallelProblem, Plan, make_plan
from .rank_exchanges import exchange_heads
from .rounds import RoundsCall, attend_in_rounds, bind_lengths
from .shards import Shards, shard_by_lengths, shard_evenly

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

# what ranks must agree in, with the words for it
AGREED = {
    "kind": "kind of tensors",
    "batch": "batch size",
    "heads": "numbers of heads",
    "head_dims": "head dims",
    "dtype": "dtype",
    "rule": "mask_mod or score_mod",
    "options": "scale, enable_gqa or sink",
    "gradients": "set of tensors that require gradients",
    "method": "method",
    "shards": "Shards",
}


class ParallelCall(NamedTuple):
    """A call of `context_parallel_attention`, with this rank's tokens.

    Attributes:
        mask_mod, score_mod: with the lengths of the whole call.
        lengths: queries and keys of all ranks, where DTensors were given.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mesh: DeviceMesh
    block_mask: BlockMask | None
    score_mod: Mod | None
    scale: float | None
    enable_gqa: bool
    sink: torch.Tensor | float | None
    method: Method | None
    shards: Shards | None
    wants_lse: bool
    lengths: tuple[int, int] | None

    @property
    def mask_mod(self) -> Mod | None:
        return get_mask_mod(self.block_mask)

    @property
    def training(self) -> bool:
        tensors = (self.query, self.key, self.value, *make_capture_key(self.mask_mod, self.score_mod).tensors)
        return torch.is_grad_enabled() and any(x.requires_grad for x in tensors)

    def state(self) -> Facts:
        """Return the facts that ranks exchange."""
        q, k, v = self.query, self.key, self.value
        sink = "tensor" if isinstance(self.sink, torch.Tensor) else self.sink
        gradients = [x.requires_grad and torch.is_grad_enabled() for x in (q, k, v)]
        return {
            "kind": "DTensors" if self.lengths else "local tensors",
            "batch": [x.shape[0] for x in (q, k, v)],
            "heads": [q.shape[1], k.shape[1]],
            "head_dims": [q.shape[3], v.shape[3]],
            "dtype": str(q.dtype),
            "rule": _digest_mods(self.mask_mod, self.score_mod),
            "options": [self.scale, self.enable_gqa, sink],
            "gradients": gradients,
            "method": self.method,
            "shards": None if self.shards is None else [[list(s) for s in spans] for spans in self.shards.spans],
            "lengths": [q.shape[2], k.shape[2]],
        }


def _digest_mods(*mods: Mod | None) -> str:
    """Return a digest of the mods' code and of the numbers and shapes that they capture."""
    key = make_capture_key(*mods)
    numbers = [repr(x) for x in key.values if isinstance(x, (int, float, str, bool, tuple, torch.Size))]
    return hashlib.sha256(f"{key.digest()} {numbers}".encode()).hexdigest()[:16]


@break_graphs
def plan_context_parallel(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mesh: DeviceMesh,
    *,
    score_mod: Mod | None = None,
    block_mask: BlockMask | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    sink: torch.Tensor | float | None = None,
    method: Method | None = None,
    shards: Shards | None = None,
    skip_blocks: bool = True,
    timeout: float = TIMEOUT,
) -> Plan:
    """Plan a call of `context_parallel_attention` with these arguments; all ranks of the mesh do so together.

    The ranks check that they make one call, and count the pairs that the mask keeps. A plan holds for later calls of
    these lengths as long as the mask keeps no pair in other blocks; calls with a plan exchange nothing but tensors.

    Args:
        skip_blocks: send only blocks of keys with kept pairs. False counts no pairs: all keys are sent.
        timeout: seconds after which ranks that do not take part are told.

    Raises CuirError U422 if ranks differ, U423 if one does not take part, U413 for an impossible method.
    """
    call = _read_call(query, key, value, mesh, block_mask, score_mod, scale, (enable_gqa, sink, method, shards, False))
    return _plan(call, skip_blocks, timeout)


@break_graphs
def context_parallel_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mesh: DeviceMesh,
    *,
    score_mod: Mod | None = None,
    block_mask: BlockMask | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    sink: torch.Tensor | float | None = None,
    method: Method | None = None,
    plan: Plan | None = None,
    shards: Shards | None = None,
    backend: str = "auto",
    verify: Level = "quick",
    timeout: float = TIMEOUT,
) -> Any:
    """Compute `flex_attention` of a sequence whose tokens are spread over the ranks of a mesh.

    Args:
        query: this rank's queries [B, H, M, D], or a DTensor whose placement is Shard(2) on each dim of the mesh.
        key: this rank's keys [B, HK, N, D]; N may differ by rank, and be 0.
        value: this rank's values [B, HK, N, DV].
        mesh: of one dim; of two, (groups, ranks of a group), for the method "mixed".
        score_mod: of the numbers of heads and tokens in the whole call.
        block_mask: a result of `cuir.create_block_mask` for the whole sequence, or None.
        scale: as for `flex_attention`, like `enable_gqa`, `return_lse`, `sink`, `backend`, `verify`.
        method: "heads" exchanges heads against tokens (Ulysses), "gather" sends all needed keys at once, "ring" in
            rounds under the computation, "mixed" exchanges heads in groups and keys between groups. By default the
            plan's estimates decide.
        plan: a result of `plan_context_parallel`. Without one, each call makes a plan.
        shards: which tokens each rank holds, for local tensors, such as a result of `balance_sequence`. By default one
            rank's tokens follow those of the rank before.
        timeout: seconds after which a rank that does not take part is told.

    Returns:
        O of this rank's queries, and with return_lse LSE; DTensors where query is one. Gradients of captured tensors
        and of a sink are those of this rank's queries: their sum over the mesh is the gradient, as for all weights.

    Raises CuirError U422 if ranks differ, U423 if a rank ends or does not take part, and those of `flex_attention`.
    """
    call = _read_call(query, key, value, mesh, block_mask, score_mod, scale, (enable_gqa, sink, method, shards, return_lse))
    check_options(call.scale, backend, verify)
    if plan is None:
        plan = _plan(call, True, timeout)
    outputs = _run(call, plan, backend, verify, timeout)
    if isinstance(query, DTensor):
        shape = torch.Size((*query.shape[:3], value.shape[3]))
        outputs = tuple(_wrap(x, query, size) for x, size in zip(outputs, (shape, shape[:3]), strict=False))
    return outputs if return_lse else outputs[0]


def _wrap(x: torch.Tensor, like: DTensor, shape: torch.Size) -> torch.Tensor:
    strides = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(x.contiguous(), like.device_mesh, like.placements, run_check=False, shape=shape, stride=strides)


def _read_call(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mesh: DeviceMesh,
    block_mask: BlockMask | None,
    score_mod: Mod | None,
    scale: float | None,
    more: tuple[bool, torch.Tensor | float | None, Method | None, Shards | None, bool],
) -> ParallelCall:
    """Check a call's arguments, and take the local tensors of DTensors."""
    enable_gqa, sink, method, shards, wants_lse = more
    if not isinstance(mesh, DeviceMesh) or mesh.ndim > 2:
        wrong("U413", f"mesh must be a DeviceMesh of one or two dims, found {mesh!r}", 'init_device_mesh("cuda", (ranks,))')
    if mesh.ndim == 2 and mesh.mesh_dim_names is None:
        wrong("U413", "the dims of a mesh with two dims need names", 'init_device_mesh("cuda", (2, 4), mesh_dim_names=("groups", "heads"))')
    lengths = None
    if isinstance(query, DTensor):
        if not all(
            isinstance(x, DTensor) and x.device_mesh == mesh and x.placements == (Shard(2),) * mesh.ndim for x in (query, key, value)
        ):
            wrong(
                "U403",
                "query, key and value must be DTensors on the mesh of the call, sharded by tokens on each of its dims",
                f"x.redistribute(mesh, {[Shard(2)] * mesh.ndim})",
            )
        if shards is not None:
            wrong("U413", "a DTensor says itself which tokens a rank holds, found shards", "x.to_local() for other shards")
        lengths = query.shape[2], key.shape[2]
        query, key, value = (x.to_local() for x in (query, key, value))  # type: ignore[attr-defined]
    check_tensors(query, key, value, enable_gqa)
    check_sink(sink, query.shape[1])
    if block_mask is not None and not (isinstance(block_mask, LazyBlockMask) and block_mask.is_untouched()):
        get_mask_mod(block_mask)
        wrong("U412", "the blocks of a mask are not read here, only its mask_mod", "cuir.create_block_mask(mask_mod, B, H, Q_LEN, KV_LEN)")
    if scale is not None:
        query, scale = make_scale_positive(query, scale)
    return ParallelCall(query, key, value, mesh, block_mask, score_mod, scale, enable_gqa, sink, method, shards, wants_lse, lengths)


def _make_groups(mesh: DeviceMesh, timeout: float) -> list[Group]:
    return [make_group(mesh.get_group(dim), timeout) for dim in range(mesh.ndim)]


def _plan(call: ParallelCall, skip_blocks: bool, timeout: float) -> Plan:
    """Plan a call together with the other ranks."""
    groups = _make_groups(call.mesh, timeout)
    answers = [call.state()]
    for group in reversed(groups):  # of a mesh with two dims: in the groups, then between them
        gathered = exchange_facts(group, {"ranks": answers})
        answers = [facts for answer in gathered for facts in answer["ranks"]]
    check_equal(call.mesh.mesh.flatten().tolist(), answers, AGREED)
    queries, keys = (_shards_of(call, [facts["lengths"][n] for facts in answers], n) for n in (0, 1))
    q, k, v = call.query, call.key, call.value
    sizes = Lengths(q.shape[0], q.shape[1], k.shape[1], queries.length, keys.length)
    check_mask(call.block_mask, sizes)
    kept = count_pairs(bind_lengths(call.mask_mod, sizes) if skip_blocks and call.mask_mod else None, sizes, q.device)
    problem = ParallelProblem(
        q.shape[0],
        q.shape[1],
        k.shape[1],
        (q.shape[3], v.shape[3]),
        q.element_size(),
        tuple(call.mesh.shape),
        queries,
        keys,
        call.training,
    )
    return make_plan(problem, kept, call.method)


def _shards_of(call: ParallelCall, lengths: list[int], which: int) -> Shards:
    if call.shards is not None:
        if list(call.shards.lengths) != lengths:
            name = ("queries", "keys")[which]
            wrong("U408", f"the shards are of {list(call.shards.lengths)} tokens, the ranks' {name} {lengths}", "Shards.split(x, rank)")
        return call.shards
    if call.lengths is not None:
        return shard_evenly(call.lengths[which], *call.mesh.shape)
    return shard_by_lengths(lengths)


def _run(call: ParallelCall, plan: Plan, backend: str, verify: Level, timeout: float) -> tuple[torch.Tensor, ...]:
    """Return O of this rank's queries, and LSE if it is wanted."""
    problem = plan.problem
    own, head_group, key_group = _find_member(call.mesh, plan, timeout)
    _check_plan(call, plan, own)
    q, k, v = call.query, call.key, call.value
    parts = problem.head_ranks(plan.method)
    members = slice(own - own % parts, own - own % parts + parts)  # the ranks of this one's group
    own_queries = Shards(problem.queries.spans[members])
    if parts > 1:
        assert head_group is not None
        if k.shape[1] % parts:
            k, v = (x.repeat_interleave(parts // x.shape[1], 1) for x in (k, v))
        (q,) = exchange_heads(head_group, own_queries, q)
        k, v = exchange_heads(head_group, Shards(problem.keys.spans[members]), k, v)
    heads = q.shape[1]
    first = own % parts * heads
    sizes = Lengths(q.shape[0], problem.heads, problem.key_heads, problem.queries.length, problem.keys.length)
    sink = call.sink[first : first + heads] if isinstance(call.sink, torch.Tensor) else call.sink
    rounds_call = RoundsCall(
        key_group,
        *plan.rounds[key_group.rank],
        call.mask_mod,
        call.score_mod,
        plan.shifted,
        sizes,
        first,
        sink,
        (call.scale, call.enable_gqa, backend, verify),
    )
    o, lse = attend_in_rounds(rounds_call, q, k, v)
    if parts > 1:
        assert head_group is not None
        by_head = (o, lse.unsqueeze(-1)) if call.wants_lse else (o,)
        o, *more = exchange_heads(head_group, own_queries, *by_head, back=True)
        return o, *(x.squeeze(-1) for x in more)
    return (o, lse) if call.wants_lse else (o,)


def mesh_rank(mesh: DeviceMesh) -> int:
    """Return the place of this process in a mesh, the last dim the innermost."""
    place = 0
    for dim, size in enumerate(mesh.shape):
        place = place * size + mesh.get_local_rank(dim)
    return place


def _find_member(mesh: DeviceMesh, plan: Plan, timeout: float) -> Member:
    """Return this process's place in a plan; that of the last call if it had the same mesh."""
    last = plan.member.get(timeout)
    if last is not None and last[0]() is mesh:
        return last[1]
    head_group, key_group = _choose_groups(mesh, plan, timeout)
    connect_ranks(key_group)
    member = Member(mesh_rank(mesh), head_group, key_group)
    plan.member[timeout] = weakref.ref(mesh), member
    return member


def _choose_groups(mesh: DeviceMesh, plan: Plan, timeout: float) -> tuple[Group | None, Group]:
    """Return the group that exchanges heads and the one that exchanges keys, which may be of this rank alone."""
    groups = _make_groups(mesh, timeout)
    if plan.method == "mixed":
        return groups[1], groups[0]
    if len(groups) > 1:
        whole = make_group(mesh._flatten().get_group(), timeout)
    else:
        whole = groups[0]
    return (whole, whole._replace(rank=0, size=1)) if plan.method == "heads" else (None, whole)


def _check_plan(call: ParallelCall, plan: Plan, own: int) -> None:
    """Check that a plan is for this rank's tensors. Raises CuirError U408."""
    problem, q, k = plan.problem, call.query, call.key
    planned = (problem.queries.lengths[own], problem.keys.lengths[own], problem.heads, problem.key_heads)
    actual = (q.shape[2], k.shape[2], q.shape[1], k.shape[1])
    if planned != actual:
        wrong(
            "U408",
            f"the plan is for {planned} queries, keys, query and key heads of this rank, found {actual}",
            "plan_context_parallel for these tensors",
        )


__all__ = ["context_parallel_attention", "plan_context_parallel"]
