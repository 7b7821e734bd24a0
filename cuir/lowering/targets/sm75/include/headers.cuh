// Headers that sm_75 adds.
#pragma once
#include "../../../include/headers.cuh"
#include <cute/arch/copy_sm75.hpp>
