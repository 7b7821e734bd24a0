// DeepGEMM's product of 8-bit floats: a [m, k] with scales [k / 128, m], b [n, k] with scales [n / 128, k / 128], d [m, n] in bfloat16.
#include <cstdlib>
#include <deep_gemm/impls/sm90_fp8_gemm_1d2d.cuh>
#include "tensors.h"
using namespace deep_gemm;

constexpr int M = 128, N = 128, K = 128, STAGES = 3, SMS = 2, CLUSTER = MULTICAST;

static CUtensorMap make_map(CUtensorMapDataType type, int size, void* data, uint64_t inner, uint64_t outer, uint32_t x, uint32_t y, CUtensorMapSwizzle swizzle) {
  CUtensorMap map;
  cuuint64_t dims[] = {inner, outer}, strides[] = {inner * size};
  cuuint32_t box[] = {x, y}, steps[] = {1, 1};
  if (cuTensorMapEncodeTiled(&map, type, 2, data, dims, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
          CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) != CUDA_SUCCESS) exit(1);
  return map;
}

int main(int, char** argv) {
  int m = atoi(argv[1]), n = atoi(argv[2]), k = atoi(argv[3]);
  auto a = make_map(CU_TENSOR_MAP_DATA_TYPE_UINT8, 1, tensor(0), k, m, K, M, CU_TENSOR_MAP_SWIZZLE_128B);
  auto b = make_map(CU_TENSOR_MAP_DATA_TYPE_UINT8, 1, tensor(1), k, n, K, N, CU_TENSOR_MAP_SWIZZLE_128B);
  auto d = make_map(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, tensor(4), n, m, 64, M, CU_TENSOR_MAP_SWIZZLE_128B);
  auto scales = make_map(CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 4, tensor(2), m, (k + 127) / 128, M, 1, CU_TENSOR_MAP_SWIZZLE_NONE);
  auto kernel = &sm90_fp8_gemm_1d2d_impl<cute::UMMA::Major::K, 0, 0, 0, 1, M, N, K, 128, 128, 128, STAGES, 128, 256, CLUSTER, false, SMS, GemmType::Normal,
      cutlass::bfloat16_t, epilogue::transform::EpilogueIdentity>;
  cudaLaunchAttribute cluster;
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {CLUSTER, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(SMS), config.blockDim = dim3(384), config.dynamicSmemBytes = M * N * 2 + STAGES * (M * K + N * K + M * 4) + 4096;
  config.attrs = &cluster, config.numAttrs = CLUSTER > 1;
  return cudaLaunchKernelEx(&config, kernel, (float*)tensor(3), (int*)nullptr, uint32_t(m), uint32_t(n), uint32_t(k), a, b, d, scales) != cudaSuccess;
}
