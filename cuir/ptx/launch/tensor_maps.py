"""Tensor maps as arguments of a launch: what cuTensorMapEncodeTiled takes, for a tensor of the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ...text.diagnostics import CuirError
from ..isa.tensor_boxes import SWIZZLES, TensorBoxes

NAMES = {
    **{torch.uint8: "u8", torch.int8: "u8", torch.float8_e4m3fn: "u8", torch.float8_e5m2: "u8", torch.int16: "u16"},
    **{torch.int32: "s32", torch.int64: "s64", torch.float16: "f16", torch.bfloat16: "bf16", torch.float32: "f32", torch.float64: "f64"},
}
MOST_ROWS = 256  # elements of a box along a dim
BYTES = 16  # of which strides, and the inner size of a box, are multiples


@dataclass(frozen=True)
class TensorMap:
    """A tensor, and the boxes of it that a kernel copies; dims in the tensor's order."""

    tensor: torch.Tensor
    box: tuple[int, ...]
    swizzle: int
    steps: tuple[int, ...]

    def encode(self, address: int) -> bytes:
        """Return the bytes that the kernel takes; address: of the tensor's first element."""
        t = self.tensor
        strides = tuple(s * t.element_size() for s in reversed(t.stride()[:-1]))
        forward = (tuple(t.shape), self.box, self.steps)
        sizes, box, steps = (tuple(int(n) for n in reversed(v)) for v in forward)
        return TensorBoxes(address, NAMES[t.dtype], sizes, strides, box, steps, self.swizzle).encode()


def tensor_map(
    tensor: torch.Tensor, box: Sequence[int], swizzle: int = 0, steps: Sequence[int] | None = None, interleave: int = 0
) -> TensorMap:
    """Make a tensor map for copies of boxes (cp.async.bulk.tensor), as cuTensorMapEncodeTiled does.

    Raises CuirError U401 for what the hardware refuses, and for interleaved layouts, which the machine does not know.

    Args:
        tensor: One to five dims, the last one contiguous.
        box: Elements along each dim, in the tensor's order.
        swizzle: Bytes of the pattern of shared memory: 0, 32, 64 or 128.
        steps: Distances of a box's elements along each dim, 1 if left out.
        interleave: 0.
    """
    steps = tuple(steps) if steps is not None else (1,) * len(box)
    problems = [
        (interleave != 0, "the machine does not know interleaved layouts"),
        (swizzle not in SWIZZLES, f"swizzle is one of {SWIZZLES}, found {swizzle}"),
        (tensor.dtype not in NAMES, f"tensor maps have no elements of {tensor.dtype}"),
        (
            not 1 <= tensor.ndim <= 5 or len(box) != tensor.ndim or len(steps) != tensor.ndim,
            "one to five dims, and a size of the box for each",
        ),
        (any(not 1 <= n <= MOST_ROWS for n in box), f"a box has 1 to {MOST_ROWS} elements along a dim, found {tuple(box)}"),
        (any(not 1 <= n <= 8 for n in steps), f"a step is 1 to 8, found {steps}"),
        (tensor.ndim > 0 and tensor.stride(-1) != 1 and tensor.shape[-1] > 1, "the last dim is contiguous"),
        (any(s * tensor.element_size() % BYTES for s in tensor.stride()[:-1]), f"strides are multiples of {BYTES} bytes"),
    ]
    if not any(wrong for wrong, _ in problems):
        inner = box[-1] * tensor.element_size()
        problems += [
            (inner % BYTES != 0, f"the box's last dim takes a multiple of {BYTES} bytes, found {inner}"),
            (swizzle != 0 and inner > swizzle, f"the box's last dim takes at most the {swizzle} bytes of the swizzle, found {inner}"),
        ]
    for wrong, message in problems:
        if wrong:
            raise CuirError.of("U401", message)
    return TensorMap(tensor, tuple(box), swizzle, steps)
