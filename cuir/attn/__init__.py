"""Attention: everything that knows Q, K and V, from PyTorch mods to calls of kernels."""
