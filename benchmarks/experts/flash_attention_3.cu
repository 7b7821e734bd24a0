// FlashAttention-3, forward: q [b, m, h, D], k and v [b, n, hk, D], o, lse [b, h, m], a counter of units of work.
#include <cstdlib>
#include "flash_fwd_launch_template.h"
#include "tensors.h"

void prepare_varlen_num_blocks(Flash_fwd_params&, cudaStream_t, bool, int, int, bool) {}

int main(int, char** argv) {
  int b = atoi(argv[1]), h = atoi(argv[2]), hk = atoi(argv[3]), m = atoi(argv[4]), n = atoi(argv[5]), d = HEAD_DIM;
  Flash_fwd_params p{};
  p.q_ptr = tensor(0), p.k_ptr = tensor(1), p.v_ptr = tensor(2), p.o_ptr = tensor(3), p.softmax_lse_ptr = tensor(4), p.tile_count_semaphore = (int*)tensor(5);
  p.q_batch_stride = p.o_batch_stride = int64_t(m) * h * d, p.k_batch_stride = p.v_batch_stride = int64_t(n) * hk * d;
  p.q_row_stride = p.o_row_stride = h * d, p.k_row_stride = p.v_row_stride = hk * d;
  p.q_head_stride = p.o_head_stride = p.k_head_stride = p.v_head_stride = d, p.v_dim_stride = 1;
  p.b = p.b_k = b, p.h = h, p.h_k = hk, p.seqlen_q = m, p.seqlen_k = n, p.d = p.d_rounded = p.dv = p.dv_rounded = d;
  p.seqlen_q_rounded = (m + 127) / 128 * 128, p.seqlen_k_rounded = (n + 127) / 128 * 128;
  p.scale_softmax = 1 / sqrtf(d), p.p_dropout = 1, p.rp_dropout = 1, p.p_dropout_in_uint8_t = 255;
  p.window_size_left = -1, p.window_size_right = IS_CAUSAL ? 0 : -1, p.is_causal = IS_CAUSAL, p.num_splits = 1, p.arch = 90, p.num_sm = 2;
  run_flash_fwd<90, HEAD_DIM, HEAD_DIM, CLUSTER, cutlass::half_t, cutlass::half_t, IS_CAUSAL, false, false, false, false, false, false, false, false, false>(p, 0);
}
