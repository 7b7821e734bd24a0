"""GPUs that are not here: what PyTorch would report of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from unittest import mock

import torch

from cuir.attn.kernels import card_kernels
from cuir.runtime import cards
from cuir.runtime.cards import Card


@contextmanager
def stand_in(*present: Card) -> Iterator[None]:
    """Let PyTorch report these GPUs and no other, for questions about them; nothing can run there."""
    properties = [
        SimpleNamespace(
            name=card.name,
            major=card.capability[0],
            minor=card.capability[1],
            multi_processor_count=card.multiprocessors,
            shared_memory_per_block_optin=card.shared_bytes,
            shared_memory_per_multiprocessor=card.shared_total,
            L2_cache_size=card.l2_bytes,
            max_threads_per_multi_processor=card.threads,
            regs_per_multiprocessor=card.register_file,
            total_memory=16 << 30,
        )
        for card in present
    ]
    names = {
        "is_available": lambda: bool(present),
        "device_count": lambda: len(present),
        "current_device": lambda: 0,
        "get_device_properties": lambda index=0: properties[index if isinstance(index, int) else index.index or 0],
        "get_device_capability": lambda index=0: present[index if isinstance(index, int) else index.index or 0].capability,
    }
    forget()
    with mock.patch.multiple(torch.cuda, **names):
        yield
    forget()


def forget() -> None:
    """Forget which GPUs are here."""
    cards._read_card.cache_clear()
    card_kernels.choose_target.cache_clear()
