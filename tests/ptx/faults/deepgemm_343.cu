// Products of groups: a thread loads boxes into a ring, by a map in memory that it writes anew for each group. Nothing
// waits for the copies of the group before, which may still read the map.
#include "ptx.cuh"
struct alignas(64) Map { char bytes[128]; };
KERNEL deepgemm_343(const __grid_constant__ Map map, Map* in_memory, const float* x, float* y, int groups, int steps) {
  __shared__ alignas(128) float box[2][128];
  __shared__ alignas(128) Map changed;
  __shared__ uint64_t full[2], empty[2];
  int t = threadIdx.x, n = 0;
  if (t == 0) {
    for (int s = 0; s < 2; s++) { INIT(&full[s], 1); INIT(&empty[s], 1); }
    FENCE_INIT;
    changed = map;
  }
  __syncthreads();
  if (t == 0) {
    for (int group = 0; group < groups; group++) {
      REPLACE_ADDRESS(&changed, x + 128 * steps * group);
#ifdef FIXED
      for (int back = n > 2 ? n - 2 : 0; back < n; back++) WAIT(&full[back % 2], back / 2 & 1);
#endif
      *in_memory = changed;
      RELEASE_MAP;
      ACQUIRE_MAP(in_memory);
      for (int step = 0; step < steps; step++, n++) {
        WAIT(&empty[n % 2], ~(n / 2) & 1);
        ARRIVE_EXPECT(&full[n % 2], 512);
        LOAD_BOX(box[n % 2], in_memory, 0, 8 * step, &full[n % 2]);
      }
    }
  } else if (t >= 32) {
    for (int group = 0; group < groups; group++) {
      float sum = 0;
      for (int step = 0; step < steps; step++, n++) {
        WAIT(&full[n % 2], n / 2 & 1);
        for (int i = t - 32; i < 128; i += 32) sum += box[n % 2][i];
        __syncwarp();
        if (t == 32) ARRIVE(&empty[n % 2]);
      }
      y[32 * group + t - 32] = sum;
    }
  }
}
