import pytest

import cuir
from cuir.checking.checker import check
from cuir.verification.coverage.conditions import collect_conditions
from cuir.verification.coverage.targets import compute_period

from .planted import check_body, text_of


def find_conditions(body: str, more: str = "") -> list[tuple[str, str, bool]]:
    """Conditions of the line: kind, text, whether of a tile."""
    plain = {c.text for c in collect_conditions(check_body(""))}
    return [(c.kind, c.text, c.tile) for c in collect_conditions(check_body(body, more)) if c.text not in plain]


@pytest.mark.parametrize(
    "body, kind, text",
    [
        ("f = 3.0 if t == 511 else 2.0", "comparison", "t == 511"),
        ("f = 3.0 if (t & 255) == 0 else 2.0", "bits", "t & 255"),
        ("f = 3.0 if (h ^ 16) == 0 else 2.0", "flips", "h ^ 16"),
        ("f = 3.0 if bit(h, 4) else 2.0", "truth", "bit(h, 4)"),
        ("f = 3.0 if far(t) else 2.0", "quotient", "t // 512"),
        ("m = min(m, 2048)", "extremum", "min(m, 2048)"),
        ("m = m % 12", "remainder", "m % 12"),
    ],
)
def test_every_spelling_is_a_condition(body: str, kind: str, text: str) -> None:
    assert (kind, text) in [(k, t) for k, t, _ in find_conditions(body)]


@pytest.mark.parametrize(
    "rows, kind, text",
    [
        ("(m * 16 + rows(16)) % 4096", "remainder", "(m * 16 + rows(16)) % 4096"),
        ("min(m, 40) * 16 + rows(16)", "extremum", "min(m, 40)"),
        ("m * 16 + rows(16) + cast(m * 16 + rows(16) > 2000, i32)", "comparison", "m * 16 + rows(16) > 2000"),
    ],
)
def test_index_arithmetic_has_conditions(rows: str, kind: str, text: str) -> None:
    checked = check(cuir.parse(text_of("").replace("q = m * 16 + rows(16)", f"q = {rows}")), None, {})
    assert (kind, text) in [(c.kind, c.text) for c in collect_conditions(checked)]


def test_what_does_not_vary_is_no_condition() -> None:
    assert find_conditions("g = rows(16) % 8") == []


def test_conditions_of_loops_and_branches() -> None:
    body = "for k in range(cdiv(H, 2)):\n                if flag:\n                    f = 2.0\n"
    kinds = [(k, t) for k, t, _ in find_conditions(body, ", flag: bool")]
    assert ("turns", "for k in range(cdiv(H, 2))") in kinds and ("truth", "flag") in kinds


def test_a_loop_of_a_known_number_of_turns_is_none() -> None:
    assert not [k for k, _, _ in find_conditions("for k in range(3):\n                f = 2.0") if k == "turns"]


def test_sides() -> None:
    remainder = next(c for c in collect_conditions(check_body("m = m % 12")) if c.text == "m % 12")
    assert [remainder.sides_of(x % 12, (x,)) for x in (0, 11, 12, 40)] == [1, 1, 2, 2]
    least = next(c for c in collect_conditions(check_body("m = min(m, 40)")) if c.kind == "extremum")
    assert [least.sides_of(min(x, 40), (x, 40)) for x in (39, 40, 41)] == [1, 0, 2]
    bits = next(c for c in collect_conditions(check_body("m = m & 7")) if c.kind == "bits")
    assert [bits.sides_of(x & 7, (x,)) for x in (0, 7, 8, 9)] == [1, 2, 1 | 4, 2 | 4]


def test_period() -> None:
    c = next(c for c in collect_conditions(check_body("f = 2.0 + cast(n // 3 % 2, f32)")) if c.text == "n // 3 % 2")
    assert compute_period(c) == 6
