"""Reader of PTX that nvcc makes of a CUDA source.

It parses PTX, and finds its control flow, the integers of each thread, and the low-level calls with their places in the
sources.
"""
