"""What nvcc makes of a CUDA source, read: PTX parsed, its control flow, integers of each thread, and the low-level calls in it with their places in the sources."""
