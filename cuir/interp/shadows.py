"""Shadows of tensors in device memory: histories of the accesses to each element.

tensor_races.py checks their order. Each element has a *history*: the accesses that a later one could still conflict
with without conflicting with a later access too. Elements with one history share its number, so that a box is one
comparison and one fill. A tensor of which all accesses commute has no shadow.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch

from .access_records import Actor
from .clocks import Event


@dataclass
class Access:
    """One access of a batch to a tensor; in histories the number of its lane l is `first + l`.

    completion: the event at which it is over in all lanes; None for an engine's, which is over in each cluster at a
    separate event, if ever. text: the tensor's name in a report.
    """

    memory: ClassVar[str] = "tensor"
    seen: ClassVar[bool] = True

    first: int
    clusters: np.ndarray
    worker: int
    cta: int
    label: str
    owner: str
    description: str
    span: Any
    mode: str
    proxy: str
    completion: Event | None
    awaited: str  # the wait that completes an engine's access, for reports
    over: dict[int, Event] = field(default_factory=dict)
    text: str = ""

    def get_completion(self, cluster: int) -> Event | None:
        return self.completion if self.completion is not None else self.over.get(cluster)

    def retire(self, clusters: np.ndarray, event: Event) -> None:
        """Complete the access at an event in the clusters of a batch."""
        for cluster in clusters.tolist():
            self.over[cluster] = event


class Shadow:
    """The histories of a tensor's elements.

    between: whether barriers order accesses to it of different CTAs of a cluster, too (see docs/semantics.md,
    Clusters). undefined: whether its elements hold nothing when the launch begins. An element was written if its
    history is not empty: the first access of an undefined one is a write, and a history never loses its last write.
    """

    def __init__(self, name: str, shape: tuple[int, ...], device: torch.device, between: bool, undefined: bool = False):
        self.name, self.between, self.undefined = name, between, undefined
        size = int(np.prod(shape, dtype=np.int64))
        self.flat = torch.zeros(size, dtype=torch.int32, device=device)  # each element's history number; 0: none
        self.shape = shape
        self.strides = tuple(int(np.prod(shape[i + 1 :], dtype=np.int64)) for i in range(len(shape)))
        self.log: list[Access] = []
        self.firsts: list[int] = []
        self.next = 1  # next free number; an access's number is also that of its history of length one
        self.longer: dict[int, tuple[int, ...]] = {}
        self.numbers: dict[tuple[int, ...], int] = {}

    def enter(self, clusters: np.ndarray, actor: Actor, mode: str, proxy: str, completion: Event | None, awaited: str = "") -> Access:
        access = Access(
            self.next,
            clusters,
            actor.worker,
            actor.cta,
            actor.label,
            actor.owner,
            actor.description,
            actor.span,
            mode,
            proxy,
            completion,
            awaited,
        )
        self.log.append(access)
        self.firsts.append(self.next)
        self.next += len(clusters)
        return access

    def find(self, number: int) -> tuple[Access, int]:
        """Return the access of a number, and its cluster."""
        access = self.log[bisect.bisect_right(self.firsts, number) - 1]
        return access, int(access.clusters[number - access.first])

    def history(self, members: list[int]) -> int:
        """Return the number of the history that consists of these accesses, a new one if there is none."""
        if len(members) == 1:
            return members[0]
        key = tuple(members)
        number = self.numbers.get(key)
        if number is None:
            number = self.numbers[key] = self.next
            self.longer[number] = key
            self.next += 1
        return number
