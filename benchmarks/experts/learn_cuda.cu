// learn-cuda's attention: q [b, m, 128], k and v [b, n, 128], o.
#include <cstdlib>
#include "attention_v5.cu"
#include "tensors.h"

int main(int, char** argv) {
  using T = nv_bfloat16;
  attention_v5((T*)tensor(0), (T*)tensor(1), (T*)tensor(2), (T*)tensor(3), atoi(argv[1]), atoi(argv[2]), atoi(argv[3]), 128);
}
