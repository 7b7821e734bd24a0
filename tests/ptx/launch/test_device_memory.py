"""Allocations of the device's memory: which of the host's bytes are defined, before and after entries are single bytes."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cuir.ptx.launch.device_memory import Allocation, make_memory, make_shadow


@given(st.lists(st.booleans(), min_size=1, max_size=40), st.booleans())
def test_what_the_host_has_defined_is_kept(bits: list[bool], single: bool) -> None:
    """An allocation of odd size gives each byte its entry; else four bytes share one."""
    defined, expected = np.array(bits, np.uint8), np.array(bits, np.uint8)
    first = [Allocation("first", 0, 5 if single else 4, None)]
    a = Allocation("a", 256, len(bits), np.arange(len(bits), dtype=np.uint8), defined)
    memory = make_memory([*first, a], 512, make_shadow(512, []))
    assert memory.shadow is not None and memory.shadow.shift == (0 if single or len(bits) % 4 else 2)
    written = np.repeat(memory.shadow.written[memory.shadow.find_span(256, len(bits))] >= 0, 1 << memory.shadow.shift)
    if memory.shadow.shift:
        expected = np.repeat(expected.reshape(-1, 4).any(1), 4)
    assert written[: len(bits)].tolist() == expected.astype(bool).tolist()
    memory.shadow.written[memory.shadow.find_span(256, len(bits))] = 1
    memory.keep(a)
    assert defined.all()
