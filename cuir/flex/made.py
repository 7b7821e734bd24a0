"""What mods capture as a kernel takes it, on its device. Owns that other streams wait for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from .inputs import capturing


class Made(dict[str, Any]):
    """Captured values and block lists as a kernel takes them; other streams than the one that they were made on wait for it."""

    def __init__(self, values: Mapping[str, Any], device: torch.device):
        super().__init__(values)
        self.visited: float | None = None  # keys of a query on average, once they were counted
        self.index = device.index if device.type == "cuda" else None
        self.streams: set[int] = set()  # that may use them
        if self.index is not None:
            self.streams.add(torch._C._cuda_getCurrentRawStream(self.index))
            self.event = torch.cuda.current_stream(device).record_event()

    def join(self) -> None:
        """Makes the current stream one that may use them. A captured stream may: whoever begins a capture has waited for the device."""
        if self.index is None:
            return
        here = torch._C._cuda_getCurrentRawStream(self.index)
        if here in self.streams or capturing():
            return
        stream = torch.cuda.current_stream(self.index)
        stream.wait_event(self.event)
        for t in self.values():
            if isinstance(t, torch.Tensor):
                t.record_stream(stream)
        self.streams.add(here)


__all__ = ["Made"]
