"""The stand-in for CUDA's runtime has every name of the runtime, and is compiled once."""

from __future__ import annotations

import pytest

from cuir.ptx.launch.stand_in import build_stand_in, find_runtime, list_symbols


@pytest.mark.nvcc
def test_the_stand_in_has_every_name_of_the_runtime() -> None:
    library = build_stand_in()
    written = library.stat().st_mtime_ns
    names = list_symbols(find_runtime())
    assert len(names) > 200 and "cudaLaunchKernel" in names
    assert names <= list_symbols(library)
    assert build_stand_in() == library and library.stat().st_mtime_ns >= written
