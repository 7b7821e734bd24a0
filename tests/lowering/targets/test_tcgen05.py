"""tcgen05: descriptors against CUTLASS' own, lanes of loads, and a kernel that nvcc compiles."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import torch

from cuir.lowering import Lowering, lower
from cuir.lowering.analyses.uniformity import runs_on_one_lane
from cuir.lowering.ir.build_ir import build
from cuir.lowering.ir.evaluator_state import Fault
from cuir.lowering.ir.ir_evaluator import evaluate
from cuir.lowering.ir.synchronisation import CtaSync
from cuir.lowering.layouts.layouts import FRAGMENTS, Layout, fragment_map
from cuir.lowering.layouts.tile_layouts import FULL
from cuir.lowering.passes.pipeline import optimise
from cuir.lowering.targets.sm100.tcgen05 import SLAB_LANES, describe_shape
from cuir.lowering.validate import TensorRuns, ctas_for, random_arguments
from cuir.runtime.nvcc import compile_cuda, find_nvcc, include_dir
from tests.ops.test_tensor_memory import check_changed

DESCRIPTORS = """\
#include <cstdio>
#include <cute/numeric/numeric_types.hpp>
#include <cute/arch/mma_sm100_desc.hpp>
using namespace cute;
int main() {
  printf("%x ", uint32_t(UMMA::make_instr_desc<half_t, half_t, float, 64, 64, UMMA::Major::K, UMMA::Major::K>().desc_));
  printf("%x ", uint32_t(UMMA::make_instr_desc<bfloat16_t, bfloat16_t, float, 64, 256, UMMA::Major::K, UMMA::Major::K>().desc_));
  UMMA::SmemDescriptor d;
  d.version_ = 1;
  d.layout_type_ = uint8_t(UMMA::LayoutType::SWIZZLE_128B);
  d.stride_byte_offset_ = 1024 >> 4;
  printf("%x", d.hi);
}
"""
INCLUDE = Path(__file__).parents[3] / "cuir/lowering/targets/sm100/include/tensor_memory.cuh"


@pytest.mark.thorough
@pytest.mark.nvcc
def test_descriptors_are_those_of_cutlass(tmp_path: Path) -> None:
    (tmp_path / "d.cpp").write_text(DESCRIPTORS, encoding="utf-8")
    subprocess.run([find_nvcc(), "-std=c++17", f"-I{include_dir()}", "d.cpp", "-o", "d"], cwd=tmp_path, check=True, capture_output=True)
    printed = subprocess.run([tmp_path / "d"], check=True, capture_output=True, text=True).stdout.split()
    (upper,) = re.findall(r"uint64_t\(0x(\w+)\) << 32", INCLUDE.read_text(encoding="utf-8"))
    assert printed == [f"{describe_shape(0, 64):x}", f"{describe_shape(1, 256):x}", upper]


def test_loads_give_warps_their_rows() -> None:
    """Row r of an accumulator lies in the lane that CUTLASS' `tmem_frg_1sm` gives it: (((16, 4), C), 2) : (((1, 32), columns), 16) in lanes."""
    registers, block = FULL.of((128, 32), 128), Layout(fragment_map("tcgen05 16x256b"))
    assert FRAGMENTS["tcgen05 16x256b"] == FULL.text
    for warp in range(4):
        for lane in range(32):
            for register in range(registers.count):
                place = registers.place(register, lane, warp)
                slab, rest = divmod(register, registers.count // 2)
                loaded = block.place(rest % 4, lane)
                tensor_lane = 32 * warp + (SLAB_LANES >> 16) * slab + loaded["row"]
                row = place["row"]
                assert tensor_lane == row % 16 + row // 16 % 4 * 32 + row // 64 * 16
                assert place["column"] == rest // 4 * 8 + loaded["column"]


def test_a_product_is_issued_for_each_step_and_slab() -> None:
    text = lower(check_changed()).source
    calls = re.findall(r"cuir::multiply_into\((.*)\);", text)
    assert calls[:3] == [
        "d_, a_, b_, 0x4100010, 0 < k",
        "d_ + 0x100000, a_ + 0x200, b_, 0x4100010, 0 < k",
        "d_, a_ + 0x2, b_ + 0x2, 0x4100010, true",
    ]
    assert len(calls) == 8
    assert "const uint32_t d_ = tensor_memory + stage * 64;" in text
    order = [
        "cuir::after_thread_sync();\n        const",
        "cuir::load_columns<0>",
        "cuir::wait_for_loads()",
        "cuir::before_thread_sync()",
        "cuir::fence_regs",
    ]
    places = [text.rindex(x.split("\n")[0]) for x in order]
    assert places == sorted(places)


def test_passes_keep_the_results() -> None:
    checked = check_changed()
    arguments = random_arguments(checked, torch.Generator().manual_seed(0), {"M": 200, "N": 100, "K": 72})
    stages = list(Lowering(checked, ()).stages(TensorRuns(arguments, ctas_for(checked))))
    assert all(s.outcome is None or s.outcome.ok for s in stages) and any(s.outcome is not None for s in stages)


@pytest.mark.parametrize(("behind", "fault"), [("columns", "may not be allocated yet"), ("roles", "may be freed already")])
def test_tensor_memory_without_a_sync_of_the_cta_shows(behind: str, fault: str) -> None:
    checked = check_changed()
    arguments = random_arguments(checked, torch.Generator().manual_seed(0), {"M": 200, "N": 100, "K": 72})
    kernel = build(checked)
    optimise(kernel)
    (sync,) = (op for op in kernel.body.block.ops if isinstance(op, CtaSync) and op.behind.data == behind)
    sync.detach()
    single = {r.symbol.data for r in kernel.roles if runs_on_one_lane(r)}
    with pytest.raises(Fault, match=fault):
        evaluate(kernel, arguments, single_lane_roles=single)


def test_columns_are_allocated_and_freed_by_one_warp() -> None:
    text = lower(check_changed(("COLUMNS: const = 64", "COLUMNS: const = 96"))).source
    assert text.count("if (warpgroup == 0 && warp == 0) cuir::allocate_columns<256>(") == 1
    assert text.rstrip().endswith("if (warpgroup == 0 && warp == 0) cuir::free_columns<256>(tensor_memory);\n}")


@pytest.mark.nvcc
@pytest.mark.sweep
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_nvcc_compiles_the_kernel(dtype: str) -> None:
    resources = compile_cuda(lower(check_changed(("f16", dtype)))).resources
    assert resources.registers <= 168 and not resources.spill_stores + resources.spill_loads
