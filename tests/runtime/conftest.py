"""The fixtures of tests/lowering: a kernel to compile, a compiler that pretends, none at all."""

from tests.lowering.conftest import cuda, no_nvcc, pretend

__all__ = ["cuda", "no_nvcc", "pretend"]
