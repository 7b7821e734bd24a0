// FlashAttention-3, backward: q, o, do [b, m, h, D], k and v [b, n, h, D], lse [b, h, m], dq, dk, dv, and scratch: sums of do o, lse of base 2, dq in float.
#include <cstdlib>
#include "flash_bwd_launch_template.h"
#include "tensors.h"

int main(int, char** argv) {
  int b = atoi(argv[1]), h = atoi(argv[2]), m = atoi(argv[3]), n = atoi(argv[4]), d = HEAD_DIM;
  Flash_bwd_params p{};
  p.q_ptr = tensor(0), p.k_ptr = tensor(1), p.v_ptr = tensor(2), p.o_ptr = tensor(3), p.softmax_lse_ptr = tensor(4);
  p.do_ptr = tensor(5), p.dq_ptr = tensor(6), p.dk_ptr = tensor(7), p.dv_ptr = tensor(8);
  p.dsoftmax_sum = tensor(9), p.softmax_lse_log2_ptr = tensor(10), p.dq_accum_ptr = tensor(11);
  p.q_batch_stride = p.o_batch_stride = p.do_batch_stride = p.dq_batch_stride = int64_t(m) * h * d;
  p.k_batch_stride = p.v_batch_stride = p.dk_batch_stride = p.dv_batch_stride = int64_t(n) * h * d;
  p.q_row_stride = p.o_row_stride = p.do_row_stride = p.dq_row_stride = p.k_row_stride = p.v_row_stride = p.dk_row_stride = p.dv_row_stride = h * d;
  p.q_head_stride = p.o_head_stride = p.do_head_stride = p.dq_head_stride = p.k_head_stride = p.v_head_stride = p.dk_head_stride = p.dv_head_stride = d;
  p.v_dim_stride = 1, p.b = p.b_k = b, p.h = p.h_k = h, p.seqlen_q = m, p.seqlen_k = n, p.d = p.d_rounded = p.dv = p.dv_rounded = d;
  p.seqlen_q_rounded = (m + BLOCK_M - 1) / BLOCK_M * BLOCK_M, p.seqlen_k_rounded = (n + 127) / 128 * 128;
  p.scale_softmax = 1 / sqrtf(d), p.p_dropout = 1, p.rp_dropout = 1, p.p_dropout_in_uint8_t = 255;
  p.window_size_left = -1, p.window_size_right = IS_CAUSAL ? 0 : -1, p.is_causal = IS_CAUSAL, p.arch = 90, p.num_sm = 2;
  run_flash_bwd<90, HEAD_DIM, BLOCK_M, 128, cutlass::half_t, IS_CAUSAL, false, false, false, false, false, 2, 2, true, false, HEAD_DIM == 128 && !IS_CAUSAL, 2, 1, 2, HEAD_DIM == 64 ? 2 : 1>(p, 0);
}
