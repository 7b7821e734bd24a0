// Headers of every target, and the qualifiers of device functions.
#pragma once
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cstdint>
#include <cute/arch/copy_sm75.hpp>

#define DEV static __device__ __forceinline__
#define DEV_MEMBER __device__ __forceinline__
