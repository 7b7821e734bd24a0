// FlashMLA, decoding: q [b, 1, h, 576], k [blocks, 64, 1, 576], o [b, 1, h, 512], lse [b, 1, h], block table, lengths, schedule, splits, and what is left of splits.
#include <cstdlib>
#include "sm90/decode/dense/splitkv_mla.cuh"
#include "tensors.h"

int main(int, char** argv) {
  int b = atoi(argv[1]), h = atoi(argv[2]), blocks = atoi(argv[3]), width = atoi(argv[4]), parts = atoi(argv[5]);
  DenseAttnDecodeParams p{};
  p.b = b, p.s_q = 1, p.q_seq_per_hk = h, p.d = 576, p.d_v = 512, p.h_q = h, p.h_k = 1, p.num_blocks = blocks, p.q_head_per_hk = h, p.is_causal = false;
  p.scale_softmax = 1 / sqrtf(576), p.scale_softmax_log2 = p.scale_softmax * M_LOG2E;
  p.q_ptr = tensor(0), p.k_ptr = tensor(1), p.o_ptr = tensor(2), p.softmax_lse_ptr = (float*)tensor(3);
  p.q_batch_stride = h * 576, p.k_batch_stride = 64 * 576, p.o_batch_stride = h * 512;
  p.q_row_stride = p.k_row_stride = 576, p.o_row_stride = 512;
  p.q_head_stride = h * 576, p.k_head_stride = 576, p.o_head_stride = h * 512;
  p.block_table = (int*)tensor(4), p.block_table_batch_stride = width, p.page_block_size = 64, p.seqlens_k_ptr = (int*)tensor(5);
  p.tile_scheduler_metadata_ptr = (DecodingSchedMeta*)tensor(6), p.num_sm_parts = parts, p.num_splits_ptr = (int*)tensor(7), p.total_num_splits = b + parts;
  p.softmax_lseaccum_ptr = (float*)tensor(8), p.oaccum_ptr = (float*)tensor(9);
  sm90::run_flash_splitkv_mla_kernel<cutlass::half_t>(p);
}
