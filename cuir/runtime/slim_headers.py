"""The CuTe headers without what a text does not name, for faster compilation.

nvcc reads 2 MB in place of 8, and takes some 40 % less time. Instructions are CuTe's own: structs that the text does
not name are left out, and headers of containers, numbers and logs, which device code here hardly needs, are replaced
by stubs. Callers fall back to the original headers if nvcc refuses the rest.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from ..caching import memoize

# headers of structs with one instruction each
_PRUNED = (
    "cute/arch/mma_sm80.hpp",
    "cute/arch/mma_sm90_gmma.hpp",
    "cute/arch/mma_sm90_gmma_ext.hpp",
    "cute/arch/copy_sm90_tma.hpp",
)
_LOGGING = (*_PRUNED, "cute/arch/copy_sm80.hpp", "cute/arch/copy_sm90.hpp", "cute/arch/cluster_sm90.hpp", "cutlass/arch/barrier.h")
_STRUCT = re.compile(r"^(?:template <[^{}]*?\n)?struct (\w+)[^\n{;]*\n\{\n.*?^\};\n", re.MULTILINE | re.DOTALL)
_LOG = re.compile(r"\bsynclog_emit_\w+")

_CONFIG = r"""#pragma once
#include <cstdint>
#define CUTE_HOST_DEVICE __forceinline__ __host__ __device__
#define CUTE_DEVICE __forceinline__ __device__
#define CUTE_INVALID_CONTROL_PATH(x) asm volatile("brkpt;\n" ::)
#define CUTLASS_HOST_DEVICE CUTE_HOST_DEVICE
#define CUTLASS_DEVICE CUTE_DEVICE
#define CUTLASS_PRAGMA_UNROLL _Pragma("unroll")
#define CUTLASS_ASSERT(x)
#define CUTLASS_NOT_IMPLEMENTED() asm volatile("brkpt;\n" ::)
#define CUDA_ARCH_FAMILY(x) 0
#define CUDA_ARCH_CONDITIONAL_OR_FAMILY(x) 0
namespace cute {
using std::int32_t;
using std::int64_t;
using std::uint8_t;
using std::uint16_t;
using std::uint32_t;
using std::uint64_t;
struct alignas(16) uint128_t { uint64_t low, high; };
template <int N> struct Int {};
}
"""
_UTIL = """#pragma once
#include <cute/config.hpp>
namespace cute {
CUTE_HOST_DEVICE uint32_t cast_smem_ptr_to_uint(void const* const ptr) { return static_cast<uint32_t>(__cvta_generic_to_shared(ptr)); }
}
"""
_DESCRIPTORS = """#pragma once
#include <cuda.h>
#include <cute/arch/util.hpp>
namespace cute {
namespace TMA {
enum class CacheHintSm90 : uint64_t { EVICT_NORMAL = 0x1000000000000000, EVICT_FIRST = 0x12F0000000000000, EVICT_LAST = 0x14F0000000000000 };
}
using TmaDescriptor = CUtensorMap;
CUTE_HOST_DEVICE void prefetch_tma_descriptor(TmaDescriptor const* desc_ptr) {
  asm volatile("prefetch.tensormap [%0];" : : "l"(reinterpret_cast<uint64_t>(desc_ptr)) : "memory");
}
}
"""
_EMPTY_HEADER = "#pragma once\n#include <cute/arch/util.hpp>\n"
_STAND_INS = {
    "cute/config.hpp": _CONFIG,
    "cute/arch/util.hpp": _UTIL,
    "cute/arch/copy_sm90_desc.hpp": _DESCRIPTORS,
    **dict.fromkeys(
        (
            "cute/arch/copy.hpp",
            "cute/arch/mma.hpp",
            "cute/arch/copy_sm100_tma.hpp",
            "cute/container/alignment.hpp",
            "cute/container/array.hpp",
            "cute/container/bit_field.hpp",
            "cute/numeric/complex.hpp",
            "cute/numeric/numeric_types.hpp",
            "cutlass/arch/memory_sm75.h",
            "cutlass/cutlass.h",
            "cutlass/numeric_types.h",
            "cutlass/platform/platform.h",
        ),
        _EMPTY_HEADER,
    ),
}


def write_slim_headers(text: str, include: str, folder: Path) -> bool:
    """Write headers that replace those of `include` in the compilation of a text.

    Returns False, and writes nothing, if they have another layout.
    """
    try:
        headers = _make_headers(text, include)
    except (OSError, UnicodeDecodeError):
        return False
    if headers is None:
        return False
    for name, content in headers.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    return True


def _make_headers(text: str, include: str) -> Mapping[str, str] | None:
    names = frozenset(re.findall(r"\b(?:MMA|SM80|SM90)_\w+", text))
    known_names: set[str] = set()
    headers = {**_STAND_INS, "cutlass/arch/synclog.hpp": _make_log(include)}
    for name in _PRUNED:
        before, structs = _split(include, name)
        known_names |= names & structs.keys()
        headers[name] = "".join(part if part is not None else structs[struct] * (struct in names) for part, struct in before)
    return headers if known_names == names else None


@memoize(8)
def _split(include: str, name: str) -> tuple[tuple[tuple[str | None, str], ...], Mapping[str, str]]:
    """Split a header into its parts in order, and its structs by name.

    A part is text outside of structs, or the name of a struct.
    """
    content = (Path(include) / name).read_text(encoding="utf-8")
    parts: list[tuple[str | None, str]] = []
    structs: dict[str, str] = {}
    at = 0
    for match in _STRUCT.finditer(content):
        parts += [(content[at : match.start()], ""), (None, match[1])]
        structs[match[1]] = match[0]
        at = match.end()
    return (*parts, (content[at:], "")), structs


@memoize(4)
def _make_log(include: str) -> str:
    """Make a header of functions that log nothing, as CuTe's own do unless enabled."""
    used = sorted({name for header in _LOGGING for name in _LOG.findall((Path(include) / header).read_text(encoding="utf-8"))})
    functions = "".join(f"template <class... T> CUTE_HOST_DEVICE void {name}(T const&...) {{}}\n" for name in used)
    return f"#pragma once\n#include <cute/config.hpp>\nnamespace cutlass {{ namespace arch {{\n{functions}}} }}\n"


__all__ = ["write_slim_headers"]
