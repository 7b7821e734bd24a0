// FlashAttention-2, forward: q [b, m, h, D], k and v [b, n, hk, D], o, lse [b, h, m].
#include <cstdlib>
#include "flash_fwd_kernel.h"
#include "flash.h"
#include "tensors.h"

using Traits = Flash_fwd_kernel_traits<HEAD_DIM, 128, HEAD_DIM == 64 ? 128 : 64, 4, false, false, cutlass::half_t>;
constexpr bool CAUSAL = IS_CAUSAL;
__global__ void forward(const __grid_constant__ flash::Flash_fwd_params params) {
  flash::compute_attn<Traits, false, CAUSAL, false, false, false, true, false, false>(params);
}

int main(int, char** argv) {
  int b = atoi(argv[1]), h = atoi(argv[2]), hk = atoi(argv[3]), m = atoi(argv[4]), n = atoi(argv[5]), d = HEAD_DIM;
  flash::Flash_fwd_params p{};
  p.q_ptr = tensor(0), p.k_ptr = tensor(1), p.v_ptr = tensor(2), p.o_ptr = tensor(3), p.softmax_lse_ptr = tensor(4);
  p.q_batch_stride = p.o_batch_stride = int64_t(m) * h * d, p.k_batch_stride = p.v_batch_stride = int64_t(n) * hk * d;
  p.q_row_stride = p.o_row_stride = h * d, p.k_row_stride = p.v_row_stride = hk * d;
  p.q_head_stride = p.o_head_stride = p.k_head_stride = p.v_head_stride = d;
  p.b = b, p.h = h, p.h_k = hk, p.h_h_k_ratio = h / hk, p.seqlen_q = m, p.seqlen_k = n, p.d = p.d_rounded = d;
  p.seqlen_q_rounded = (m + 127) / 128 * 128, p.seqlen_k_rounded = (n + 127) / 128 * 128;
  p.scale_softmax = 1 / sqrtf(d), p.scale_softmax_log2 = p.scale_softmax * M_LOG2E;
  p.p_dropout = 1, p.rp_dropout = 1, p.p_dropout_in_uint8_t = 255, p.scale_softmax_rp_dropout = p.scale_softmax;
  p.window_size_left = -1, p.window_size_right = CAUSAL ? 0 : -1, p.is_causal = CAUSAL, p.is_seqlens_k_cumulative = true, p.num_splits = 1;
  forward<<<dim3((m + 127) / 128, b, h), Traits::kNThreads, Traits::kSmemSize>>>(p);
}
