"""Device functions of the emitted file that sm_80 brings: ldmatrix, cp.async. Owns their text."""

from __future__ import annotations

from ...cuda.prelude import Parts

PARTS = Parts()
part = PARTS.section("matrices")
part(
    "load_matrix",
    """
// 8 x 8 blocks of 16 bits, four a warp: lane l gives the address of row l % 8 of block l / 8
DEV void load_matrix(uint32_t from, uint32_t& a, uint32_t& b, uint32_t& c, uint32_t& d) {
  asm volatile("ldmatrix.sync.aligned.x4.m8n8.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "r"(from) : "memory");
}""",
)
part(
    "load_matrix_T",
    """
DEV void load_matrix_T(uint32_t from, uint32_t& a, uint32_t& b, uint32_t& c, uint32_t& d) {
  asm volatile("ldmatrix.sync.aligned.x4.trans.m8n8.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "r"(from) : "memory");
}""",
)

part = PARTS.section("copies")
part(
    "cp_async",
    """
DEV void cp_async(uint32_t to, const void* from, int bytes) {   // 16 bytes, those from `bytes` on are zeros
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(to), "l"(from), "r"(bytes) : "memory");
}""",
)
