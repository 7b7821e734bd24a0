"""Launching a compiled kernel on torch tensors: tensor maps, arguments, grid. Uses the CUDA driver through cuda-bindings. Owns no compiling."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import replace
from types import ModuleType
from typing import Any

import torch

from ..bind import Bound, bind
from ..checked import Checked
from ..diagnostics import CuirError
from ..fold import fold
from ..nodes import Assign, Binary, Call, Expr, IfExp, Literal, Name, Unary
from ..types import BF16, F16, F32, I32
from .compile import Compiled
from .kernel import TensorMap

COPY_ALIGNMENT = 16  # bytes: base and strides of what the copy engine reads (CUDA driver API, cuTensorMapEncodeTiled)
CTYPES = {"f32": ctypes.c_float, "i32": ctypes.c_int32, "bool": ctypes.c_bool}


def driver() -> ModuleType:
    """The CUDA driver API. Raises CuirError U505 if cuda-bindings is not installed."""
    try:
        from cuda.bindings import driver as cu
    except ImportError:
        raise CuirError.of("U505", "running a kernel needs the package cuda-bindings", hint="pip install cubridge[gpu]") from None
    return cu


def need_device(checked: Checked, device: torch.device | None) -> torch.device:
    """The GPU that the tensors lie on. Raises CuirError U501 (no GPU, or not one for this code) or U502 (tensors elsewhere)."""
    if not torch.cuda.is_available():
        raise CuirError.of(
            "U501",
            "a launch needs a GPU: torch.cuda.is_available() is False",
            hint="run the program in the interpreter: cuir.run(checked, arguments)",
        )
    if device is None or device.type != "cuda":
        raise CuirError.of("U502", f"tensors must be on a GPU, found {device}", checked.origin.span, "tensor.cuda()")
    major, minor = torch.cuda.get_device_capability(device)
    if (checked.arch == "sm_90a" and (major, minor) != (9, 0)) or major < 8:
        raise CuirError.of(
            "U501", f"the kernel is for {checked.arch}, this device has compute capability {major}.{minor}", checked.origin.span
        )
    return device


def tile_count(checked: Checked, bound: Bound, scalars: Mapping[str, int | float | bool]) -> int | None:
    """How many units of work a launch has; None for a kernel without tiles."""
    if checked.tiles is None:
        return None
    env: dict[str, Any] = {**bound.dims, **scalars}
    for stmt in checked.declarations:
        if isinstance(stmt, Assign):
            env[stmt.targets[0]] = _value(stmt.value, env)
    return int(_value(checked.tiles.count, env))


def _value(expr: Expr, env: Mapping[str, Any]) -> Any:
    """The value of a scalar expression on the host."""
    if isinstance(expr, Literal):
        return expr.value
    if isinstance(expr, Name):
        return env[expr.id]

    def known(e: Expr) -> Expr:
        return Literal(_value(e, env))

    made: Expr = expr
    if isinstance(expr, Unary):
        made = replace(expr, operand=known(expr.operand))
    elif isinstance(expr, Binary):
        made = replace(expr, left=known(expr.left), right=known(expr.right))
    elif isinstance(expr, IfExp):
        return _value(expr.then if _value(expr.cond, env) else expr.other, env)
    elif isinstance(expr, Call):
        made = replace(expr, args=tuple(map(known, expr.args)))
    found = fold(made)
    if not isinstance(found, Literal):
        raise CuirError.of("L002", "the number of tiles must be computable on the host: of dims and scalars", expr.span)
    return found.value


class Launcher:
    """A compiled kernel on one device: module, function, counters, tensor maps by place and shape."""

    def __init__(self, compiled: Compiled, device: torch.device):
        self.cu, self.compiled, self.device = driver(), compiled, device
        self.checked, self.cuda = compiled.cuda.checked, compiled.cuda
        torch.zeros(1, device=device)  # the context is torch's
        with torch.cuda.device(device):
            self.module = self._ok(self.cu.cuModuleLoadData(compiled.cubin))
            self.function = self._ok(self.cu.cuModuleGetFunction(self.module, _symbol(self.cuda.name).encode()))
            limit = self.cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self._ok(self.cu.cuFuncSetAttribute(self.function, limit, self.cuda.shared_bytes))
            resident = self._ok(
                self.cu.cuOccupancyMaxActiveBlocksPerMultiprocessor(self.function, self.cuda.threads, self.cuda.shared_bytes)
            )
        if resident < 1:
            raise CuirError.of(
                "L011",
                "the kernel does not fit on a multiprocessor of this device",
                self.checked.origin.span,
                "use fewer stages, threads or registers",
            )
        self.clusters = torch.cuda.get_device_properties(device).multi_processor_count * resident // self.cuda.cluster
        self.counters: dict[int, torch.Tensor] = {}  # by stream: launches on different streams may overlap
        self.maps: dict[tuple[Any, ...], Any] = {}
        self.nothing = torch.zeros(256, dtype=torch.uint8, device=device)  # stands for tensors without elements

    def _ok(self, result: tuple[Any, ...]) -> Any:
        if int(result[0]) != 0:
            name = self.cu.cuGetErrorName(result[0])[1]
            raise CuirError.of(
                "L011",
                f"the CUDA driver refuses `{self.cuda.name}`: {name.decode() if isinstance(name, bytes) else result[0]}",
                self.checked.origin.span,
            )
        return result[1] if len(result) > 1 else None

    def launch(self, arguments: Mapping[str, Any], bound: Bound, stream: int | None = None) -> None:
        """One launch on torch's current stream; no synchronisation. Tiles of work: none means no launch."""
        cuda = self.cuda
        scalars = {s: arguments[s] for s in cuda.scalars}
        count = tile_count(self.checked, bound, scalars)
        if count is not None and count <= 0:
            return
        stream = torch.cuda.current_stream(self.device).cuda_stream if stream is None else stream
        values: list[Any] = [self._map(m, arguments[m.tensor]) for m in cuda.maps]
        for name in cuda.tensors:
            t = arguments[name]
            values.append(ctypes.c_uint64(t.data_ptr()))
            values += [ctypes.c_int64(s) for s in t.stride()[:-1]]
        if cuda.counter:
            if stream not in self.counters:
                self.counters[stream] = torch.zeros(1, dtype=torch.int32, device=self.device)
            values.append(ctypes.c_uint64(self.counters[stream].data_ptr()))
        values += [CTYPES[p.dtype.name](scalars[p.name]) for p in self.checked.scalars]
        values += [ctypes.c_int32(bound.dims[d]) for d in cuda.dims]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) if not isinstance(v, int) else v for v in values))
        config = self.cu.CUlaunchConfig()
        config.gridDimX = (
            (self.clusters if count is None else min(count, self.clusters)) * cuda.cluster if count is not None else cuda.cluster
        )
        config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1
        config.blockDimX = cuda.threads
        config.sharedMemBytes = cuda.shared_bytes
        config.hStream = stream
        config.numAttrs = 0
        if cuda.cluster > 1:
            attribute = self.cu.CUlaunchAttribute()
            attribute.id = self.cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            attribute.value.clusterDim.x, attribute.value.clusterDim.y, attribute.value.clusterDim.z = cuda.cluster, 1, 1
            config.attrs, config.numAttrs = [attribute], 1
        self._ok(self.cu.cuLaunchKernelEx(config, self.function, ctypes.addressof(pointers), 0))

    # ---- tensor maps
    def _map(self, m: TensorMap, t: torch.Tensor) -> Any:
        """A 64-byte aligned tensor map in host memory, by the tensor's place and shape."""
        key = (m.name, t.data_ptr(), tuple(t.shape), t.stride())
        if key not in self.maps:
            if len(self.maps) > 4096:
                self.maps.clear()
            self.maps[key] = self._encode(m, t)
        return self.maps[key][1]

    def _encode(self, m: TensorMap, t: torch.Tensor) -> tuple[Any, int]:
        cu, kinds = self.cu, self.cu.CUtensorMapDataType
        dtype = next(p for p in self.checked.tensors if p.name == m.tensor).dtype
        kind = {F16: kinds.CU_TENSOR_MAP_DATA_TYPE_FLOAT16, BF16: kinds.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, F32: kinds.CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
                I32: kinds.CU_TENSOR_MAP_DATA_TYPE_INT32}[dtype]  # fmt: skip
        empty = t.numel() == 0
        sizes = [1 if empty else n for n in t.shape]
        strides = [COPY_ALIGNMENT if n == 1 else s * dtype.itemsize for n, s in zip(sizes[:-1], t.stride()[:-1], strict=True)]
        rank = len(sizes)
        encoded = self._ok(cu.cuTensorMapEncodeTiled(
            kind, rank, self.nothing.data_ptr() if empty else t.data_ptr(), [cu.cuuint64_t(n) for n in reversed(sizes)],
            [cu.cuuint64_t(s) for s in reversed(strides)], [cu.cuuint32_t(n) for n in reversed(m.sizes)], [cu.cuuint32_t(1)] * rank,
            cu.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE, cu.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
            cu.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B, cu.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE))  # fmt: skip
        memory = (ctypes.c_uint8 * 256)()
        address = (ctypes.addressof(memory) + 63) // 64 * 64
        ctypes.memmove(address, encoded.getPtr(), 128)
        return memory, address


def _symbol(name: str) -> str:
    from .writer import identifier

    return identifier(name)


def check_alignment(checked: Checked, names: tuple[str, ...], arguments: Mapping[str, Any]) -> None:
    """Tensors that asynchronous copies address start at, and have strides of, multiples of 16 bytes. Raises CuirError U506."""
    for name in names:
        t = arguments[name]
        param = next(p for p in checked.tensors if p.name == name)
        if t.numel() == 0:
            continue
        if t.data_ptr() % COPY_ALIGNMENT:
            raise CuirError.of("U506", f"`{name}` must start at a multiple of {COPY_ALIGNMENT} bytes, found address % {COPY_ALIGNMENT} = {t.data_ptr() % COPY_ALIGNMENT}",
                               param.span, f"{name}.clone()")  # fmt: skip
        for size, stride in zip(t.shape[:-1], t.stride()[:-1], strict=True):
            if size > 1 and (stride * t.element_size() % COPY_ALIGNMENT or stride == 0):
                raise CuirError.of("U506", f"the strides of `{name}` must be positive multiples of {COPY_ALIGNMENT} bytes, found {list(t.stride())} elements of {t.element_size()} bytes",
                                   param.span, f"{name}.contiguous()")  # fmt: skip


def bound_arguments(checked: Checked, arguments: Mapping[str, Any]) -> Bound:
    """Checks a call's arguments against the kernel and its consts (see cuir.bind)."""
    return bind(checked.origin, arguments, dict(checked.consts))
