// One instantiation of CUTLASS's warp-specialised ping-pong GEMM, to be lifted: docs/lifting.md.
#include <cutlass/device_kernel.h>
#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/kernel/gemm_universal.hpp>
using namespace cute;
using T = cutlass::half_t;
using Row = cutlass::layout::RowMajor;
using Block = Shape<_64, _128, _64>;
using Cluster = Shape<_1, _1, _1>;
using Epilogue = cutlass::epilogue::collective::CollectiveBuilder<cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Block, Cluster, cutlass::epilogue::collective::EpilogueTileAuto,
    float, float, T, Row, 8, T, Row, 8, cutlass::epilogue::TmaWarpSpecialized>::CollectiveOp;
using Mainloop = cutlass::gemm::collective::CollectiveBuilder<cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, T, Row, 8, T, cutlass::layout::ColumnMajor, 8, float, Block, Cluster,
    cutlass::gemm::collective::StageCountAutoCarveout<int(sizeof(Epilogue::SharedStorage))>, cutlass::gemm::KernelTmaWarpSpecializedPingpong>::CollectiveOp;
using Kernel = cutlass::gemm::kernel::GemmUniversal<Shape<int, int, int, int>, Mainloop, Epilogue>;
#ifndef WITH_HOST  // the host's code instantiates it itself
template __global__ void cutlass::device_kernel<Kernel>(const __grid_constant__ Kernel::Params);
#endif
