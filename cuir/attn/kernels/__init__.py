"""Attention as an object: verified kernels, their settings, and the backward pass."""
