"""Expert CUDA source with its launch description: read, compiled, launched on torch tensors.

A description is a TOML file `NAME.launch.toml` beside `NAME.cu`: which specification the kernel computes, how to
compile it, and its grid and arguments. `corpus/cuda` holds two. Numbers are written as expressions (see whole_numbers)
of the lengths B, H, HK, M, N, D, of SMS and of the source's constants.
"""

from __future__ import annotations

import ctypes
import math
import subprocess
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from cuir.runtime.driver_api import driver
from cuir.runtime.nvcc import find_nvcc, include_dir, target
from cuir.text.diagnostics import CuirError

from .whole_numbers import evaluate

FLAGS = ("-O3", "-std=c++17", "--expt-relaxed-constexpr", "-lineinfo", "-diag-suppress=780")
KEYS = ("source", "spec", "kernel", "arch", "grid", "threads", "shared", "arguments")
OPTIONAL_KEYS = ("defines", "contiguous", "include", "flags", "instantiate", "cluster")
TENSORS = ("Q", "K", "V", "O", "LSE")
KINDS = ("map", "pointer", "i32", "scale")
SUFFIX = ".launch.toml"


@dataclass(frozen=True)
class ExpertSource:
    """Launch description of an expert CUDA source.

    Attributes:
        path: Path of the CUDA text.
        spec: Name of the specification that it computes.
        grid: Expression, as are `threads`, `shared` (bytes) and `defines`.
        include: Folders of headers.
        flags: Further flags of nvcc.
        instantiate: Text to append to the source.
        cluster: CTAs in x, y, z.
    """

    path: Path
    spec: str
    kernel: str
    arch: str
    grid: str
    threads: str
    shared: str
    arguments: tuple[Mapping[str, str], ...]
    defines: Mapping[str, str] = field(default_factory=dict)
    contiguous: bool = False
    include: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    instantiate: str = ""
    cluster: tuple[int, int, int] | None = None

    @property
    def text(self) -> str:
        """CUDA text."""
        return self.path.read_text(encoding="utf-8")

    def constants(self, head_dim: int) -> dict[str, int]:
        """Return the whole-number constants of the source compiled for a head dim."""
        from .cuda_text import constants

        return constants(self.text, self.compute_macros(head_dim))

    def compute_macros(self, head_dim: int) -> dict[str, int]:
        """Return the macros that a head dim sets."""
        return {name: _number(text, {"D": head_dim}, f"defines.{name}", self.path) for name, text in self.defines.items()}

    def number_of_threads(self, head_dim: int) -> int | None:
        """Return the threads of a CTA, None if the source's constants do not determine them."""
        return evaluate(self.threads, {**self.constants(head_dim), "D": head_dim})


def description_of(source: Path) -> Path:
    """Return the path of the launch description of a CUDA source."""
    return source.with_name(source.name.removesuffix(".cu") + SUFFIX)


def read_expert_source(path: Path) -> ExpertSource:
    """Read a source from its launch description, or from the source beside its description.

    Raises CuirError O120.
    """
    path_of_description = description_of(path) if path.suffix == ".cu" else path
    try:
        description = tomllib.loads(path_of_description.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise CuirError.of(
            "O120", f"`{path_of_description}` must hold a launch description: {error}", hint=f"corpus/cuda has two; keys: {', '.join(KEYS)}"
        ) from None
    missing = [key for key in KEYS if key not in description]
    unknown = sorted(description.keys() - {*KEYS, *OPTIONAL_KEYS})
    if missing or unknown:
        raise CuirError.of(
            "O120",
            f"`{path_of_description}` must have the keys {', '.join(KEYS)}, found "
            + " and ".join([*(["no " + ", ".join(missing)] if missing else []), *(["unknown " + ", ".join(unknown)] if unknown else [])]),
        )
    for argument in description["arguments"]:
        kind = next(iter(argument), "")
        if kind not in KINDS or (kind in ("map", "pointer") and argument[kind] not in TENSORS):
            raise CuirError.of(
                "O120",
                f"`{path_of_description}`: an argument is {{map = TENSOR, rows = ...}}, {{pointer = TENSOR}}, {{i32 = ...}} or {{scale = 'f32'}}, found {argument}",
                hint=f"tensors: {', '.join(TENSORS)}",
            )
    values = {key: description[key] for key in KEYS if key not in ("source", "arguments")}
    return ExpertSource(
        path_of_description.with_name(description["source"]),
        **values,
        arguments=tuple(description["arguments"]),
        defines=description.get("defines", {}),
        contiguous=bool(description.get("contiguous", False)),
        include=tuple(str(path_of_description.parent / f) for f in description.get("include", ())),
        flags=tuple(description.get("flags", ())),
        instantiate=str(description.get("instantiate", "")),
        cluster=_cluster(path_of_description, description.get("cluster")),
    )


def _cluster(path: Path, value: Any) -> tuple[int, int, int] | None:
    """Return the sides of a cluster from the description. Raises CuirError O120."""
    if value is None:
        return None
    sides = sides_of(value if isinstance(value, list) else [value])
    if sides is None:
        raise CuirError.of("O120", f"`{path}`: cluster is a number of CTAs, or up to three of them, along x, y and z, found {value}")
    return sides


def sides_of(sizes: Sequence[Any]) -> tuple[int, int, int] | None:
    """Return the sides of a cluster, where y and z are optional; None if the sizes are invalid."""
    if not 1 <= len(sizes) <= 3 or not all(type(n) is int and n >= 1 for n in sizes) or math.prod(sizes) > 16:
        return None
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z


def compile_source(source: ExpertSource, head_dim: int) -> tuple[bytes, str]:
    """Return the machine code for a head dim, and the output of nvcc.

    Raises CuirError U503, U504 (no compiler) or O121 (it refuses the source).
    """
    form, arch, codes = target(source.arch)
    defines = [f"-D{name}={value}" for name, value in source.compute_macros(head_dim).items()]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / f"kernel.{form}"
        folders = [x for i in source.include for x in ("-I", i)]
        text = source.path
        if source.instantiate:
            text = Path(folder) / source.path.name
            text.write_text(f'#include "{source.path.resolve()}"\n{source.instantiate}\n', encoding="utf-8")
        command = [
            find_nvcc(),
            f"-{form}",
            f"-arch={arch}",
            codes,
            *FLAGS,
            *source.flags,
            *defines,
            *folders,
            "-I",
            include_dir(),
            "-o",
            str(out),
            str(text),
        ]
        process = subprocess.run(command, capture_output=True, text=True, check=False)
        output = (process.stdout + process.stderr).strip()
        if process.returncode:
            first = next((line for line in output.splitlines() if "error" in line), output[-300:])
            raise CuirError.of("O121", f"nvcc refuses `{source.path}` for head dim {head_dim}: {first}")
        return out.read_bytes(), output


class SourceKernel:
    """Compiled source on the current GPU; calls launch it on torch's current stream."""

    def __init__(self, source: ExpertSource, head_dim: int):
        self.cu, self.source, self.head_dim = driver(), source, head_dim
        image, _ = compile_source(source, head_dim)
        self.constants = source.constants(head_dim)
        torch.zeros(1, device="cuda")  # torch's context is the one to load into
        self.module = self._ok(self.cu.cuModuleLoadData(image))
        self.function = self._ok(self.cu.cuModuleGetFunction(self.module, source.kernel.encode()))
        self.shared = self._value(source.shared, {"D": head_dim}, "shared")
        self.threads = self._value(source.threads, {"D": head_dim}, "threads")
        limit = self.cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        self._ok(self.cu.cuFuncSetAttribute(self.function, limit, self.shared))
        self.placeholder = torch.zeros(64, device="cuda")  # stands for tensors without elements

    def __call__(self, Q: torch.Tensor, K: torch.Tensor, V: torch.Tensor, O: torch.Tensor, LSE: torch.Tensor, scale: float) -> None:
        """Run the kernel; it writes O and LSE.

        Q, O [B, H, M, D], K, V [B, HK, N, D] f16, LSE [B, H, M] f32 contiguous, all on the GPU.
        """
        B, H, M, D = Q.shape
        lengths = {"B": B, "H": H, "HK": K.shape[1], "M": M, "N": K.shape[2], "D": D}
        lengths["SMS"] = torch.cuda.get_device_properties(Q.device).multi_processor_count
        grid = self._value(self.source.grid, lengths, "grid")
        if grid == 0:
            return
        tensors = {"Q": Q, "K": K, "V": V, "O": O, "LSE": LSE}
        used = {name: t.contiguous() if self.source.contiguous else t for name, t in tensors.items()}
        memory: list[Any] = [self._argument(a, used, lengths, scale) for a in self.source.arguments]
        pointers = (ctypes.c_void_p * len(memory))(*[m if isinstance(m, int) else ctypes.addressof(m) for m, _ in memory])
        stream = torch.cuda.current_stream().cuda_stream
        self._ok(self.cu.cuLaunchKernel(self.function, grid, 1, 1, self.threads, 1, 1, self.shared, stream, ctypes.addressof(pointers), 0))
        for name in ("O", "LSE"):
            if used[name].data_ptr() != tensors[name].data_ptr():
                tensors[name].copy_(used[name])
        torch.cuda.current_stream().synchronize()  # the copies and maps above live until the kernel has read them

    def _argument(
        self, argument: Mapping[str, str], tensors: Mapping[str, torch.Tensor], lengths: Mapping[str, int], scale: float
    ) -> tuple[Any, Any]:
        """Return where an argument's value lies (or the object that holds it), and what keeps it alive."""
        if "map" in argument:
            return self._map(tensors[argument["map"]], self._value(argument["rows"], lengths, "rows"))
        if "pointer" in argument:
            t = tensors[argument["pointer"]]
            return ctypes.c_uint64(t.data_ptr() if t.numel() else self.placeholder.data_ptr()), t
        if "i32" in argument:
            return ctypes.c_int32(self._value(argument["i32"], lengths, "i32")), None
        return ctypes.c_float(scale), None

    def _map(self, t: torch.Tensor, rows: int) -> tuple[int, Any]:
        """Return a tensor map over [B, H, S, D] with any outer strides.

        Its box has 64 columns of `rows` rows, 128-byte swizzle, zeros outside.
        """
        cu = self.cu
        empty = t.numel() == 0
        sizes = [1 if empty else n for n in reversed(t.shape)]
        strides = [16 if n == 1 else s * t.element_size() for n, s in zip(sizes[1:], reversed(t.stride()[:-1]), strict=True)]
        encoded = self._ok(
            cu.cuTensorMapEncodeTiled(
                cu.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
                4,
                self.placeholder.data_ptr() if empty else t.data_ptr(),
                [cu.cuuint64_t(n) for n in sizes],
                [cu.cuuint64_t(s) for s in strides],
                [cu.cuuint32_t(n) for n in (64, rows, 1, 1)],
                [cu.cuuint32_t(1)] * 4,
                cu.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
                cu.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
                cu.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                cu.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        )
        memory = (ctypes.c_uint8 * 256)()
        address = (ctypes.addressof(memory) + 63) // 64 * 64
        ctypes.memmove(address, encoded.getPtr(), 128)
        return address, memory

    def _value(self, text: str, lengths: Mapping[str, int], key: str) -> int:
        """Evaluate an expression of the description."""
        return _number(text, {**self.constants, **lengths}, key, self.source.path)

    def _ok(self, result: tuple[Any, ...]) -> Any:
        """Return the result of a driver call. Raises CuirError O121 if it failed."""
        if int(result[0]) != 0:
            name = self.cu.cuGetErrorName(result[0])[1]
            raise CuirError.of(
                "O121",
                f"the CUDA driver refuses `{self.source.kernel}` of {self.source.path.name}: {name.decode() if isinstance(name, bytes) else result[0]}",
            )
        return result[1] if len(result) > 1 else None


def _number(text: object, names: Mapping[str, int], key: str, path: Path) -> int:
    """Evaluate an expression. Raises CuirError O120 if it is no whole number."""
    value = text if isinstance(text, int) else evaluate(str(text), names)
    if value is None:
        raise CuirError.of(
            "O120",
            f"`{key}` of the launch of `{path.name}` must be a whole-number expression, found `{text}`",
            hint=f"known names: {', '.join(sorted(names)[:30])}",
        )
    return value
