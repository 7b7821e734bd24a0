// Warp-specialised attention forward for Hopper: bulk tensor copies, mbarriers, setmaxnreg, wgmma, ping-pong consumers; causal, f16.
//
//   O[b, h, q, :] = softmax over keys k <= q + N - M of (scale * Q K^T) V;   LSE: the natural logarithm of the softmax's sum
//   Q, O [B, H, M, D], K, V [B, HK, N, D] f16 with any outer strides, LSE [B, H, M] f32 contiguous; query head h reads key head h / (H / HK).
//   A query without a key gives O = 0 and LSE = -inf. flash_fwd_sm90.launch.toml says how to compile and launch it.
//
//   roles     warpgroup 0: one thread loads Q, K and V; warpgroups 1 and 2 compute, 64 query rows each
//   barriers  *_full: the loader's arrival and the bytes; *_empty: four warps of each consumer; turn: ping-pong, two consumers
//   step i    [turn] S = Q K(i), O += P V(i - 1) in flight together; wait for S, release K; softmax; wait for O, release V; rescale O
#include <cstdint>
#include <cuda.h>
#include <cuda_fp16.h>
#include <cute/arch/cluster_sm90.hpp>
#include <cute/arch/copy_sm90.hpp>
#include <cute/arch/copy_sm90_desc.hpp>
#include <cute/arch/copy_sm90_tma.hpp>
#include <cute/arch/mma_sm90_gmma.hpp>
#include <cutlass/arch/barrier.h>
#include <cutlass/arch/reg_reconfig.h>

#ifndef HEAD_DIM
#define HEAD_DIM 128                                         // 64 or 128
#endif
#define DEV static __device__ __forceinline__

namespace GMMA = cute::SM90::GMMA;
using Barrier = cutlass::arch::ClusterBarrier;
using BytesBarrier = cutlass::arch::ClusterTransactionBarrier;
using cutlass::arch::NamedBarrier;

constexpr int D = HEAD_DIM;
constexpr int CONSUMERS = 2;                                 // warpgroups that compute
constexpr int BM = 64 * CONSUMERS;                           // queries of a tile
constexpr int BN = 128;                                      // keys of a block
constexpr int STAGES = 2;                                    // of K and of V
constexpr int THREADS = 128 * (CONSUMERS + 1);
constexpr int PANELS = D / 64;                               // a tile of R rows is D / 64 panels of R rows of 128 bytes, swizzled
constexpr int Q_BYTES = BM * D * 2, KV_BYTES = BN * D * 2;
constexpr int TURN = 0, STORE = CONSUMERS;                   // first named barrier of each kind, one for each consumer
constexpr uint64_t ONCE = uint64_t(cute::TMA::CacheHintSm90::EVICT_FIRST), OFTEN = uint64_t(cute::TMA::CacheHintSm90::EVICT_LAST);
constexpr float LOG2E = 1.4426950408889634f, LN2 = 0.6931471805599453f;

struct Shared {
  alignas(1024) __half q[PANELS][BM * 64];
  alignas(1024) __half o[PANELS][BM * 64];
  alignas(1024) __half k[STAGES][PANELS][BN * 64];
  alignas(1024) __half v[STAGES][PANELS][BN * 64];
  uint64_t q_full, q_empty;
  uint64_t k_full[STAGES], k_empty[STAGES], v_full[STAGES], v_empty[STAGES];
};

// ---- products. A descriptor: address / 16, leading offset / 16 << 16, stride offset / 16 << 32, 128-byte swizzle << 62
DEV uint64_t descriptor(const void* tile, int leading) {
  return uint64_t((cute::cast_smem_ptr_to_uint(tile) & 0x3FFFF) >> 4) | uint64_t(leading >> 4) << 16 | uint64_t(1024 >> 4) << 32 | uint64_t(1) << 62;
}
#define R4(x, i) x[(i)], x[(i) + 1], x[(i) + 2], x[(i) + 3]
#define R16(x, i) R4(x, i), R4(x, (i) + 4), R4(x, (i) + 8), R4(x, (i) + 12)
#define R32(x, i) R16(x, i), R16(x, (i) + 16)

DEV void issue_scores(float (&s)[BN / 2], uint64_t q, uint64_t k) {        // S = Q K^T: 64 x BN
#pragma unroll
  for (int i = 0; i < D / 16; ++i)
    GMMA::MMA_64x128x16_F32F16F16_SS<GMMA::Major::K, GMMA::Major::K>::fma(
        q + i / 4 * (BM * 128 >> 4) + i % 4 * 2, k + i / 4 * (BN * 128 >> 4) + i % 4 * 2, R32(s, 0), R32(s, 32),
        i ? GMMA::ScaleOut::One : GMMA::ScaleOut::Zero);
}
DEV void issue_output(float (&o)[D / 2], const uint32_t (&p)[BN / 4], uint64_t v) {   // O += P V: 64 x D, P in registers
#pragma unroll
  for (int i = 0; i < BN / 16; ++i)
#if HEAD_DIM == 64
    GMMA::MMA_64x64x16_F32F16F16_RS<GMMA::Major::K, GMMA::Major::MN>::fma(R4(p, 4 * i), v + i * (16 * 128 >> 4), R32(o, 0), GMMA::ScaleOut::One);
#else
    GMMA::MMA_64x128x16_F32F16F16_RS<GMMA::Major::K, GMMA::Major::MN>::fma(R4(p, 4 * i), v + i * (16 * 128 >> 4), R32(o, 0), R32(o, 32), GMMA::ScaleOut::One);
#endif
}
template <class T, int K> DEV void keep_order(T (&x)[K]) {   // the compiler moves no use of these registers across this point
#pragma unroll
  for (int i = 0; i < K; ++i) cute::warpgroup_fence_operand(x[i]);
}

// ---- softmax. Element e of a thread lies in its row e / 2 % 2 (lane / 4, and 8 further) and column e / 4 * 8 + lane % 4 * 2 + e % 2
DEV uint32_t pack(float lo, float hi) {
  const __half2 h = __floats2half2_rn(lo, hi);
  return reinterpret_cast<const uint32_t&>(h);
}
DEV float row_max(float x) { x = fmaxf(x, __shfl_xor_sync(~0u, x, 1)); return fmaxf(x, __shfl_xor_sync(~0u, x, 2)); }
DEV float row_sum(float x) { x += __shfl_xor_sync(~0u, x, 1); return x + __shfl_xor_sync(~0u, x, 2); }

DEV void mask_scores(float (&s)[BN / 2], int limit0, int limit1) {         // columns from each row's limit on are dropped
#pragma unroll
  for (int e = 0; e < BN / 2; ++e)
    if (e / 4 * 8 + e % 2 >= (e / 2 % 2 ? limit1 : limit0)) s[e] = -INFINITY;
}
// Scores become weights; alpha: the factor for what was accumulated so far; total: of this thread's columns
DEV void softmax_step(float (&s)[BN / 2], float (&top)[2], float (&total)[2], float (&alpha)[2], float c) {
  float x[2] = {-INFINITY, -INFINITY}, shift[2];
#pragma unroll
  for (int e = 0; e < BN / 2; ++e) x[e / 2 % 2] = fmaxf(x[e / 2 % 2], s[e]);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float grown = fmaxf(top[r], row_max(x[r]) * c);
    shift[r] = grown == -INFINITY ? 0.f : grown;             // a row that has kept no key yet
    alpha[r] = exp2f(top[r] - shift[r]);
    top[r] = grown;
    total[r] *= alpha[r];
  }
#pragma unroll
  for (int e = 0; e < BN / 2; ++e) {
    s[e] = exp2f(s[e] * c - shift[e / 2 % 2]);
    total[e / 2 % 2] += s[e];
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
flash_fwd(const __grid_constant__ CUtensorMap mapQ, const __grid_constant__ CUtensorMap mapK, const __grid_constant__ CUtensorMap mapV,
          const __grid_constant__ CUtensorMap mapO, float* __restrict__ LSE, int B, int H, int HK, int M, int N, float scale) {
  extern __shared__ __align__(1024) uint8_t memory[];
  Shared& sh = *reinterpret_cast<Shared*>(memory);
  const int warpgroup = __shfl_sync(~0u, int(threadIdx.x) / 128, 0);       // the same for all lanes, and known to be so
  const int warp = __shfl_sync(~0u, int(threadIdx.x) / 32 % 4, 0);
  const int lane = threadIdx.x % 32;
  const int tiles_m = (M + BM - 1) / BM;
  const float c = scale * LOG2E;                             // scores times c are logits of base 2

  if (threadIdx.x == 0) {
    Barrier::init(&sh.q_full, 1);
    Barrier::init(&sh.q_empty, 4 * CONSUMERS);
    for (int s = 0; s < STAGES; ++s) {
      Barrier::init(&sh.k_full[s], 1);
      Barrier::init(&sh.k_empty[s], 4 * CONSUMERS);
      Barrier::init(&sh.v_full[s], 1);
      Barrier::init(&sh.v_empty[s], 4 * CONSUMERS);
    }
    cutlass::arch::fence_barrier_init();
  }
  __syncthreads();

  // The tile's unit of work: longest first, heads of one key head adjacent; blocks are visited from the last to the first
#define DECODE(t)                                                                                               \
  const int h = t % H, b = t / H % B, m0 = (tiles_m - 1 - t / (H * B)) * BM;                                    \
  const int last = min(N, m0 + BM + N - M), n = max(0, (last + BN - 1) / BN);

  if (warpgroup == 0) {
    // ======================================================================================== the loader
    cutlass::arch::warpgroup_reg_dealloc<24>();
    if (warp == 0 && cute::elect_one_sync()) {
      int qi = 0, ki = 0, vi = 0;                            // uses of each buffer so far
      for (int t = blockIdx.x; t < tiles_m * H * B; t += gridDim.x) {
        DECODE(t)
        const int hk = h / (H / HK);
        if (n == 0) continue;
        Barrier::wait(&sh.q_empty, qi % 2 ^ 1);
        BytesBarrier::arrive_and_expect_tx(&sh.q_full, Q_BYTES);
        for (int p = 0; p < PANELS; ++p) cute::SM90_TMA_LOAD_4D::copy(&mapQ, &sh.q_full, ONCE, sh.q[p], p * 64, m0, h, b);
        ++qi;
        for (int i = 0; i <= n; ++i) {                       // K runs one block ahead of V
          if (i < n) {
            const int s = ki % STAGES, phase = ki / STAGES % 2;
            Barrier::wait(&sh.k_empty[s], phase ^ 1);
            BytesBarrier::arrive_and_expect_tx(&sh.k_full[s], KV_BYTES);
            for (int p = 0; p < PANELS; ++p) cute::SM90_TMA_LOAD_4D::copy(&mapK, &sh.k_full[s], OFTEN, sh.k[s][p], p * 64, (n - 1 - i) * BN, hk, b);
            ++ki;
          }
          if (i > 0) {
            const int s = vi % STAGES, phase = vi / STAGES % 2;
            Barrier::wait(&sh.v_empty[s], phase ^ 1);
            BytesBarrier::arrive_and_expect_tx(&sh.v_full[s], KV_BYTES);
            for (int p = 0; p < PANELS; ++p) cute::SM90_TMA_LOAD_4D::copy(&mapV, &sh.v_full[s], OFTEN, sh.v[s][p], p * 64, (n - i) * BN, hk, b);
            ++vi;
          }
        }
      }
    }
  } else {
    // ======================================================================================== the consumers
    cutlass::arch::warpgroup_reg_alloc<240>();
    const int w = warpgroup - 1;
    const int row = w * 64 + warp * 16 + lane / 4, column = lane % 4 * 2;  // this thread's first row and column of a tile of scores
    const uint64_t dq = descriptor(&sh.q[0][w * 64 * 64], 16);             // K-major: rows of 128 bytes, the leading offset is not used
    float S[BN / 2], acc[D / 2], top[2], total[2], alpha[2];
    uint32_t P[BN / 4];
    int qi = 0, ki = 0, vi = 0;
#define RELEASE(bar) do { __syncwarp(); if (lane == 0) Barrier::arrive(&(bar)); } while (0)
#define MASK(j) do { if (((j) + 1) * BN > min(N, m0 + w * 64 + N - M + 1)) mask_scores(S, min(N, m0 + row + N - M + 1) - (j) * BN - column,   \
                                                                                       min(N, m0 + row + 8 + N - M + 1) - (j) * BN - column); } while (0)
    if (w == CONSUMERS - 1) NamedBarrier::arrive(256, TURN);               // the first turn is consumer 0's
    for (int t = blockIdx.x; t < tiles_m * H * B; t += gridDim.x) {
      DECODE(t)
#pragma unroll
      for (int e = 0; e < D / 2; ++e) acc[e] = 0.f;
      top[0] = top[1] = -INFINITY;
      total[0] = total[1] = 0.f;
      if (n > 0) {
        // ---- the first block's scores
        const int s0 = ki % STAGES;
        Barrier::wait(&sh.q_full, qi % 2);
        Barrier::wait(&sh.k_full[s0], ki / STAGES % 2);
        cute::warpgroup_arrive();
        issue_scores(S, dq, descriptor(sh.k[s0], 16));
        cute::warpgroup_commit_batch();
        cute::warpgroup_wait<0>();
        keep_order(S);
        RELEASE(sh.k_empty[s0]);
        ++ki;
        MASK(n - 1);
        softmax_step(S, top, total, alpha, c);
#pragma unroll
        for (int e = 0; e < BN / 4; ++e) P[e] = pack(S[2 * e], S[2 * e + 1]);
        // ---- each further block's scores with the product of the block before
        for (int i = 1; i < n; ++i) {
          const int s = ki % STAGES, u = vi % STAGES;
          Barrier::wait(&sh.k_full[s], ki / STAGES % 2);
          Barrier::wait(&sh.v_full[u], vi / STAGES % 2);
          NamedBarrier::sync(256, TURN + w);
          keep_order(acc);
          keep_order(P);
          cute::warpgroup_arrive();
          issue_scores(S, dq, descriptor(sh.k[s], 16));
          cute::warpgroup_commit_batch();
          issue_output(acc, P, descriptor(sh.v[u], BN * 128));             // MN-major: panels lie BN rows apart
          cute::warpgroup_commit_batch();
          NamedBarrier::arrive(256, TURN + (w + 1) % CONSUMERS);           // on issue, not on completion
          cute::warpgroup_wait<1>();                                       // S; the product of the block before may still run
          keep_order(S);
          RELEASE(sh.k_empty[s]);
          ++ki;
          MASK(n - 1 - i);
          softmax_step(S, top, total, alpha, c);
          cute::warpgroup_wait<0>();
          keep_order(acc);
          RELEASE(sh.v_empty[u]);
          ++vi;
#pragma unroll
          for (int e = 0; e < D / 2; ++e) acc[e] *= alpha[e / 2 % 2];
#pragma unroll
          for (int e = 0; e < BN / 4; ++e) P[e] = pack(S[2 * e], S[2 * e + 1]);
        }
        RELEASE(sh.q_empty);                                               // the loader may fetch the next Q during the tail
        ++qi;
        // ---- the last block's product
        const int u = vi % STAGES;
        Barrier::wait(&sh.v_full[u], vi / STAGES % 2);
        keep_order(acc);
        keep_order(P);
        cute::warpgroup_arrive();
        issue_output(acc, P, descriptor(sh.v[u], BN * 128));
        cute::warpgroup_commit_batch();
        cute::warpgroup_wait<0>();
        keep_order(acc);
        RELEASE(sh.v_empty[u]);
        ++vi;
      }
      float inverse[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        total[r] = row_sum(total[r]);
        inverse[r] = total[r] == 0.f ? 0.f : 1.f / total[r];
      }
      // ---- O through shared memory: the thread that stores waits until its last store has read it, then all four warps write
      if (threadIdx.x % 128 == 0) cute::tma_store_wait<0>();
      NamedBarrier::sync(128, STORE + w);
      const int r = w * 64 + warp * 16 + lane % 16;
#pragma unroll
      for (int i = 0; i < D / 16; ++i)
        cute::SM90_U32x4_STSM_N::copy(pack(acc[8 * i] * inverse[0], acc[8 * i + 1] * inverse[0]), pack(acc[8 * i + 2] * inverse[1], acc[8 * i + 3] * inverse[1]),
                                      pack(acc[8 * i + 4] * inverse[0], acc[8 * i + 5] * inverse[0]), pack(acc[8 * i + 6] * inverse[1], acc[8 * i + 7] * inverse[1]),
                                      *reinterpret_cast<cute::uint128_t*>(&sh.o[i / 4][r * 64 + ((i % 4 * 2 + lane / 16) ^ (r & 7)) * 8]));
      cutlass::arch::fence_view_async_shared();
      NamedBarrier::sync(128, STORE + w);
      if (threadIdx.x % 128 == 0) {
        for (int p = 0; p < PANELS; ++p) cute::SM90_TMA_STORE_4D::copy(&mapO, &sh.o[p][w * 64 * 64], p * 64, m0 + w * 64, h, b);
        cute::tma_store_arrive();
      }
      if (lane % 4 == 0)
#pragma unroll
        for (int x = 0; x < 2; ++x)
          if (m0 + row + 8 * x < M) LSE[size_t(b * H + h) * M + m0 + row + 8 * x] = total[x] == 0.f ? -INFINITY : (top[x] + log2f(total[x])) * LN2;
    }
    if (threadIdx.x % 128 == 0) cute::tma_store_wait<0>();                 // shared memory stays until it is read
  }
}
