"""Judge of CUDA and Triton solutions for a PyTorch module: `cuir judge REFERENCE.py SOLUTION`."""
