"""Attention over several GPUs, on the meshes of torch.distributed."""

from .context_parallel import context_parallel_attention, plan_context_parallel
from .kept_pairs import balance_sequence
from .packed_sequences import pack_mods
from .plans import Machine, Plan
from .sharded_cache import append_to_sharded_cache, attention_with_sharded_cache
from .shards import Shards, shard_by_lengths, shard_evenly

__all__ = [
    "Machine",
    "Plan",
    "Shards",
    "append_to_sharded_cache",
    "attention_with_sharded_cache",
    "balance_sequence",
    "context_parallel_attention",
    "pack_mods",
    "plan_context_parallel",
    "shard_by_lengths",
    "shard_evenly",
]
