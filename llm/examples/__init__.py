"""Worked changes of kernels that prompts show, each a program beside its specification."""
