"""Mods of PyTorch traced as expressions of CuIR."""
