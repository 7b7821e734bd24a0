"""The command line, as in its own tests."""

from tests.cli.conftest import cuir

__all__ = ["cuir"]
