// Attention forward in the style of FlashAttention-2, for sm_80: cp.async, ldmatrix, mma.sync, online softmax; causal, f16.
//
//   O[b, h, q, :] = softmax over keys k <= q + N - M of (scale * Q K^T) V;   LSE: the natural logarithm of the softmax's sum
//   Q, O [B, H, M, D], K, V [B, HK, N, D] f16 and contiguous, LSE [B, H, M] f32; query head h reads key head h / (H / HK).
//   A query without a key gives O = 0 and LSE = -inf. flash_fwd_sm80.launch.toml says how to compile and launch it.
//
//   Four warps, all alike: each owns 16 query rows, and copies its quarter of every tile. K and V have two stages each; K of the next block is
//   under way while this block's scores are computed, V of the next one while its weights are multiplied with V.
#include <cstdint>
#include <cuda_fp16.h>
#include <cute/arch/copy_sm75.hpp>
#include <cute/arch/copy_sm80.hpp>
#include <cute/arch/mma_sm80.hpp>

#ifndef HEAD_DIM
#define HEAD_DIM 128                                         // 64 or 128
#endif
#define DEV static __device__ __forceinline__

constexpr int D = HEAD_DIM;
constexpr int WARPS = 4;
constexpr int BM = 16 * WARPS;                               // queries of a tile
constexpr int BN = 64;                                       // keys of a block
constexpr int STAGES = 2;                                    // of K and of V
constexpr int THREADS = 32 * WARPS;
constexpr int CHUNKS = D / 8;                                // 16-byte chunks of a row
constexpr float LOG2E = 1.4426950408889634f, LN2 = 0.6931471805599453f;

struct Shared {
  alignas(128) __half q[BM * D];
  alignas(128) __half k[STAGES][BN * D];
  alignas(128) __half v[STAGES][BN * D];
};

// Chunk c of row r lies at chunk c ^ (r % 8): eight rows of one chunk, as ldmatrix reads them, are then in different banks.
DEV int at(int r, int c) { return r * D + ((c ^ (r & 7)) << 3); }

// This warp's `rows` rows of a tile, from row `own` on, are copied asynchronously; `first` is the tile's first row in `source`, and rows from `limit` on are zeros.
DEV void copy_rows(__half* tile, const __half* source, int first, int limit, int own, int rows, int lane) {
#pragma unroll
  for (int i = lane; i < rows * CHUNKS; i += 32) {
    const int r = own + i / CHUNKS, c = i % CHUNKS;
    const bool inside = first + r < limit;
    const __half* from = source + (inside ? size_t(first + r) * D : 0) + c * 8;
    cute::SM80_CP_ASYNC_CACHEGLOBAL_ZFILL<cute::uint128_t>::copy(*reinterpret_cast<const cute::uint128_t*>(from),
                                                                 *reinterpret_cast<cute::uint128_t*>(tile + at(r, c)), inside);
  }
}

DEV void load_matrices(uint32_t (&x)[4], const __half* from) {
  cute::SM75_U32x4_LDSM_N::copy(*reinterpret_cast<const cute::uint128_t*>(from), x[0], x[1], x[2], x[3]);
}
DEV void load_matrices_transposed(uint32_t (&x)[4], const __half* from) {
  cute::SM75_U16x8_LDSM_T::copy(*reinterpret_cast<const cute::uint128_t*>(from), x[0], x[1], x[2], x[3]);
}
DEV void multiply(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {   // d (16 x 8) += a (16 x 16) b (16 x 8)
  cute::SM80_16x8x16_F32F16F16F32_TN::fma(d[0], d[1], d[2], d[3], a[0], a[1], a[2], a[3], b0, b1, d[0], d[1], d[2], d[3]);
}
DEV uint32_t pack(float lo, float hi) {
  const __half2 h = __floats2half2_rn(lo, hi);
  return reinterpret_cast<const uint32_t&>(h);
}
DEV float row_max(float x) { x = fmaxf(x, __shfl_xor_sync(~0u, x, 1)); return fmaxf(x, __shfl_xor_sync(~0u, x, 2)); }
DEV float row_sum(float x) { x += __shfl_xor_sync(~0u, x, 1); return x + __shfl_xor_sync(~0u, x, 2); }

extern "C" __global__ void __launch_bounds__(THREADS)
flash_fwd(const __half* __restrict__ Q, const __half* __restrict__ K, const __half* __restrict__ V, __half* __restrict__ O,
          float* __restrict__ LSE, int B, int H, int HK, int M, int N, float scale) {
  extern __shared__ __align__(128) uint8_t memory[];
  Shared& sh = *reinterpret_cast<Shared*>(memory);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int tiles_m = (M + BM - 1) / BM;
  const float c = scale * LOG2E;                             // scores times c are logits of base 2

  for (int t = blockIdx.x; t < tiles_m * H * B; t += gridDim.x) {
    const int h = t % H, b = t / H % B, m0 = (tiles_m - 1 - t / (H * B)) * BM;            // longest first, heads of one key head adjacent
    const __half* q = Q + size_t(b * H + h) * M * D;
    const __half* k = K + size_t(b * HK + h / (H / HK)) * N * D;
    const __half* v = V + size_t(b * HK + h / (H / HK)) * N * D;
    const int last = min(N, m0 + BM + N - M);                // keys from here on are for no query of the tile
    const int n = max(0, (last + BN - 1) / BN);              // blocks to visit, from the last to the first
    const int clear = max(0, min(N, m0 + 1 + N - M)) / BN;   // blocks before this one are kept whole

    float acc[D / 8][4] = {}, top[2] = {-INFINITY, -INFINITY}, total[2] = {0.f, 0.f};     // of rows lane / 4 and + 8
    if (n > 0) {
      copy_rows(sh.q, q, m0, M, warp * 16, 16, lane);
      copy_rows(sh.k[0], k, (n - 1) * BN, N, warp * (BN / WARPS), BN / WARPS, lane);
      cute::cp_async_fence();
      copy_rows(sh.v[0], v, (n - 1) * BN, N, warp * (BN / WARPS), BN / WARPS, lane);
      cute::cp_async_fence();
      cute::cp_async_wait<1>();                              // Q and K have landed, V may be under way
      __syncwarp();
      uint32_t a[D / 16][4];                                 // this warp's rows of Q, which it copied itself
#pragma unroll
      for (int i = 0; i < D / 16; ++i) load_matrices(a[i], sh.q + at(warp * 16 + lane % 16, 2 * i + lane / 16));

      for (int i = 0; i < n; ++i) {
        const int j = n - 1 - i, s = i % STAGES, next = (i + 1) % STAGES;
        cute::cp_async_wait<1>();                            // K of this block
        __syncthreads();                                     // ... of all warps; and all have left the block before
        if (i + 1 < n) copy_rows(sh.k[next], k, (j - 1) * BN, N, warp * (BN / WARPS), BN / WARPS, lane);
        cute::cp_async_fence();                              // a group in the last block too, so that the counts stay

        float S[BN / 8][4] = {};
#pragma unroll
        for (int kk = 0; kk < D / 16; ++kk)
#pragma unroll
          for (int nn = 0; nn < BN / 16; ++nn) {
            uint32_t x[4];
            load_matrices(x, sh.k[s] + at(nn * 16 + lane / 16 * 8 + lane % 8, 2 * kk + lane / 8 % 2));
            multiply(S[2 * nn], a[kk], x[0], x[1]);
            multiply(S[2 * nn + 1], a[kk], x[2], x[3]);
          }
        if (j >= clear) {                                    // keys that not every row keeps
#pragma unroll
          for (int nn = 0; nn < BN / 8; ++nn)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
              const int key = j * BN + nn * 8 + lane % 4 * 2 + e % 2, query = m0 + warp * 16 + lane / 4 + e / 2 * 8;
              if (key >= N || key > query + N - M) S[nn][e] = -INFINITY;
            }
        }
        float alpha[2], shift[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          float x = -INFINITY;
#pragma unroll
          for (int nn = 0; nn < BN / 8; ++nn) x = fmaxf(x, fmaxf(S[nn][2 * r], S[nn][2 * r + 1]));
          const float grown = fmaxf(top[r], row_max(x) * c);
          shift[r] = grown == -INFINITY ? 0.f : grown;       // a row that has kept no key yet
          alpha[r] = exp2f(top[r] - shift[r]);
          top[r] = grown;
          total[r] *= alpha[r];
        }
#pragma unroll
        for (int nn = 0; nn < BN / 8; ++nn)
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            S[nn][e] = exp2f(S[nn][e] * c - shift[e / 2]);
            total[e / 2] += S[nn][e];                        // of this thread's columns; the quad's sum is taken at the end
          }
#pragma unroll
        for (int dd = 0; dd < D / 8; ++dd)
#pragma unroll
          for (int e = 0; e < 4; ++e) acc[dd][e] *= alpha[e / 2];

        cute::cp_async_wait<1>();                            // V of this block
        __syncthreads();
        if (i + 1 < n) copy_rows(sh.v[next], v, (j - 1) * BN, N, warp * (BN / WARPS), BN / WARPS, lane);
        cute::cp_async_fence();
#pragma unroll
        for (int kk = 0; kk < BN / 16; ++kk) {
          const uint32_t p[4] = {pack(S[2 * kk][0], S[2 * kk][1]), pack(S[2 * kk][2], S[2 * kk][3]),
                                 pack(S[2 * kk + 1][0], S[2 * kk + 1][1]), pack(S[2 * kk + 1][2], S[2 * kk + 1][3])};
#pragma unroll
          for (int dd = 0; dd < D / 16; ++dd) {
            uint32_t x[4];
            load_matrices_transposed(x, sh.v[s] + at(kk * 16 + lane % 16, 2 * dd + lane / 16));
            multiply(acc[2 * dd], p, x[0], x[1]);
            multiply(acc[2 * dd + 1], p, x[2], x[3]);
          }
        }
      }
      cute::cp_async_wait<0>();
      __syncthreads();                                       // before the next tile overwrites a stage
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = m0 + warp * 16 + lane / 4 + 8 * r;
      const float sum = row_sum(total[r]), inverse = sum == 0.f ? 0.f : 1.f / sum;
      if (row < M) {
        __half* out = O + (size_t(b * H + h) * M + row) * D + lane % 4 * 2;
#pragma unroll
        for (int dd = 0; dd < D / 8; ++dd)
          *reinterpret_cast<__half2*>(out + dd * 8) = __floats2half2_rn(acc[dd][2 * r] * inverse, acc[dd][2 * r + 1] * inverse);
        if (lane % 4 == 0) LSE[size_t(b * H + h) * M + row] = sum == 0.f ? -INFINITY : (top[r] + log2f(sum)) * LN2;
      }
    }
  }
}
