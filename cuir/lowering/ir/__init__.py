"""The tile IR: values in registers and memory of a kernel's workers, in SSA form.

Checked kernels are built to it, and CUDA is printed from it.
"""
