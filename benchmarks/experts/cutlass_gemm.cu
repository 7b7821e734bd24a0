// CUTLASS's GEMM for Hopper: a [m, k], b [n, k], d [m, n], in half precision.
#include <cstdlib>
#include "cute/tensor.hpp"
#include "cutlass/cutlass.h"
#include "cutlass/epilogue/collective/collective_builder.hpp"
#include "cutlass/gemm/collective/collective_builder.hpp"
#include "cutlass/gemm/device/gemm_universal_adapter.h"
#include "cutlass/gemm/kernel/gemm_universal.hpp"
#include "cutlass/util/packed_stride.hpp"
#include "tensors.h"
using namespace cute;

using Half = cutlass::half_t;
using Row = cutlass::layout::RowMajor;
using Column = cutlass::layout::ColumnMajor;
using TileShape = Shape<Int<TILE_M>, _128, _64>;
using ClusterShape = Shape<Int<CLUSTER>, _1, _1>;
using Epilogue = cutlass::epilogue::collective::CollectiveBuilder<cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, TileShape, ClusterShape,
    cutlass::epilogue::collective::EpilogueTileAuto, float, float, void, Row, 8, Half, Row, 8, cutlass::epilogue::EPILOGUE>::CollectiveOp;
using Mainloop = cutlass::gemm::collective::CollectiveBuilder<cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Half, Row, 8, Half, Column, 8, float, TileShape, ClusterShape,
    cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(sizeof(typename Epilogue::SharedStorage))>, cutlass::gemm::SCHEDULE>::CollectiveOp;
using Kernel = cutlass::gemm::kernel::GemmUniversal<Shape<int, int, int, int>, Mainloop, Epilogue>;
using Gemm = cutlass::gemm::device::GemmUniversalAdapter<Kernel>;

int main(int, char** argv) {
  int m = atoi(argv[1]), n = atoi(argv[2]), k = atoi(argv[3]);
  auto a = cutlass::make_cute_packed_stride(typename Kernel::StrideA{}, {m, k, 1});
  auto b = cutlass::make_cute_packed_stride(typename Kernel::StrideB{}, {n, k, 1});
  auto d = cutlass::make_cute_packed_stride(typename Kernel::StrideD{}, {m, n, 1});
  cutlass::KernelHardwareInfo hardware;
  hardware.device_id = 0, hardware.sm_count = 2;
  typename Gemm::Arguments arguments{cutlass::gemm::GemmUniversalMode::kGemm, {m, n, k, 1}, {(Half*)tensor(0), a, (Half*)tensor(1), b},
      {{1.0f, 0.0f}, nullptr, {}, (Half*)tensor(2), d}, hardware};
  Gemm gemm;
  if (gemm.initialize(arguments) != cutlass::Status::kSuccess) return 1;
  return gemm.run() != cutlass::Status::kSuccess;
}
