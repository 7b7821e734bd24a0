"""Cards: what the choice of a kernel and of its settings knows of a GPU.

A table by compute capability, from the CUDA programming guide and NVIDIA's white papers; PyTorch reports the numbers of
a GPU that is here.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..ops.limits import TARGETS

if TYPE_CHECKING:
    import torch  # else imported when needed, since it takes a second

HOPPER = (9, 0)  # the only compute capability with measured settings


@dataclass(frozen=True)
class Card:
    """A GPU.

    Attributes:
        capability: its compute capability.
        shared_bytes: most dynamic shared memory of a CTA.
        shared_total: shared memory of a multiprocessor.
        threads: most threads that a multiprocessor holds.
        product_rate: operations of `mma.sync` on halves with f32 sums, a cycle and multiprocessor.
        lanes: instructions of threads on f32, a cycle and multiprocessor.
    """

    name: str
    capability: tuple[int, int]
    multiprocessors: int
    shared_bytes: int
    shared_total: int
    l2_bytes: int
    threads: int
    product_rate: int
    lanes: int
    register_file: int = 65536

    @property
    def is_measured(self) -> bool:
        """True if settings were measured on such a GPU; elsewhere a model of cost chooses."""
        return self.capability == HOPPER

    @property
    def version(self) -> str:
        """The compute capability in words, as 8.6."""
        return f"{self.capability[0]}.{self.capability[1]}"

    @property
    def code(self) -> str:
        """The name of its machine code."""
        return f"sm_{self.capability[0]}{self.capability[1]}"


_KB, _MB = 1024, 1024 * 1024
# A representative of each compute capability. Rates of 10.0 and 12.0 are those of code for sm_80, and not measured.
CARDS = {
    card.capability: card
    for card in (
        Card("T4", (7, 5), 40, 64 * _KB, 64 * _KB, 4 * _MB, 1024, 1024, 64),
        Card("A100 SXM", (8, 0), 108, 163 * _KB, 164 * _KB, 40 * _MB, 2048, 2048, 64),
        Card("RTX 3090", (8, 6), 82, 99 * _KB, 100 * _KB, 6 * _MB, 1536, 512, 128),
        Card("L40S", (8, 9), 142, 99 * _KB, 100 * _KB, 96 * _MB, 1536, 1024, 128),
        Card("H200 SXM", (9, 0), 132, 227 * _KB, 228 * _KB, 50 * _MB, 2048, 2750, 128),
        Card("B200 SXM", (10, 0), 148, 227 * _KB, 228 * _KB, 126 * _MB, 2048, 2048, 128),
        Card("RTX 5090", (12, 0), 170, 99 * _KB, 100 * _KB, 96 * _MB, 1536, 512, 128),
    )
}


def find_card(device: torch.device) -> Card | None:
    """Return the GPU of this device; None for another device, and where PyTorch finds no GPU."""
    if device.type != "cuda":
        return None
    import torch

    if not torch.cuda.is_available():
        return None
    return _read_card(torch.cuda.current_device() if device.index is None else device.index)


@functools.cache
def _read_card(index: int) -> Card:
    import torch

    properties = torch.cuda.get_device_properties(index)
    known = find_relative((properties.major, properties.minor))
    return replace(
        known,
        name=properties.name,
        capability=(properties.major, properties.minor),
        multiprocessors=properties.multi_processor_count,
        shared_bytes=getattr(properties, "shared_memory_per_block_optin", known.shared_bytes),
        shared_total=getattr(properties, "shared_memory_per_multiprocessor", known.shared_total),
        l2_bytes=getattr(properties, "L2_cache_size", known.l2_bytes),
        threads=properties.max_threads_per_multi_processor,
        register_file=getattr(properties, "regs_per_multiprocessor", known.register_file),
    )


def find_relative(capability: tuple[int, int]) -> Card:
    """Return the card of the table that is most like one of this compute capability: the newest that is not newer."""
    older = [known for known in CARDS if known <= capability]
    return CARDS[max(older, default=min(CARDS))]


def find_shared_limit(arch: str, card: Card | None) -> int | None:
    """Return the shared memory of a CTA on a card with less than its architecture; None for others."""
    return None if card is None or card.shared_bytes >= TARGETS[arch].shared_bytes else card.shared_bytes


def find_current_limit(arch: str) -> int | None:
    """Return `find_shared_limit` of PyTorch's current GPU; None without one."""
    import torch

    return find_shared_limit(arch, find_card(torch.device("cuda")))


def list_cards() -> list[Card]:
    """Return the GPUs of this machine that PyTorch can use."""
    import torch

    if not torch.cuda.is_available():
        return []
    return [_read_card(index) for index in range(torch.cuda.device_count())]


def list_codes(arch: str) -> tuple[str, ...]:
    """Return what a kernel of an architecture is compiled to, in nvcc's words.

    A kernel that several cards run is compiled for those of this machine, and to PTX for others. Without such a card,
    it is compiled for the usual ones.
    """
    target = TARGETS[arch]
    if not target.portable:
        return target.code
    here = dict.fromkeys(card.code for card in sorted(list_cards(), key=lambda c: c.capability) if target.runs_on(card.capability))
    return (*here, *(c for c in target.code if c.startswith("compute_"))) if here else target.code


__all__ = ["CARDS", "Card", "find_card", "find_current_limit", "find_relative", "find_shared_limit", "list_cards", "list_codes"]
