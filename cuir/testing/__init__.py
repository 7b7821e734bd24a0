"""Differential tests of kernels and attention rules against PyTorch, for pytest and Hypothesis.

`strategies` needs Hypothesis (`pip install cubridge[testing]`); the assertions do not. Names are imported when they are
first read: the plug-in is loaded by every run of pytest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import strategies
    from .attention_matching import assert_attention_matches
    from .cuda_matching import assert_cuda_matches
    from .matching import assert_matches
    from .session_settings import MismatchError

__all__ = ["MismatchError", "assert_attention_matches", "assert_cuda_matches", "assert_matches", "strategies"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "strategies":
        import cuir.testing.strategies as module  # `from . import` would call this function again

        return module
    from .attention_matching import assert_attention_matches
    from .cuda_matching import assert_cuda_matches
    from .matching import assert_matches
    from .session_settings import MismatchError

    assertions = {f.__name__: f for f in (assert_attention_matches, assert_cuda_matches, assert_matches)}
    return {"MismatchError": MismatchError, **assertions}[name]
