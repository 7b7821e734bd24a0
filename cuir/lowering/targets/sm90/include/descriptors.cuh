// Descriptors of wgmma operands.
#pragma once
#include "headers.cuh"

namespace cuir {

//@ section descriptors

//@ part descriptor
// wgmma descriptor: address and leading offset in units of 16 bytes (the low word), 1024 bytes between groups of 8 rows, 128-byte swizzle
DEV uint64_t descriptor(uint32_t low) { return uint64_t(0x40000040) << 32 | low; }

//@ part descriptor_at
// The descriptor of a place i * step units of 16 bytes on in the same array, by one wide multiply-add: no carry leaves the address
DEV uint64_t descriptor_at(uint64_t base, int i, uint32_t step) { return base + uint64_t(uint32_t(i)) * step; }

}  // namespace cuir
