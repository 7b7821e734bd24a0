"""From CUDA text to a callable kernel: nvcc and its cache, launches, and checks of calls.

Repeated calls skip the checks.
"""
