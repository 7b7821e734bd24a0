"""Transfer: traced expressions in the splice points of expert kernels, forward and backward."""
