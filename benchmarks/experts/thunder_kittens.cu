// ThunderKittens' attention for Hopper, forward: q [b, h, n, 64], k and v [b, hk, n, 64], o, and a scaled lse [b, h, n].
#include "mha_h100.cu"
#include "tensors.h"

int main(int, char** argv) {
  unsigned b = atoi(argv[1]), h = atoi(argv[2]), hk = atoi(argv[3]), n = atoi(argv[4]), d = 64;
  using Globals = fwd_globals<64>;
  Globals::q_gl q{(bf16*)tensor(0), b, h, n, d};
  Globals::k_gl k{(bf16*)tensor(1), b, hk, n, d};
  Globals::v_gl v{(bf16*)tensor(2), b, hk, n, d};
  Globals::l_gl l{(float*)tensor(4), b, h, 1U, n};
  Globals::o_gl o{(bf16*)tensor(3), b, h, n, d};
  Globals g{q, k, v, l, o, int(n), int(h / hk)};
  fwd_attend_ker<64, IS_CAUSAL><<<dim3(n / 192, h, b), 32 * NUM_WORKERS, kittens::MAX_SHARED_MEMORY - 1024>>>(g);
}
