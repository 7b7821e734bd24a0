// Headers that sm_80 adds.
#pragma once
#include "../../../include/headers.cuh"
#include <cute/arch/copy_sm80.hpp>
#include <cute/arch/mma_sm80.hpp>
