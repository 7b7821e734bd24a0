"""Printing of tile IR as CUDA C++."""
