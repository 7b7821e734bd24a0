"""From CUDA text to a kernel that is called: nvcc and its cache, launches, the checks of a call and how a repeated one skips them."""
