"""Every value becomes JSON that a strict reader takes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cuir.jsontext import to_json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just(Path("a") / "b"),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")


@given(st.dictionaries(st.text(max_size=3), VALUES, max_size=4))
def test_strict_json(value: dict[str, Any]) -> None:
    found = json.loads(to_json(value), parse_constant=refuse)
    assert found.keys() == value.keys()


def test_numbers() -> None:
    assert json.loads(to_json({"a": [1.5, math.nan, -math.inf], "b": True, "c": Path("x")})) == {
        "a": [1.5, None, None],
        "b": True,
        "c": "x",
    }
