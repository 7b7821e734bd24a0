"""What a call of attention may be given: every mistake is found before anything is traced, compiled or launched."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import torch

from ..ops.limits import runs
from ..text.diagnostics import CuirError

DTYPES = (torch.float16, torch.bfloat16)
LARGEST_HEAD_DIM = 256  # columns of a product
BACKENDS = ("auto", "interpret")
LEVELS = ("quick", "full", "off")


F = TypeVar("F", bound=Callable[..., Any])


def at_tracing(function: F) -> F:
    """torch.compile runs it when it traces a call, with the values that it has then, and takes the result for a constant; as torch.compiler.assume_constant_result
    says, which would import all of torch._dynamo."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


@at_tracing
def wrong(code: str, message: str, hint: str | None = None) -> NoReturn:
    """Raises CuirError, also from within what torch.compile traces."""
    raise CuirError.of(code, message, hint=hint)


def check_tensors(query: Any, key: Any, value: Any, enable_gqa: bool) -> None:
    """query [B, H, M, D], key and value [B or 1, HK, N, D], [..., DV] of value, f16 or bf16.

    Raises CuirError: U403 no tensor, U405 rank, U109 or U404 dtype, U407 device, U408 lengths, U110 head dim, U411 heads, U410 gradients.
    """
    given = {"query": query, "key": key, "value": value}
    for name, x in given.items():
        if not isinstance(x, torch.Tensor):
            raise CuirError.of("U403", f"`{name}` must be a tensor, found {type(x).__name__}")
        if x.layout != torch.strided or x.is_nested:
            raise CuirError.of("U403", f"`{name}` must be a dense tensor, found a nested or sparse one")
        if x.dim() != 4:
            raise CuirError.of(
                "U405",
                f"`{name}` must have 4 dims (batch, heads, length, head dim), found shape {tuple(x.shape)}",
                hint=f"{name}.unsqueeze(0)",
            )
        if x.dtype not in DTYPES:
            hint = f"{name}.to(torch.bfloat16)" + (
                ", multiplied by its scale: attention of 8-bit floats is not there" if x.dtype.itemsize == 1 else ""
            )
            raise CuirError.of("U109", f"`{name}` must be float16 or bfloat16, found {_word(x.dtype)}", hint=hint)
    for name, x in (("key", key), ("value", value)):
        if x.dtype != query.dtype:
            raise CuirError.of(
                "U404",
                f"`{name}` must have the dtype of `query`, {_word(query.dtype)}, found {_word(x.dtype)}",
                hint=f"{name}.to(query.dtype)",
            )
        if x.device != query.device:
            raise CuirError.of(
                "U407", f"`{name}` must be on the device of `query`, {query.device}, found {x.device}", hint=f"{name}.to(query.device)"
            )
        if x.shape[0] not in (1, query.shape[0]):
            raise CuirError.of(
                "U408", f"`{name}` must have the batch size of `query`, {query.shape[0]}, or 1 for all batches, found {x.shape[0]}"
            )
    if query.device.type == "meta":
        raise CuirError.of("U403", "query, key and value are on the device meta, where tensors have no numbers", hint='device="cuda"')
    head_dim = query.shape[3]
    if key.shape[3] != head_dim:
        raise CuirError.of("U408", f"query and key must have one head dim, found {head_dim} and {key.shape[3]}")
    check_head_dims(head_dim, value.shape[3])
    if key.shape[:3] != value.shape[:3]:
        raise CuirError.of("U408", f"key and value must have the same heads and length, found {tuple(key.shape)} and {tuple(value.shape)}")
    check_heads(query.shape[1], key.shape[1], enable_gqa)
    for name, x in given.items():
        check_gradient(name, x)


def check_head_dims(keys: int, values: int) -> None:
    """Raises CuirError U110."""
    for dim, of in ((keys, "query and key"), (values, "value")):
        if not isinstance(dim, (int, torch.SymInt)) or not 1 <= dim <= LARGEST_HEAD_DIM:
            raise CuirError.of("U110", f"the head dim of {of} must be from 1 to {LARGEST_HEAD_DIM}, found {dim!r}")


def check_heads(heads: int, key_heads: int, enable_gqa: bool) -> None:
    """Raises CuirError U411."""
    if heads == key_heads:
        return
    if not enable_gqa:
        raise CuirError.of(
            "U411", f"query has {heads} heads, key and value have {key_heads}", hint="enable_gqa=True shares key heads among query heads"
        )
    if key_heads == 0 or heads % key_heads:
        raise CuirError.of("U411", f"the query heads must be a multiple of the key heads, found {heads} and {key_heads}")


def check_gradient(name: str, x: torch.Tensor) -> None:
    """Raises CuirError U410."""
    if x.requires_grad and torch.is_grad_enabled():
        wrong(
            "U410",
            f"`{name}` requires a gradient, and there is no backward pass",
            hint=f"call under torch.no_grad(), or give {name}.detach()",
        )


def check_options(scale: float | None, backend: str, verify: str) -> None:
    """Raises CuirError U413."""
    if scale is not None and not (isinstance(scale, (int, float)) and not isinstance(scale, bool) and 0 < scale < math.inf):
        raise CuirError.of("U413", f"scale must be a positive number, found {scale!r}")
    if backend not in BACKENDS:
        raise CuirError.of("U413", f"backend must be {_either(BACKENDS)}, found {backend!r}")
    if verify not in LEVELS:
        raise CuirError.of("U413", f"verify must be {_either(LEVELS)}, found {verify!r}")


def capturing() -> bool:
    """Whether launches of this thread's current stream go into a CUDA graph."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def need_warm(what: str) -> None:
    """Raises CuirError U415 if a CUDA graph is being captured: what prepares a first call (compiling, block lists, checks of captured tensors) cannot be part
    of a graph, and would end the capture with an error of CUDA's or leave in it what is not made again when it is replayed."""
    if capturing():
        raise CuirError.of("U415", f"{what} is for a call before the capture of a CUDA graph: this one is the first of its kind",
                           hint="call it once with the same mods, lengths and strides before the capture")  # fmt: skip


def need_hopper(device: torch.device) -> None:
    """Raises CuirError for what is missing to compile and run a kernel on this device: U501 a Hopper GPU, U502 tensors on it, U503 nvcc, U505 cuda-bindings."""
    from ..runtime.launch import driver
    from ..runtime.nvcc import find_nvcc

    hint = 'backend="interpret" runs the kernel in the interpreter, on any machine, slowly'
    if not torch.cuda.is_available():
        raise CuirError.of("U501", "attention kernels need a Hopper GPU (H100, H200): torch.cuda.is_available() is False", hint=hint)
    if device.type != "cuda":
        raise CuirError.of("U502", f"query, key and value must be on a GPU, found {device}", hint=f"tensor.cuda(); {hint}")
    major, minor = torch.cuda.get_device_capability(device)
    if not runs((major, minor), "wgmma"):
        raise CuirError.of("U501", f"attention kernels are for Hopper (compute capability 9.0), {device} has {major}.{minor}", hint=hint)
    find_nvcc()
    driver()


def _either(words: tuple[str, ...]) -> str:
    return ", ".join(f'"{w}"' for w in words[:-1]) + f' or "{words[-1]}"'


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


__all__ = [
    "at_tracing",
    "capturing",
    "check_gradient",
    "check_head_dims",
    "check_heads",
    "check_options",
    "check_tensors",
    "need_hopper",
    "need_warm",
    "wrong",
]
