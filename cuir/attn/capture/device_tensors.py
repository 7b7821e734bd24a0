"""Tensors on the device that calls share: copies of captured tensors, and cached constants.

Other streams are synchronised with their creation. Tensors that are created while a CUDA graph is captured are not
cached, since only a replay of the graph would write them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from ...caching import Memo
from ..tracing.traced_result import Value
from .call_inputs import capturing


class Counting:
    """A number on its way from a device to the host."""

    def __init__(self, number: torch.Tensor):
        """Start the copy of a tensor of one element on the current stream."""
        self.event = None
        self.host_number = number
        if number.is_cuda:
            self.host_number = torch.empty_like(number, device="cpu", pin_memory=True).copy_(number, non_blocking=True)
            self.event = torch.cuda.current_stream(number.device).record_event()

    def has_arrived(self) -> bool:
        """Return True if the number has arrived."""
        return self.event is None or bool(self.event.query())

    def value(self) -> float:
        """Wait for the number."""
        if self.event is not None:
            self.event.synchronize()
        return float(self.host_number)


class DeviceArguments(dict[str, Value]):
    """Captured values and block lists as a kernel takes them.

    Streams other than the one that made them wait for that one.
    """

    def __init__(self, values: Mapping[str, Value], device: torch.device):
        super().__init__(values)
        self.visited: float | None = None  # mean number of keys of a query, once counted
        self.counting: Counting | None = None
        self.index = device.index if device.type == "cuda" else None
        self.streams: set[int] = set()  # that may use them
        if self.index is not None:
            self.streams.add(torch._C._cuda_getCurrentRawStream(self.index))
            self.event = torch.cuda.current_stream(device).record_event()

    def tensor(self, name: str) -> torch.Tensor:
        value = self[name]
        assert isinstance(value, torch.Tensor)
        return value

    def join(self) -> None:
        """Let the current stream use the values.

        A captured stream may use them without a wait: before a capture begins, the device is synchronised.
        """
        if self.index is None:
            return
        current = torch._C._cuda_getCurrentRawStream(self.index)
        if current in self.streams or capturing():
            return
        stream = torch.cuda.current_stream(self.index)
        stream.wait_event(self.event)
        for t in self.values():
            if isinstance(t, torch.Tensor):
                t.record_stream(stream)
        self.streams.add(current)


Key = tuple[Callable[..., torch.Tensor], tuple[int, ...], torch.dtype, torch.device]
_CACHE: Memo[Key, torch.Tensor] = Memo(
    "flex.constants", key="function that makes it, sizes, dtype, device", invalidation="never: nobody writes to them", limit=128
)


def constant(make: Callable[..., torch.Tensor], *sizes: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return a cached constant tensor, which must not be written to.

    It is make(*sizes, dtype=..., device=...), called as torch.ones and torch.arange are.
    """
    key = make, sizes, dtype, device
    tensor = _CACHE.get(key)
    if tensor is None:
        tensor = make(*sizes, dtype=dtype, device=device)
        if not capturing():
            _CACHE[key] = tensor
    return tensor


__all__ = ["Counting", "DeviceArguments", "constant"]
