// Work items: a ring of slots in a CTA, numbers drawn for a cluster.
#pragma once
#include "headers.cuh"
#include "../../../include/addresses.cuh"
#include "mbarriers.cuh"

namespace cuir {

//@ section queues

//@ part TileQueue needs Bar, wait, arrive_warp defines Slots
// Units of work in a ring of slots, WORDS words each: the unit's number, and what follows from it. One lane of the CTA posts them; every other warp that
// works on units takes each of them, in order.
template <int SLOTS, int WORDS> struct Slots { uint64_t full[SLOTS], empty[SLOTS], ahead; alignas(16) int unit[SLOTS][WORDS]; };
template <int SLOTS, int WORDS> struct TileQueue {
  Slots<SLOTS, WORDS>* slots; unsigned use;
  DEV_MEMBER explicit TileQueue(Slots<SLOTS, WORDS>* s) : slots(s), use(0) {}
  DEV_MEMBER void reserve() { wait(&slots->empty[use % SLOTS], use / SLOTS % 2 ^ 1); }   // until the next slot is free
  DEV_MEMBER void reserve_ahead() { wait(&slots->ahead, (use - 1) % 2); reserve(); }      // and the roles of single warps have taken the last unit
  DEV_MEMBER void post(const int (&unit)[WORDS]) {
#pragma unroll
    for (int i = 0; i < WORDS; i += 4) *reinterpret_cast<int4*>(slots->unit[use % SLOTS] + i) = make_int4(unit[i], unit[i + 1], unit[i + 2], unit[i + 3]);
    asm volatile("" ::: "memory");
    Bar::arrive(&slots->full[use++ % SLOTS]);
  }
  DEV_MEMBER void read(int (&unit)[WORDS]) {
    wait(&slots->full[use % SLOTS], use / SLOTS % 2);
#pragma unroll
    for (int i = 0; i < WORDS; i += 4) {
      const int4 x = *reinterpret_cast<const int4*>(slots->unit[use % SLOTS] + i);
      unit[i] = x.x; unit[i + 1] = x.y; unit[i + 2] = x.z; unit[i + 3] = x.w;
    }
    asm volatile("" ::: "memory");   // read before the slot is given back
  }
  DEV_MEMBER int take_single(int (&unit)[WORDS]) { read(unit); Bar::arrive(&slots->empty[use++ % SLOTS]); return unit[0]; }
  DEV_MEMBER int take_ahead(int (&unit)[WORDS]) { read(unit); Bar::arrive(&slots->ahead); Bar::arrive(&slots->empty[use++ % SLOTS]); return unit[0]; }
  DEV_MEMBER int take(int (&unit)[WORDS], int lane) {   // by all lanes of a warp; the number is uniform
    read(unit);
    arrive_warp(&slots->empty[use++ % SLOTS], lane);
    return unit[0] = __shfl_sync(~0u, unit[0], 0);
  }
};

//@ part take_unjoined needs TileQueue
// As `take`, without a join of the lanes before the slot is given back
template <int SLOTS, int WORDS> DEV int take_unjoined(TileQueue<SLOTS, WORDS>& queue, int (&unit)[WORDS], int lane) {
  queue.read(unit);
  if (lane == 0) Bar::arrive(&queue.slots->empty[queue.use % SLOTS]);
  ++queue.use;
  return unit[0] = __shfl_sync(~0u, unit[0], 0);
}

//@ part Tickets needs Bar, wait, expect, address defines Mail
// Numbers of units of work for a cluster: its first CTA draws them and sends them to the others, one at a time. For one lane of each CTA.
struct Mail { uint64_t full, empty; int unit; };
template <int CTAS> struct Tickets {
  Mail* mail; unsigned* counter; int parity;
  DEV_MEMBER Tickets(Mail* m, unsigned* c) : mail(m), counter(c), parity(0) {}
  DEV_MEMBER int next(int drawn, int count) {   // `drawn`: numbers that the clusters began with
    int t;
    if (cute::block_rank_in_cluster() == 0) {
      t = drawn + int(atomicInc(counter, count - 1));
      wait(&mail->empty, parity ^ 1);           // the others have read the number before
#pragma unroll
      for (int cta = 1; cta < CTAS; ++cta) cute::store_shared_remote(uint32_t(t), address(&mail->unit), address(&mail->full), cta);
    } else {
      expect(&mail->full, 4);                   // bytes that the store brings with it
      wait(&mail->full, parity);
      t = *(const volatile int*)&mail->unit;
      Bar::arrive(&mail->empty, 0, true);
    }
    parity ^= 1;
    return t;
  }
};

}  // namespace cuir
