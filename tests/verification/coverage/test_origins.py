"""Origins of the values of expressions: numbers of the launch, elements of inputs, data; index tiles."""

from __future__ import annotations

import pytest

from cuir.syntax.nodes import Assign, Expr
from cuir.syntax.walk import walk
from cuir.verification.coverage.origins import INPUTS, NUMBERS, RUN, Origins

from .planted import check_body

TENSORS = ", L: Global[i32, B], W: Global[i32, M], V: Global[f32, M]"
LINE = "\n            "
INNER = LINE + "    "


def origins_of(body: str, use: str) -> tuple[Origins, Expr]:
    """The origins of a kernel, and the last expression that it binds to `z`, which it stores."""
    checked = check_body(f"{body}{LINE}{use}", TENSORS)
    values = [n.value for s in checked.roles[0].body for n in walk(s) if isinstance(n, Assign) and n.targets[0] == "z"]
    return Origins(checked), values[-1]


@pytest.mark.parametrize(
    ("body", "level"),
    [
        ("z = t % 2 + M", NUMBERS),
        ("z = L[b] + t", INPUTS),
        ("z = L[L[b]]", INPUTS),
        ("z = W[t] + t", RUN),  # the kernel writes W
        (f"g = 0{LINE}if L[b] > 3:{INNER}g = t{LINE}z = g + 1", INPUTS),  # the branch decides
        (f"g = 0{LINE}for k in range(L[b]):{INNER}g += 1{LINE}z = g + 1", INPUTS),  # the number of turns decides
        (f"g = 0{LINE}for k in range(M):{INNER}g += k{LINE}z = g + 1", NUMBERS),
        (f"g = 0{LINE}for k in range(M):{INNER}g += L[k]{LINE}z = g + 1", INPUTS),
        (f"g = 0{LINE}for k in range(M):{INNER}g += W[k]{LINE}z = g + 1", RUN),
    ],
)
def test_what_numbers_follow_from(body: str, level: int) -> None:
    origins, z = origins_of(body, "store(W[t], z)")
    assert origins.find_level(z) == level


@pytest.mark.parametrize(
    ("body", "is_index", "varies"),
    [
        ("z = rows(16) + 1", True, False),
        ("z = rows(16) + m * 16", True, True),
        ("z = rows(16) + L[b]", True, True),
        ("z = rows(16) + W[t]", False, True),
        ("z = cast(cast(rows(16), f32) * 0.5, i32)", False, True),
    ],
)
def test_index_tiles(body: str, is_index: bool, varies: bool) -> None:
    origins, z = origins_of(body, "store(W[m * 16 + rows(16)], z)")
    assert (origins.is_index(z), origins.varies(z)) == (is_index, varies)


def test_a_reduction_is_data() -> None:
    origins, z = origins_of("z = row_max(cast(rows(16) + cols(32), f32))", "store(V[m * 16 + rows(16)], z)")
    assert origins.find_level(z) == RUN and not origins.is_index(z)
