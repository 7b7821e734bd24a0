"""The tile IR: values in registers and memory of a kernel's workers, in SSA form.

It stands between a checked kernel and CUDA.
"""
