import pytest

from cuir.verification.coverage.condition_ranges import PossibleSides
from cuir.verification.coverage.conditions import collect_conditions

from .planted import check_body


def impossible(body: str, text: str) -> list[str]:
    checked = check_body(body)
    c = next(c for c in collect_conditions(checked) if c.text == text)
    mask = PossibleSides(checked).find_impossible(c)
    return [side for i, side in enumerate(c.sides) if mask >> i & 1]


@pytest.mark.parametrize(
    "body, text, sides",
    [
        ("f = 3.0 if t < 0 else 2.0", "t < 0", ["true"]),
        ("f = 3.0 if t == 511 else 2.0", "t == 511", []),
        ("f = 3.0 if n < 0 else 2.0", "n < 0", ["true"]),  # a counter that only grows
        ("f = 3.0 if n > 300 else 2.0", "n > 300", []),
        ("m = max(1, M)", "max(1, M)", ["operand 1"]),
        ("m = max(2, M)", "max(2, M)", []),
        ("m = (M + 63) // 64", "(M + 63) // 64", ["0"]),
        ("m = (t % 8) & 7", "t % 8 & 7", ["with other bits"]),
        ("for k in range(cdiv(M, 64)):\n                f = 2.0", "for k in range(cdiv(M, 64))", ["no turn"]),
        ("m = M % 4 % 4", "M % 4 % 4", ["at the divisor or beyond"]),
    ],
)
def test_sides_that_no_launch_takes(body: str, text: str, sides: list[str]) -> None:
    assert impossible(body, text) == sides
