"""Checks of the arguments of attention calls, before anything is traced, compiled or launched."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, NoReturn, TypeGuard, TypeVar

import torch
from torch.autograd import forward_ad

from ...arguments.binding import TORCH
from ...ops.limits import TARGETS
from ...spec.dropout_hash import WORDS, draw_dropout_seed
from ...syntax.caller_values import plain_number
from ...syntax.types import BF16, F8E4M3, F8E5M2, F16, F32, DType
from ...syntax.types import DTYPES as NAMED
from ...text.diagnostics import CuirError
from .graph_errors import at_tracing
from .symbolic_sizes import are_equal, have_equal_sizes

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
LARGEST_HEAD_DIM = 576  # whose tiles fit in shared memory and registers; also of latent vectors (MLA)
WIDER_HEADS = "PyTorch's flex_attention, or heads of fewer columns"
SCALES = torch.finfo(torch.float32).tiny, 1e38  # least and largest: a scale times log2(e) is a normal number of f32
DETACHED = "call under torch.no_grad(), or with detached tensors"
NO_FLOAT64 = "no kernel computes in float64; PyTorch's flex_attention does, outside of torch.compile"
IN_TRANSFORM = (
    "the call is within torch.func (grad, jvp, vmap ...), which kernels cannot look into",
    "torch.autograd.grad for gradients, and dims of the batch for vmap",
)
KNOWN_SIGNATURES = 1024  # size limit of the cache of signatures that passed the checks
_FITTING: set[Hashable] = set()
_IS_WRAPPED: Callable[[torch.Tensor], bool] = torch._C._functorch.is_functorch_wrapped_tensor
ATTENDED = (F16, BF16, F32, F8E4M3, F8E5M2)
NARROW = (torch.float8_e4m3fn, torch.float8_e5m2)
DTYPES_OF_ATTENTION = "f16, bf16, f32 and 8-bit floats"
BACKENDS = ("auto", "interpret")
LEVELS = ("quick", "full", "off")

T = TypeVar("T")


@at_tracing
def wrong(code: str, message: str, hint: str | None = None) -> NoReturn:
    """Raise CuirError, also within code that torch.compile traces."""
    raise CuirError.of(code, message, hint=hint)


def dtype_of(dtype: torch.dtype | DType | str) -> DType:
    """Return the dtype of a kernel from PyTorch's, ours, or a name.

    Raises CuirError U109.
    """
    dtypes: dict[object, DType] = {t: d for d, t in TORCH.items()} | dict(NAMED) | {d: d for d in NAMED.values()}
    result = dtypes.get(dtype)
    if result not in ATTENDED:
        hint = f"dtype=torch.float32; {NO_FLOAT64}" if dtype is torch.float64 else None
        raise CuirError.of("U109", f"attention kernels are for {DTYPES_OF_ATTENTION}, found `{dtype}`", hint=hint)
    assert result is not None
    return result


def check_ranks(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
    """Raise CuirError U403 for no dense tensor, U405 for a wrong rank."""
    for name, x in (("query", query), ("key", key), ("value", value)):
        if not isinstance(x, torch.Tensor):
            wrong("U403", f"`{name}` must be a tensor, found {type(x).__name__}")
        if x.layout != torch.strided or x.is_nested:
            jagged = "torch.nested.nested_tensor(tensors, layout=torch.jagged), for all three"
            wrong("U403", f"`{name}` must be a dense tensor, found a nested or sparse one", jagged if x.is_nested else f"{name}.to_dense()")
        if x.dim() != 4:
            wrong(
                "U405",
                f"`{name}` must have 4 dims (batch, heads, length, head dim), found shape {tuple(x.shape)}",
                f"{name}.unsqueeze(0)",
            )


def check_tensors(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, enable_gqa: bool, dtypes: tuple[torch.dtype, ...] = DTYPES
) -> None:
    """Check query [B, H, M, D], key [B or 1, HK, N, D] and value [B or 1, HK, N, DV], of one of some dtypes.

    Raises CuirError: U403 no tensor, U405 rank, U109 or U404 dtype, U407 device, U408 lengths, U110 head dim, U411
    heads.
    """
    signature = _signature(query, key, value, enable_gqa)
    if signature is None or signature not in _FITTING or (dtypes is not DTYPES) or torch.jit.is_tracing():
        _check_each(query, key, value, enable_gqa, dtypes)
        if signature is not None and dtypes is DTYPES:
            if len(_FITTING) >= KNOWN_SIGNATURES:
                _FITTING.clear()
            _FITTING.add(signature)
    elif stand_for_others((query, key, value)):
        for name, x in (("query", query), ("key", key), ("value", value)):
            check_numbers(name, x)


def _signature(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, enable_gqa: bool) -> Hashable:
    """Return the properties that `check_tensors` depends on, without wrappers.

    None where a size may be a symbol.
    """
    plain = type(query) is type(key) is type(value) is torch.Tensor and not (query.is_nested or key.is_nested or value.is_nested)
    if not plain or torch.compiler.is_compiling():
        return None
    return (
        query.shape,
        key.shape,
        value.shape,
        query.dtype,
        key.dtype,
        value.dtype,
        query.device,
        key.device,
        value.device,
        query.layout,
        key.layout,
        value.layout,
        enable_gqa is True,
    )


def _check_each(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, enable_gqa: bool, dtypes: tuple[torch.dtype, ...]) -> None:
    check_ranks(query, key, value)
    if torch.jit.is_tracing():
        wrong(
            "U403", "the call is within torch.jit.trace, which records operations of PyTorch alone", "torch.export.export, or torch.compile"
        )
    tensors = {"query": query, "key": key, "value": value}
    for name, x in tensors.items():
        if x.dtype not in dtypes:
            if dtypes is NARROW:
                wrong("U109", f"scales are for 8-bit floats, found `{name}` of {word(x.dtype)}", "cuir.quantize_fp8 makes them")
            hint = f"{name}.to(torch.bfloat16)"
            if x.dtype == torch.float64:
                hint = f"{name}.float(); {NO_FLOAT64}"
            elif x.dtype.itemsize == 1:
                hint = "q_scale=, k_scale= and v_scale= for 8-bit floats"
            raise CuirError.of("U109", f"`{name}` must be float16, bfloat16 or float32, found {word(x.dtype)}", hint=hint)
    for name, x in (("key", key), ("value", value)):
        if x.dtype != query.dtype:
            raise CuirError.of(
                "U404",
                f"`{name}` must have the dtype of `query`, {word(query.dtype)}, found {word(x.dtype)}",
                hint=f"{name}.to(query.dtype)",
            )
        if x.device != query.device:
            raise CuirError.of(
                "U407", f"`{name}` must be on the device of `query`, {query.device}, found {x.device}", hint=f"{name}.to(query.device)"
            )
        if not are_equal(x.shape[0], query.shape[0]) and not are_equal(x.shape[0], 1):
            raise CuirError.of(
                "U408", f"`{name}` must have the batch size of `query`, {query.shape[0]}, or 1 for all batches, found {x.shape[0]}"
            )
    for name, x in tensors.items():
        check_numbers(name, x)
    head_dim = query.shape[3]
    if not are_equal(key.shape[3], head_dim):
        raise CuirError.of("U408", f"query and key must have one head dim, found {head_dim} and {key.shape[3]}")
    check_head_dims(head_dim, value.shape[3])
    if not have_equal_sizes(key.shape[:3], value.shape[:3]):
        raise CuirError.of("U408", f"key and value must have the same heads and length, found {tuple(key.shape)} and {tuple(value.shape)}")
    check_heads(query.shape[1], key.shape[1], enable_gqa)


def parts_for(dtype: torch.dtype) -> int:
    """Return the number of TF32 parts into which a kernel splits float32 operands.

    PyTorch's current settings decide: 2 has the accuracy of float32; 1 where the user allows TF32 in products; 0 for
    other dtypes, whose products are exact.
    """
    if dtype != torch.float32:
        return 0
    try:
        return 2 if torch.get_float32_matmul_precision() == "highest" else 1
    except RuntimeError:  # set by backend, not as a whole
        return 1 if torch.backends.cuda.matmul.fp32_precision == "tf32" else 2


def precision(dtype: torch.dtype) -> tuple[tuple[str, int], ...]:
    """Return the const parameter of a kernel's float32 products.

    PyTorch's current settings decide; there is none for other dtypes.
    """
    return (("PARTS", parts_for(dtype)),) if dtype == torch.float32 else ()


def check_head_dims(keys: int, values: int) -> None:
    """Raise CuirError U110 for a head dim that no kernel takes."""
    for dim, of in ((keys, "query and key"), (values, "value")):
        if not isinstance(dim, (int, torch.SymInt)) or not 1 <= dim <= LARGEST_HEAD_DIM:
            raise CuirError.of("U110", f"the head dim of {of} must be from 1 to {LARGEST_HEAD_DIM}, found {dim!r}", hint=WIDER_HEADS)


def check_numbers(name: str, x: torch.Tensor) -> None:
    """Raise CuirError U403 for a tensor without memory of its own."""
    check_wrapped(f"`{name}`", x)


def stand_for_others(tensors: Sequence[torch.Tensor]) -> bool:
    """Return True if a tensor may be a wrapper, as of a transform, which `check_wrapped` may refuse.

    Calls with new mods run this.
    """
    return forward_ad._current_level >= 0 or any(map(_IS_WRAPPED, tensors))


def check_wrapped(description: str, x: torch.Tensor) -> None:
    """Raise CuirError U403 for a functorch wrapper, U410 for a tensor that has a tangent."""
    if torch.compiler.is_compiling():
        return
    if _IS_WRAPPED(x):
        message, hint = IN_TRANSFORM
        wrong("U403", message.replace("the call", description), hint)
    if forward_ad._current_level >= 0 and forward_ad.unpack_dual(x).tangent is not None:
        wrong(
            "U410", f"{description} has a tangent, and attention has no derivative in forward mode", "torch.autograd.grad, by reverse mode"
        )


def check_device(name: str, x: torch.Tensor, q: torch.Tensor) -> None:
    """Raise CuirError U403 for a tensor without memory of its own, U407 for one not on q's device."""
    check_numbers(name, x)
    if x.device != q.device:
        wrong("U407", f"`{name}` must be on the device of `q`, {q.device}, found {x.device}", f"{name}.to(q.device)")


def check_heads(heads: int, key_heads: int, enable_gqa: bool) -> None:
    """Raise CuirError U411 for numbers of heads that do not fit."""
    if are_equal(heads, key_heads):
        return
    if not enable_gqa:
        raise CuirError.of(
            "U411", f"query has {heads} heads, key and value have {key_heads}", hint="enable_gqa=True shares key heads among query heads"
        )
    if key_heads == 0 or heads % key_heads:
        raise CuirError.of("U411", f"the query heads must be a multiple of the key heads, found {heads} and {key_heads}")


def check_gradient(name: str, x: torch.Tensor) -> None:
    """Refuse an argument or captured tensor of a call over a cache that requires a gradient.

    Raises CuirError U410.
    """
    if x.requires_grad and torch.is_grad_enabled():
        wrong(
            "U410",
            f"`{name}` requires a gradient, and attention over a cache has none",
            f"call under torch.no_grad(), or give {name}.detach()",
        )


def check_differentiable(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, normalize: str, captured: Sequence[torch.Tensor] = ()
) -> None:
    """Raise CuirError X109 for a call that asks for gradients which do not exist."""
    if torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value, *captured)):
        need_gradients(normalize)


def need_gradients(normalize: str) -> None:
    """Raise CuirError X109 for weights without a backward pass."""
    if normalize != "softmax":
        wrong("X109", f"there are gradients of a softmax, found normalize={normalize!r}", DETACHED)


def check_options(scale: float | None, backend: str, verify: str) -> None:
    """Raise CuirError U413 for unusable options."""
    if scale is not None and not (_is_number(scale) and 0 < scale < math.inf):
        hint = "scale.item()" if isinstance(scale, torch.Tensor) and scale.numel() == 1 else None
        raise CuirError.of("U413", f"scale must be a finite number, found {scale!r}", hint=hint)
    if scale is not None and not SCALES[0] <= scale <= SCALES[1]:
        raise CuirError.of("U413", f"scale must be from {SCALES[0]:.2g} to {SCALES[1]:.0e}, found {scale!r}")
    if backend not in BACKENDS:
        raise CuirError.of("U413", f"backend must be {_format_alternatives(BACKENDS)}, found {backend!r}")
    if verify not in LEVELS:
        raise CuirError.of("U413", f"verify must be {_format_alternatives(LEVELS)}, found {verify!r}")


def _is_number(x: object) -> TypeGuard[int | float]:
    return isinstance(x, (int, float)) and not isinstance(x, bool)


def plain_integer(x: object) -> Any:  # of the type that the caller declares
    """Return an integer (NumPy's, an object with `__index__`) as a Python int.

    Anything else is returned unchanged, tensors included: reading one would wait for its device.
    """
    if x is None or isinstance(x, (int, torch.SymInt, torch.Tensor)) or not hasattr(x, "__index__"):
        return x
    try:
        return operator.index(x)
    except TypeError:  # an array of several
        return x


def make_scale_positive(query: torch.Tensor, scale: T) -> tuple[torch.Tensor, T | float]:
    """Return another query and scale of the same scores where scale is not positive or is 0 in float32.

    Kernels take the score of the largest product for the largest score. Unusable arguments are returned unchanged.
    """
    if (
        not _is_number(scale)
        or scale >= SCALES[0]
        or not -SCALES[1] <= scale
        or not isinstance(query, torch.Tensor)
        or query.dtype not in DTYPES
    ):
        return query, scale
    return (-query, -scale) if scale <= -SCALES[0] else (query * 0.0, 1.0)


def check_sink(sink: object, heads: int) -> None:
    """Check that a sink that is a tensor has a logit for each query head.

    Raises CuirError U408.
    """
    if isinstance(sink, torch.Tensor) and sink.shape != (heads,):
        wrong("U408", f"`sink` has a logit for each of {heads} query heads, found {list(sink.shape)}")


class Seeded(NamedTuple):
    """Dropout of a call: its probability, and the seed of its mask."""

    p: float
    seed: torch.Tensor


def prepare_dropout(p: object, seed: torch.Tensor | None, query: torch.Tensor) -> Seeded | None:
    """Check the options of dropout, and draw a seed by default; None where nothing is dropped.

    Raises CuirError U407, U413.
    """
    p = plain_number(p)
    if not _is_number(p) or not 0.0 <= p <= 1.0:
        hint = "dropout_p.item()" if isinstance(p, torch.Tensor) and p.numel() == 1 else None
        wrong("U413", f"dropout_p must be a probability, a number from 0 to 1, found {p!r}", hint)
    if seed is not None and (not isinstance(seed, torch.Tensor) or seed.dtype != torch.int32 or seed.shape != (WORDS,)):
        description = f"{word(seed.dtype)} {list(seed.shape)}" if isinstance(seed, torch.Tensor) else repr(seed)
        wrong(
            "U413",
            f"dropout_seed must be a tensor of two words, int32 [{WORDS}], found {description}",
            "cuir.draw_dropout_seed(query.device)",
        )
    if p == 0.0 or not isinstance(query, torch.Tensor):
        return None
    if seed is not None and seed.device != query.device:
        wrong(
            "U407",
            f"dropout_seed must be on the device of `query`, {query.device}, found {seed.device}",
            "cuir.draw_dropout_seed(query.device)",
        )
    if query.device.type == "meta":
        return None
    return Seeded(float(p), draw_dropout_seed(query.device) if seed is None else seed.contiguous())


_STREAM_IS_CAPTURED: Callable[[], bool] = getattr(
    torch._C, "_cuda_isCurrentStreamCapturing", torch.cuda.is_current_stream_capturing
)  # without the Python function around it


def capturing() -> bool:
    """Return True if launches on this thread's current stream go into a CUDA graph."""
    return torch.cuda.is_initialized() and _STREAM_IS_CAPTURED()


def need_warm(action: str) -> None:
    """Raise CuirError U415 if a CUDA graph is being captured.

    Preparations of a first call (compiling, block lists, checks of captured tensors) cannot be part of a graph: they
    would end the capture with an error of CUDA's, or leave in it what a replay does not make again.
    """
    if capturing():
        raise CuirError.of(
            "U415",
            f"{action} is for a call before the capture of a CUDA graph: this one is the first of its kind",
            hint="call it once with the same mods, lengths and strides before the capture",
        )


def need_gpu(device: torch.device, arch: str) -> None:
    """Raise CuirError for what is missing to compile and run a kernel of an architecture on this device.

    U501 a GPU that runs it, U502 tensors on it, U503 nvcc or NVRTC, U505 cuda-bindings.
    """
    from ...runtime.driver_api import driver
    from ...runtime.nvcc import find_compiler

    hint = 'backend="interpret" runs the kernel in the interpreter, on any machine, slowly'
    if not torch.cuda.is_available():
        raise CuirError.of("U501", "attention kernels need a GPU: torch.cuda.is_available() is False", hint=hint)
    if device.type != "cuda":
        raise CuirError.of("U502", f"query, key and value must be on a GPU, found {device}", hint=f"tensor.cuda(); {hint}")
    major, minor = torch.cuda.get_device_capability(device)
    if not TARGETS[arch].runs_on((major, minor)):
        raise CuirError.of("U501", f"this attention kernel is for {arch}, {device} has compute capability {major}.{minor}", hint=hint)
    find_compiler()
    driver()


def _format_alternatives(words: tuple[str, ...]) -> str:
    return ", ".join(f'"{w}"' for w in words[:-1]) + f' or "{words[-1]}"'


def check_dense(name: str, x: torch.Tensor) -> None:
    """Raise CuirError U403 for a nested or sparse tensor."""
    if x.layout != torch.strided or x.is_nested:
        wrong(
            "U403",
            f"`{name}` must be a dense tensor, found {'a nested one' if x.is_nested else f'one of layout {x.layout}'}",
            f"{name}.to_dense()",
        )


def word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


__all__ = [
    "Seeded",
    "capturing",
    "check_dense",
    "check_device",
    "check_differentiable",
    "check_gradient",
    "check_head_dims",
    "check_heads",
    "check_numbers",
    "check_options",
    "check_ranks",
    "check_tensors",
    "check_wrapped",
    "make_scale_positive",
    "need_gpu",
    "need_gradients",
    "need_warm",
    "parts_for",
    "plain_integer",
    "prepare_dropout",
    "stand_for_others",
    "word",
    "wrong",
]
