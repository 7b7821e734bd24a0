"""Agreement of ranks on a call before they send tensors, and the error for a rank that does not answer."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import torch.distributed as dist

from ..text.diagnostics import CuirError

TIMEOUT = 60.0  # seconds
Facts = dict[str, Any]  # of JSON: numbers, words and lists


class Group(NamedTuple):
    """Ranks of a process group, and the place of this process among them."""

    process_group: dist.ProcessGroup
    rank: int
    size: int
    timeout: float

    def peer(self, rank: int) -> int:
        """Return the global rank of a rank of the group."""
        return dist.get_global_rank(self.process_group, rank)


class Member(NamedTuple):
    """The place of this process in a mesh, and the groups in which it exchanges heads, if at all, and keys."""

    rank: int
    head_group: Group | None
    key_group: Group


class _Round(NamedTuple):
    number: int
    written: str  # the key of this rank in the last round


_ROUNDS: dict[str, _Round] = {}  # by the name of a group
_CONNECTED: set[str] = set()  # names of groups


def make_group(process_group: dist.ProcessGroup, timeout: float = TIMEOUT) -> Group:
    return Group(process_group, dist.get_rank(process_group), dist.get_world_size(process_group), timeout)


def connect_ranks(group: Group) -> None:
    """Let all ranks of a group meet once, as NCCL asks before some of them exchange messages."""
    name = group.process_group.group_name
    if group.size > 1 and name not in _CONNECTED and dist.get_backend(group.process_group) == "nccl":
        with told_as(group, "the first meeting of the ranks"):
            dist.barrier(group.process_group)
        _CONNECTED.add(name)


def exchange_facts(group: Group, facts: Facts) -> list[Facts]:
    """Return the facts of all ranks, by rank, through the store of the process group: the device is not involved.

    Raises CuirError U423 if a rank does not answer in time.
    """
    if group.size == 1:
        return [facts]
    store = dist.distributed_c10d._get_default_store()
    name = group.process_group.group_name
    last = _ROUNDS.get(name, _Round(0, ""))
    keys = [f"cuir/{name}/{last.number}/{rank}" for rank in range(group.size)]
    _ROUNDS[name] = _Round(last.number + 1, keys[group.rank])
    try:
        store.set(keys[group.rank], json.dumps(facts))
        store.wait(keys, timedelta(seconds=group.timeout))
        answers = [json.loads(store.get(key)) for key in keys]
        if last.written:  # all ranks have read it, as they wrote to this round
            store.delete_key(last.written)
    except (RuntimeError, ValueError) as error:
        raise _tell_silence(group, store, keys, error) from None
    return answers


def _tell_silence(group: Group, store: dist.Store, keys: Sequence[str], error: Exception) -> CuirError:
    """Return the error for ranks that did not write their keys."""
    silent: list[int] = []
    with contextlib.suppress(RuntimeError, ValueError):
        silent = [group.peer(rank) for rank, key in enumerate(keys) if not store.check([key])]
    who = f"rank {', '.join(map(str, silent))}" if silent else "the process that holds the store"
    return CuirError.of(
        "U423",
        f"{who} did not take part in the call within {group.timeout:g} s ({type(error).__name__})",
        hint="all ranks of the mesh must make the call; a rank that ended has said why in its own output",
    )


def check_equal(ranks: Sequence[int], answers: Sequence[Facts], names: Mapping[str, str]) -> None:
    """Raise CuirError U422 if ranks, by global number, differ in a fact; `names` describes each fact."""
    for fact, description in names.items():
        first = answers[0][fact]
        other = next((i for i, facts in enumerate(answers) if facts[fact] != first), None)
        if other is not None:
            found = "" if fact == "rule" else f": {first!r} on rank {ranks[0]}, {answers[other][fact]!r} on rank {ranks[other]}"
            raise CuirError.of(
                "U422",
                f"rank {ranks[other]} calls with another {description} than rank {ranks[0]}{found}",
                hint="all ranks of the mesh make the same call, each with its own tokens",
            )


@contextlib.contextmanager
def told_as(group: Group, action: str) -> Iterator[None]:
    """Raise CuirError U423 in place of PyTorch's error where ranks lose each other during an action."""
    try:
        yield
    except CuirError:
        raise
    except (RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
        raise CuirError.of(
            "U423",
            f"{action} failed on rank {group.peer(group.rank)}, for a rank of the mesh ended or made another call: {reason}",
            hint="a rank that ended has said why in its own output; the time-out is that of the process group",
        ) from error


__all__ = ["TIMEOUT", "Facts", "Group", "Member", "check_equal", "connect_ranks", "exchange_facts", "make_group", "told_as"]
