"""What mods capture as a kernel takes it, on its device. Owns that other streams wait for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from .inputs import capturing


class Counting:
    """A number on its way from a device."""

    def __init__(self, number: torch.Tensor):
        """number: one element, as the current stream will have made it."""
        self.event = None
        self.here = number
        if number.is_cuda:
            self.here = torch.empty_like(number, device="cpu", pin_memory=True).copy_(number, non_blocking=True)
            self.event = torch.cuda.current_stream(number.device).record_event()

    def done(self) -> bool:
        """Whether it has arrived."""
        return self.event is None or bool(self.event.query())

    def value(self) -> float:
        """Waits for it."""
        if self.event is not None:
            self.event.synchronize()
        return float(self.here)


class Made(dict[str, Any]):
    """Captured values and block lists as a kernel takes them; other streams than the one that they were made on wait for it."""

    def __init__(self, values: Mapping[str, Any], device: torch.device):
        super().__init__(values)
        self.visited: float | None = None  # keys of a query on average, once they were counted
        self.counting: Counting | None = None
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


__all__ = ["Counting", "Made"]
