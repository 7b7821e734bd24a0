"""Arrays of other libraries on a GPU, described as tensors without data for the checks of a call.

The descriptions have shape, strides, dtype and address.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ..checking.checked import TensorParam
from ..syntax.types import DType
from ..text.diagnostics import CuirError
from .binding import TORCH

INTERFACE = "__cuda_array_interface__"


class ArrayView(torch.Tensor):
    """An array on a GPU as a tensor without data.

    array: the described array; address: of its first element, in bytes.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    array: object
    address: int
    ordinal: int

    def data_ptr(self) -> int:
        return self.address

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cuda", self.ordinal)


def make_view(
    array: object, address: int, shape: Sequence[int], strides: Sequence[int] | None, dtype: torch.dtype, ordinal: int
) -> ArrayView:
    """Describe a foreign array as a tensor without memory, on the CUDA device `ordinal`.

    Args:
        address: of the first element.
        strides: in elements, None if the array is contiguous.
    """
    empty = (
        torch.empty(tuple(shape), dtype=dtype, device="meta")
        if strides is None
        else torch.empty_strided(tuple(shape), tuple(strides), dtype=dtype, device="meta")
    )
    view = empty.as_subclass(ArrayView)
    view.array, view.address, view.ordinal = array, address, ordinal
    return view


def view_array(param: TensorParam, array: object, ordinal: int) -> ArrayView:
    """Describe an argument that has `__cuda_array_interface__`.

    Raises CuirError for dtypes and strides that no tensor has (U404, U406).
    """
    about = getattr(array, INTERFACE)
    numpy = np.dtype(about["typestr"])
    strides = about.get("strides")
    if strides is not None:
        if any(s < 0 or s % numpy.itemsize for s in strides):
            finding = f"found strides of {list(strides)} bytes"
            raise CuirError.of(
                "U406", f"strides of `{param.name}` must be multiples of its elements, and not negative, {finding}", param.span
            )
        strides = [s // numpy.itemsize for s in strides]
    return make_view(array, int(about["data"][0]), about["shape"], strides, _torch_dtype(param, numpy), ordinal)


def numpy_dtype(dtype: DType) -> np.dtype[np.generic]:
    """Return the dtype of arrays that hold these elements.

    Their bits are unsigned integers where NumPy has no such float.
    """
    try:
        return np.dtype(dtype.torch)
    except TypeError:
        return np.dtype(f"u{dtype.itemsize}")


def _torch_dtype(param: TensorParam, numpy: np.dtype[np.generic]) -> torch.dtype:
    """Return the dtype of an array's elements.

    Bits of floats that NumPy does not have are taken for those of the parameter.
    """
    expected = param.dtype
    if numpy_dtype(expected).kind == "u" and numpy.kind in "uV" and numpy.itemsize == expected.itemsize:
        return TORCH[expected]
    try:
        return torch.from_numpy(np.empty(0, numpy)).dtype
    except TypeError:
        raise CuirError.of(
            "U404",
            f"`{param.name}` must have dtype {TORCH[expected]}, found {numpy} of NumPy",
            param.span,
            f"an array of dtype {numpy_dtype(expected)}",
        ) from None
