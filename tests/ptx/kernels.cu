// Small kernels for tests of the machine for PTX, each right, and each without one piece of its synchronisation.
#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define KERNEL extern "C" __global__ void

template <bool SYNC>
__device__ void reduce_all(const float* x, float* out, int n) {
    __shared__ float part[32];
    float v = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) v += x[i];
    for (int d = 16; d; d >>= 1) v += __shfl_down_sync(~0u, v, d);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    if (SYNC) __syncthreads();
    if (threadIdx.x < 32) {
        v = threadIdx.x < blockDim.x / 32 ? part[threadIdx.x] : 0;
        for (int d = 16; d; d >>= 1) v += __shfl_xor_sync(~0u, v, d);
        if (threadIdx.x == 0) *out = v;
    }
}
KERNEL reduce_right(const float* x, float* out, int n) { reduce_all<true>(x, out, n); }
KERNEL reduce_faulty(const float* x, float* out, int n) { reduce_all<false>(x, out, n); }

template <bool SYNC>
__device__ void transpose_tile(const float* x, float* y, int n) {
    __shared__ float tile[32][33];
    int column = blockIdx.x * 32 + threadIdx.x, row = blockIdx.y * 32 + threadIdx.y;
    for (int j = 0; j < 32; j += 8) tile[threadIdx.y + j][threadIdx.x] = x[(row + j) * n + column];
    if (SYNC) __syncthreads();
    column = blockIdx.y * 32 + threadIdx.x, row = blockIdx.x * 32 + threadIdx.y;
    for (int j = 0; j < 32; j += 8) y[(row + j) * n + column] = tile[threadIdx.x][threadIdx.y + j];
}
KERNEL transpose_right(const float* x, float* y, int n) { transpose_tile<true>(x, y, n); }
KERNEL transpose_faulty(const float* x, float* y, int n) { transpose_tile<false>(x, y, n); }

template <bool ATOMIC>
__device__ void count_bytes(const unsigned char* x, int* out, int n) {
    extern __shared__ int counts[];
    for (int i = threadIdx.x; i < 256; i += blockDim.x) counts[i] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        if (ATOMIC) atomicAdd(&counts[x[i]], 1);
        else counts[x[i]]++;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < 256; i += blockDim.x) atomicAdd(&out[i], counts[i]);
}
KERNEL histogram_right(const unsigned char* x, int* out, int n) { count_bytes<true>(x, out, n); }
KERNEL histogram_faulty(const unsigned char* x, int* out, int n) { count_bytes<false>(x, out, n); }

template <bool SYNC>
__device__ void softmax_row(const float* x, float* y, int n) {
    __shared__ float part[8];
    const float* row = x + blockIdx.x * n;
    float m = -1e30f;
    for (int i = threadIdx.x; i < n; i += blockDim.x) m = fmaxf(m, row[i]);
    for (int d = 16; d; d >>= 1) m = fmaxf(m, __shfl_xor_sync(~0u, m, d));
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = m;
    __syncthreads();
    for (int i = 0; i < blockDim.x / 32; i++) m = fmaxf(m, part[i]);
    if (SYNC) __syncthreads();
    float s = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) s += expf(row[i] - m);
    for (int d = 16; d; d >>= 1) s += __shfl_xor_sync(~0u, s, d);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = s;
    __syncthreads();
    s = 0;
    for (int i = 0; i < blockDim.x / 32; i++) s += part[i];
    for (int i = threadIdx.x; i < n; i += blockDim.x) y[blockIdx.x * n + i] = __fdividef(expf(row[i] - m), s);
}
KERNEL softmax_right(const float* x, float* y, int n) { softmax_row<true>(x, y, n); }
KERNEL softmax_faulty(const float* x, float* y, int n) { softmax_row<false>(x, y, n); }

#if __CUDA_ARCH__ >= 800
__device__ void copy_async(void* to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((uint32_t)__cvta_generic_to_shared(to)), "l"(from));
}
template <int KEEP>
__device__ void wait_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(KEEP) : "memory"); }

template <int KEEP, bool SYNC>
__device__ void scale_pipelined(const float* x, float* y, int steps) {
    __shared__ __align__(16) float buffer[2][256];
    int t = threadIdx.x;
    copy_async(&buffer[0][t * 4], x + t * 4);
    asm volatile("cp.async.commit_group;");
    for (int i = 0; i < steps; i++) {
        if (i + 1 < steps) copy_async(&buffer[(i + 1) & 1][t * 4], x + (i + 1) * 256 + t * 4);
        asm volatile("cp.async.commit_group;");
        wait_copies<KEEP>();
        __syncthreads();
        for (int j = 0; j < 4; j++) y[i * 256 + j * 64 + t] = 2 * buffer[i & 1][j * 64 + t];
        if (SYNC) __syncthreads();
    }
}
KERNEL pipeline_right(const float* x, float* y, int steps) { scale_pipelined<1, true>(x, y, steps); }
KERNEL pipeline_without_wait(const float* x, float* y, int steps) { scale_pipelined<2, true>(x, y, steps); }
KERNEL pipeline_without_barrier(const float* x, float* y, int steps) { scale_pipelined<1, false>(x, y, steps); }

// C = A * B: 64 x 64 tiles, 4 warps of 32 x 32, A row-major, B column-major.
template <bool SYNC>
__device__ void multiply(const __half* a, const __half* b, float* c, int n, int k) {
    __shared__ __align__(16) __half as[64][40], bs[64][40];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, wm = warp / 2 * 32, wn = warp % 2 * 32;
    float acc[2][4][4] = {};
    for (int k0 = 0; k0 < k; k0 += 32) {
        for (int i = threadIdx.x; i < 256; i += 128) {
            int row = i / 4, column = i % 4 * 8;
            *(uint4*)&as[row][column] = *(const uint4*)&a[(blockIdx.y * 64 + row) * k + k0 + column];
            *(uint4*)&bs[row][column] = *(const uint4*)&b[(blockIdx.x * 64 + row) * k + k0 + column];
        }
        __syncthreads();
        for (int kk = 0; kk < 32; kk += 16) {
            uint32_t fa[2][4], fb[4][2];
            for (int i = 0; i < 2; i++) {
                uint32_t p = __cvta_generic_to_shared(&as[wm + i * 16 + lane % 16][kk + lane / 16 * 8]);
                asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                             : "=r"(fa[i][0]), "=r"(fa[i][1]), "=r"(fa[i][2]), "=r"(fa[i][3]) : "r"(p));
            }
            for (int j = 0; j < 4; j++) {
                uint32_t p = __cvta_generic_to_shared(&bs[wn + j * 8 + lane % 8][kk + lane / 8 % 2 * 8]);
                asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];" : "=r"(fb[j][0]), "=r"(fb[j][1]) : "r"(p));
            }
            for (int i = 0; i < 2; i++)
                for (int j = 0; j < 4; j++)
                    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                                 : "+f"(acc[i][j][0]), "+f"(acc[i][j][1]), "+f"(acc[i][j][2]), "+f"(acc[i][j][3])
                                 : "r"(fa[i][0]), "r"(fa[i][1]), "r"(fa[i][2]), "r"(fa[i][3]), "r"(fb[j][0]), "r"(fb[j][1]));
        }
        if (SYNC) __syncthreads();
    }
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 4; j++)
            for (int e = 0; e < 4; e++)
                c[(blockIdx.y * 64 + wm + i * 16 + lane / 4 + e / 2 * 8) * n + blockIdx.x * 64 + wn + j * 8 + lane % 4 * 2 + e % 2] = acc[i][j][e];
}
KERNEL gemm_right(const __half* a, const __half* b, float* c, int n, int k) { multiply<true>(a, b, c, n, k); }
KERNEL gemm_faulty(const __half* a, const __half* b, float* c, int n, int k) { multiply<false>(a, b, c, n, k); }

// A ring of two stages between 32 producers and 32 consumers, by mbarriers.
template <bool WAIT_EMPTY, bool WAIT_FULL>
__device__ void hand_over(const float* x, float* y, int steps) {
    __shared__ __align__(8) uint64_t full[2], empty[2];
    __shared__ float buffer[2][32];
    auto address = [](void* p) { return (uint32_t)__cvta_generic_to_shared(p); };
    auto wait = [&](uint64_t* bar, int parity) {
        asm volatile("{\n.reg .pred p;\nAGAIN:\nmbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n@p bra DONE;\nbra AGAIN;\nDONE:\n}" ::"r"(address(bar)), "r"(parity) : "memory");
    };
    auto arrive = [&](uint64_t* bar) { asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(address(bar)) : "memory"); };
    if (threadIdx.x == 0)
        for (int i = 0; i < 2; i++) {
            asm volatile("mbarrier.init.shared.b64 [%0], 32;" ::"r"(address(&full[i])));
            asm volatile("mbarrier.init.shared.b64 [%0], 32;" ::"r"(address(&empty[i])));
        }
    __syncthreads();
    int lane = threadIdx.x % 32;
    if (threadIdx.x < 32) {
        for (int i = 0; i < steps; i++) {
            if (WAIT_EMPTY && i >= 2) wait(&empty[i & 1], (i / 2 - 1) & 1);
            buffer[i & 1][lane] = x[i * 32 + lane];
            arrive(&full[i & 1]);
        }
    } else {
        for (int i = 0; i < steps; i++) {
            if (WAIT_FULL) wait(&full[i & 1], i / 2 & 1);
            y[i * 32 + lane] = buffer[i & 1][31 - lane];
            arrive(&empty[i & 1]);
        }
    }
}
#if __CUDA_ARCH__ >= 900
KERNEL ring_right(const float* x, float* y, int steps) { hand_over<true, true>(x, y, steps); }
KERNEL ring_without_empty(const float* x, float* y, int steps) { hand_over<false, true>(x, y, steps); }
KERNEL ring_without_full(const float* x, float* y, int steps) { hand_over<true, false>(x, y, steps); }
#endif
#endif

// The last CTA to come sums what all have written.
template <bool FENCE>
__device__ void sum_by_last(const float* x, float* part, int* ticket, float* out) {
    __shared__ bool last;
    if (threadIdx.x == 0) {
        part[blockIdx.x] = x[blockIdx.x] * 2;
        if (FENCE) __threadfence();
        last = atomicAdd(ticket, 1) == gridDim.x - 1;
        if (FENCE) __threadfence();
    }
    __syncthreads();
    if (last && threadIdx.x == 0) {
        float s = 0;
        for (int i = 0; i < gridDim.x; i++) s += part[i];
        *out = s;
    }
}
KERNEL last_right(const float* x, float* part, int* ticket, float* out) { sum_by_last<true>(x, part, ticket, out); }
KERNEL last_faulty(const float* x, float* part, int* ticket, float* out) { sum_by_last<false>(x, part, ticket, out); }

KERNEL warp_right(const int* x, int* y) {
    __shared__ int s[32];
    s[threadIdx.x] = x[threadIdx.x];
    __syncwarp();
    y[threadIdx.x] = s[31 - threadIdx.x];
}
KERNEL warp_faulty(const int* x, int* y) {
    __shared__ int s[32];
    s[threadIdx.x] = x[threadIdx.x];
    y[threadIdx.x] = s[31 - threadIdx.x];
}
KERNEL diverging_barrier(int* y) {
    if (threadIdx.x < 16) __syncthreads();
    else y[threadIdx.x] = 1;
    if (threadIdx.x >= 16) __syncthreads();
}
KERNEL past_the_end(float* y, int n) { y[blockIdx.x * blockDim.x + threadIdx.x] = n; }
KERNEL unwritten(float* y) {
    __shared__ float s[64];
    if (threadIdx.x < 32) s[threadIdx.x] = 1;
    __syncthreads();
    y[threadIdx.x] = s[threadIdx.x];
}
__device__ __noinline__ float apply(float x, int n) {
    float s = 0;
    for (int i = 0; i < n; i++) s += x * i;
    return s;
}
__constant__ float table[4] = {1, 2, 3, 4};
__device__ int calls = 5;
KERNEL choose(float* y, const __half* h, int n, int way) {
    int t = threadIdx.x;
    float a = apply(y[t], n) + table[t & 3], kept[16];
    switch (way) {
        case 0: a += 1; break;
        case 1: a *= 2; break;
        case 2: a = expf(a / 100); break;
        case 3: a = sinf(a); break;
        case 4: a /= 3.f; break;
        case 5: a = __half2float(h[t]); break;
        default: a = t % 3 == 0 ? 0.f : t % 3 == 1 ? 1.f : a;
    }
    for (int i = 0; i < 16; i++) kept[i] = a * i;
    y[t] = kept[(way * 7 + t) & 15];
    if (t == 0) atomicAdd(&calls, 1);
}

// Warps that read what nobody wrote: of what USED says, y takes the results.
template <bool USED> __device__ void take_unwritten(float* y) {
  __shared__ float s[64];
  if (threadIdx.x < 32) s[threadIdx.x] = 1;
  __syncthreads();
  float v = s[threadIdx.x] * 2;
  asm volatile("" :: "f"(v));
  if (USED || threadIdx.x < 32) y[threadIdx.x] = v;
}
extern "C" __global__ void unwritten_used(float* y) { take_unwritten<true>(y); }
extern "C" __global__ void unwritten_left_out(float* y) { take_unwritten<false>(y); }
