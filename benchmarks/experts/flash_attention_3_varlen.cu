// FlashAttention-3, forward, of packed sequences: q [rows, h, D] and o, k and v [keys, hk, D] or [pages, page, hk, D], lse [h, rows], a counter of units of work,
// cumulative lengths of q, and of k or lengths and a table of pages, and what the kernel that prepares the schedule writes.
#include <cstdlib>
#include "flash_fwd_launch_template.h"
#include "flash_prepare_scheduler.cu"
#include "tensors.h"

int main(int, char** argv) {
  int b = atoi(argv[1]), h = atoi(argv[2]), hk = atoi(argv[3]), rows = atoi(argv[4]), keys = atoi(argv[5]), m = atoi(argv[6]), n = atoi(argv[7]), d = HEAD_DIM;
  Flash_fwd_params p{};
  p.q_ptr = tensor(0), p.k_ptr = tensor(1), p.v_ptr = tensor(2), p.o_ptr = tensor(3), p.softmax_lse_ptr = tensor(4), p.tile_count_semaphore = (int*)tensor(5);
  p.q_row_stride = p.o_row_stride = h * d, p.k_row_stride = p.v_row_stride = hk * d;
  p.q_head_stride = p.o_head_stride = p.k_head_stride = p.v_head_stride = d, p.v_dim_stride = 1;
  p.b = p.b_k = b, p.h = h, p.h_k = hk, p.seqlen_q = m, p.seqlen_k = n, p.d = p.d_rounded = p.dv = p.dv_rounded = d;
  p.total_q = rows, p.total_k = keys, p.cu_seqlens_q = (int*)tensor(6);
  if (PAGE) {
    p.seqused_k = (int*)tensor(7), p.page_table = (int*)tensor(8), p.page_size = PAGE, p.num_pages = keys / PAGE, p.page_table_batch_stride = n / PAGE;
    p.k_batch_stride = p.v_batch_stride = int64_t(PAGE) * hk * d;
  } else {
    p.cu_seqlens_k = (int*)tensor(7);
  }
  p.num_m_blocks_ptr = (int*)tensor(9), p.num_splits_dynamic_ptr = (int*)tensor(10), p.varlen_batch_idx_ptr = (int*)tensor(11), p.num_nheads_in_l2_ptr = (int*)tensor(12);
  p.varlen_sort_batches = true, p.head_swizzle = IS_CAUSAL;
  p.seqlen_q_rounded = (m + 127) / 128 * 128, p.seqlen_k_rounded = (n + 127) / 128 * 128;
  p.scale_softmax = 1 / sqrtf(d), p.p_dropout = 1, p.rp_dropout = 1, p.p_dropout_in_uint8_t = 255;
  p.window_size_left = -1, p.window_size_right = IS_CAUSAL ? 0 : -1, p.is_causal = IS_CAUSAL, p.num_splits = 1, p.arch = 90, p.num_sm = 2;
  p.pack_gqa = PAGE != 0;
  run_flash_fwd<90, HEAD_DIM, HEAD_DIM, 1, cutlass::half_t, cutlass::half_t, IS_CAUSAL, false, false, true, (PAGE > 0), false, false, (PAGE > 0), false, false>(p, 0);
}
