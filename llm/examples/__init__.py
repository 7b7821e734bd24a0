"""Worked changes of kernels that prompts show, each a program beside its specification. Owns nothing else; what users adapt is in corpus/."""
