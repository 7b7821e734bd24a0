"""Names for annotations in decorated Python functions, for editors and linters.

The parser reads text and never looks here.
"""

from __future__ import annotations

from .types import BF16, F16, F32, I32

f16, bf16, f32, i32 = F16, BF16, F32, I32


class _Shaped:
    """Base of annotations such as `Global[f16, B, H, M, D]`.

    Kept as text by `from __future__ import annotations`, harmless if evaluated.
    """

    def __class_getitem__(cls, item: object) -> type:
        return cls


class Global(_Shaped):
    """A tensor in device memory."""


class Scratch(_Shaped):
    """A tensor in device memory that a launch allocates."""


class Shared(_Shaped):
    """A view of shared memory."""


class Tile(_Shaped):
    """A tile in registers."""


class const:  # noqa: N801 - a word of the language
    """A parameter known when the kernel is specialised."""
