"""Arrays of other libraries as tensors of a call: shape, strides, dtype, address."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from cuir.arguments.aliasing import Place
from cuir.arguments.binding import TORCH, bind
from cuir.arguments.foreign_arrays import ArrayView, make_view, numpy_dtype, view_array
from cuir.arguments.requirements import require_layout
from cuir.checking.checked import Checked
from cuir.checking.checker import check
from cuir.syntax.parser import parse
from cuir.syntax.types import BF16, BOOL, DTYPES, F16, DType
from cuir.text.diagnostics import CuirError
from tests.arguments.copy_kernel import COPY


def check_copy(dtype: DType) -> Checked:
    return check(parse(COPY, "copy.cuir"), consts={"T": dtype})


def array(dtype: Any, shape: tuple[int, ...] = (8, 64), strides: tuple[int, ...] | None = None, address: int = 4096) -> Any:
    """An array of a library that is not there. strides: in bytes."""
    about = {"shape": shape, "typestr": np.dtype(dtype).str, "strides": strides, "data": (address, False), "version": 3}
    return SimpleNamespace(__cuda_array_interface__=about)


@pytest.mark.parametrize("dtype", [d for d in DTYPES.values() if d != BOOL], ids=str)
def test_an_array_of_each_dtype_is_bound_as_a_tensor(dtype: DType) -> None:
    kernel = check_copy(dtype)
    param = kernel.tensors[0]
    inputs = array(numpy_dtype(dtype))
    view = view_array(param, inputs, 0)
    assert isinstance(view, ArrayView) and view.array is inputs and view.dtype == TORCH[dtype]
    assert Place.of(view) == Place(4096, (8, 64), (64, 1), dtype.itemsize)
    bound = bind(kernel.origin, {"X": view, "Y": make_view(None, 8192, (8, 64), None, TORCH[dtype], 0)}, kernel.consts)
    assert bound.dims == {"M": 8} and bound.device == torch.device("cuda", 0)


@pytest.mark.parametrize("bits", ["u2", "V2"])
def test_bits_stand_for_floats_that_numpy_does_not_have(bits: str) -> None:
    (x, _), (half, _) = check_copy(BF16).tensors, check_copy(F16).tensors
    assert view_array(x, array(bits), 0).dtype == torch.bfloat16
    with pytest.raises(CuirError) as caught:
        bind(check_copy(F16).origin, {"X": view_array(half, array(bits), 0), "Y": view_array(half, array("f2"), 0)}, {"T": F16})
    assert {d.code for d in caught.value.diagnostics} == {"U404"}


def test_strides_of_bytes_are_those_of_elements() -> None:
    param = check_copy(F16).tensors[0]
    assert view_array(param, array("f2", strides=(160, 2)), 0).stride() == (80, 1)
    for strides in ((-128, 2), (129, 2)):
        with pytest.raises(CuirError, match="U406"):
            view_array(param, array("f2", strides=strides), 0)


def test_layouts_that_copies_cannot_reach_are_refused_as_those_of_tensors() -> None:
    kernel = check_copy(F16)
    for wrong in (array("f2", address=4098), array("f2", strides=(130, 2))):
        with pytest.raises(CuirError, match="U506"):
            require_layout(kernel, ["X"], {"X": view_array(kernel.tensors[0], wrong, 0)})


def test_a_dtype_that_no_tensor_has_is_refused_with_the_one_to_take() -> None:
    with pytest.raises(CuirError) as caught:
        view_array(check_copy(BF16).tensors[0], array("U1"), 0)
    (result,) = caught.value.diagnostics
    assert result.code == "U404" and "uint16" in (result.hint or "")
