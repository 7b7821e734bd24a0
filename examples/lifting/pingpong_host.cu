// The ping-pong GEMM of pingpong.cu behind a C function, so that `python -m benchmarks.lifted` can run it: docs/lifting.md.
//   nvcc -shared -Xcompiler -fPIC -std=c++17 -arch=sm_90a --expt-relaxed-constexpr -DNDEBUG -O3 -I CUTLASS/include -I CUTLASS/tools/util/include examples/lifting/pingpong_host.cu -o pingpong.so
#define WITH_HOST
#include "pingpong.cu"
#include <cutlass/gemm/device/gemm_universal_adapter.h>
#include <cutlass/util/packed_stride.hpp>

// Y [M, N] = alpha A [M, K] Bt [N, K]^T + beta C [M, N], f16, rows after rows. 0: launched.
extern "C" int run(const void *A, const void *Bt, const void *C, void *Y, int M, int N, int K, float alpha, float beta, cudaStream_t stream) {
    using Gemm = cutlass::gemm::device::GemmUniversalAdapter<Kernel>;
    static void *workspace = nullptr;
    static size_t bytes = 0;
    auto a = cutlass::make_cute_packed_stride(typename Kernel::StrideA{}, {M, K, 1});
    auto b = cutlass::make_cute_packed_stride(typename Kernel::StrideB{}, {N, K, 1});
    auto c = cutlass::make_cute_packed_stride(typename Kernel::StrideC{}, {M, N, 1});
    auto y = cutlass::make_cute_packed_stride(typename Kernel::StrideD{}, {M, N, 1});
    typename Gemm::Arguments arguments{cutlass::gemm::GemmUniversalMode::kGemm, {M, N, K, 1}, {static_cast<const T *>(A), a, static_cast<const T *>(Bt), b},
                                       {{}, static_cast<const T *>(C), c, static_cast<T *>(Y), y}};
    arguments.epilogue.thread.alpha = alpha;
    arguments.epilogue.thread.beta = beta;
    static int multiprocessors = cutlass::KernelHardwareInfo::query_device_multiprocessor_count(0);
    arguments.hw_info.sm_count = multiprocessors;
    size_t needed = Gemm::get_workspace_size(arguments);
    if (needed > bytes) {
        cudaFree(workspace);
        if (cudaMalloc(&workspace, needed) != cudaSuccess) return 1;
        bytes = needed;
    }
    Gemm gemm;
    if (gemm.initialize(arguments, workspace, stream) != cutlass::Status::kSuccess) return 2;
    return gemm.run(stream) == cutlass::Status::kSuccess ? 0 : 3;
}
