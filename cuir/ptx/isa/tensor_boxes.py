"""Boxes of tensors, as tensor maps describe them: which elements they hold, and where those lie in shared memory."""

from __future__ import annotations

import functools
import struct
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from .instruction_table import Array, UnknownForm, get_width

MAGIC = b"cuirmap1"
MAP_BYTES = 128
SWIZZLES = (0, 32, 64, 128)
FORM = struct.Struct("<8sQ5Q4Q5H5BBBB")
CHUNK, CHUNKS = 16, "b128"  # bytes that no swizzle divides, and boxes of such elements
TYPES = ("u8", "u16", "u32", "s32", "u64", "s64", "f16", "f32", "f64", "bf16", "tf32")
TILED = {**dict(enumerate(TYPES[:-1])), 11: "tf32"}  # by the numbers of cuTensorMapEncodeTiled


class Field(NamedTuple):
    """Field of a map that tensormap.replace sets: where it begins among the numbers of a map, and how many it has."""

    first: int
    length: int = 1


FIELDS = {
    "global_address": Field(1),
    "global_dim": Field(2, 5),
    "global_stride": Field(7, 4),
    "box_dim": Field(11, 5),
    "element_stride": Field(16, 5),
    "rank": Field(21),
    "elemtype": Field(22),
    "swizzle_mode": Field(23),
    **dict.fromkeys(("interleave_layout", "swizzle_atomicity", "fill_mode"), Field(0)),  # which have one value here
}
ELEMENTS = {**{n: n for n in range(8)}, 9: 8, 10: 9}  # places in TYPES, by the numbers of the manual


@dataclass(frozen=True)
class TensorBoxes:
    """What a tensor map holds, in the machine's own encoding; the innermost dim comes first.

    Attributes:
        address: Of the tensor's first element.
        strides: Bytes from one index to the next, for the dims behind the first.
        steps: Distances of a box's elements in the tensor, in elements.
        swizzle: Bytes of the pattern: 32, 64, 128, or 0 for none.
    """

    address: int
    type: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    steps: tuple[int, ...]
    swizzle: int

    @property
    def element(self) -> int:
        """Bytes of an element."""
        return CHUNK if self.type == CHUNKS else get_width(self.type) // 8

    @property
    def lengths(self) -> tuple[int, ...]:
        """Elements that are copied along each dim."""
        return tuple(-(-n // s) for n, s in zip(self.box, self.steps))

    def encode(self) -> bytes:
        """Return the bytes that a kernel takes for the map."""
        rank = len(self.sizes)
        rows = [(*v, *[1] * (n - len(v))) for v, n in ((self.sizes, 5), (self.strides, 4), (self.box, 5), (self.steps, 5))]
        data = FORM.pack(
            MAGIC, self.address, *rows[0], *rows[1], *rows[2], *rows[3], rank, TYPES.index(self.type), SWIZZLES.index(self.swizzle)
        )
        return data.ljust(MAP_BYTES, b"\0")


@functools.lru_cache(256)
def decode_boxes(data: bytes) -> TensorBoxes | None:
    """Return what the bytes of a map say; None if they are none."""
    magic, address, *numbers = FORM.unpack(data[: FORM.size])
    if magic != MAGIC:
        return None
    sizes, strides, box, steps = (tuple(numbers[a:b]) for a, b in ((0, 5), (5, 9), (9, 14), (14, 19)))
    rank, kind, swizzle = numbers[19:]
    return TensorBoxes(address, TYPES[kind], sizes[:rank], strides[: rank - 1], box[:rank], steps[:rank], SWIZZLES[swizzle])


@functools.lru_cache(256)
def widen(boxes: TensorBoxes) -> TensorBoxes:
    """Return the same boxes with elements of 16 bytes, if such elements make them up."""
    per = CHUNK // boxes.element
    uneven = boxes.sizes[0] % per or boxes.box[0] % per or any(n % CHUNK for n in (boxes.address, *boxes.strides))
    if uneven or boxes.steps[0] != 1:
        return boxes
    return replace(boxes, type=CHUNKS, sizes=(boxes.sizes[0] // per, *boxes.sizes[1:]), box=(boxes.box[0] // per, *boxes.box[1:]))


def change_map(data: bytes, field: str, index: int, value: int) -> bytes | None:
    """Return the bytes of a map with another value of a field; None if they are none.

    Raises UnknownForm for a value that the machine does not have.
    """
    numbers = list(FORM.unpack(data[: FORM.size]))
    if numbers[0] != MAGIC:
        return None
    first = FIELDS[field].first
    fits = value == 0 if first == 0 else value in ELEMENTS if field == "elemtype" else field != "swizzle_mode" or value < len(SWIZZLES)
    if not fits:
        raise UnknownForm(f"{value} as .{field} of a tensor map")
    if first:
        numbers[first + index] = value + 1 if field == "rank" else ELEMENTS[value] if field == "elemtype" else value
    return FORM.pack(*numbers).ljust(MAP_BYTES, b"\0")


def find_elements(boxes: TensorBoxes, start: tuple[int, ...]) -> tuple[Array, Array]:
    """Return the offset in bytes of each element of a box from the tensor's address, and which lie in the tensor."""
    bounds = zip(start, boxes.sizes, boxes.lengths, boxes.steps)
    if any(start) and all(first >= 0 and first + (length - 1) * step < size for first, size, length, step in bounds):
        offsets, inside = _find_first(boxes)
        return offsets + sum(first * stride for first, stride in zip(start, (boxes.element, *boxes.strides))), inside
    return _find_all(boxes, start)


@functools.lru_cache(256)
def _find_first(boxes: TensorBoxes) -> tuple[Array, Array]:
    """Return the elements of the first box, as if all of them lay in the tensor."""
    offsets, inside = _find_all(boxes, (0,) * len(boxes.sizes))
    return offsets, np.ones_like(inside)


@functools.lru_cache(512)
def _find_all(boxes: TensorBoxes, start: tuple[int, ...]) -> tuple[Array, Array]:
    """Return the elements of a box, and which lie in the tensor."""
    offsets, inside = np.zeros(1, np.int64), np.ones(1, np.bool_)
    for first, size, length, step, stride in zip(start, boxes.sizes, boxes.lengths, boxes.steps, (boxes.element, *boxes.strides)):
        index = first + np.arange(length) * step
        offsets = (offsets[None] + (index * stride)[:, None]).reshape(-1)
        inside = (inside[None] & ((index >= 0) & (index < size))[:, None]).reshape(-1)
    return offsets, inside


def swizzle_addresses(addresses: Array, swizzle: int) -> Array:
    """Return addresses in shared memory with the 16-byte chunks of rows exchanged."""
    if not swizzle:
        return addresses
    return addresses ^ ((addresses >> 7 & (swizzle // 16 - 1)) << 4)
