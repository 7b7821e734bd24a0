"""Types of elements: their names in messages, and in arguments that a failing test prints."""

from __future__ import annotations

from cuir.syntax.types import DTYPES


def test_a_dtype_is_its_name_on_one_line() -> None:
    assert [repr(d) for d in DTYPES.values()] == list(DTYPES) and [str(d) for d in DTYPES.values()] == list(DTYPES)
    assert repr({"T": DTYPES["f16"]}) == "{'T': f16}"
