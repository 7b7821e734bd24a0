"""Limits that & or | joins."""

from __future__ import annotations

import re

import pytest

from cuir.lowering.ir.ir_text import parse, show
from cuir.lowering.passes import eliminate_dead_code, limit_columns
from tests.lowering.passes.lowering import role

LIMITS = """\
%a = tile.apply "<"(%c, %r) : !tile.reg<bool, 64, 64>
%b = tile.apply "<"(%c, %n) : !tile.reg<bool, 1, 64>
%d = tile.apply "<="(%r, %c) : !tile.reg<bool, 64, 64>
%e = tile.apply "<="(%n, %c) : !tile.reg<bool, 1, 64>
%o = tile.apply "<"(%x, %f) : !tile.reg<bool, 64, 1>
"""
FULL = "!tile.reg<bool, 64, 64>"


def after(condition: str) -> str:
    ir = parse(role(LIMITS + condition + '\n%z = tile.apply "where"(%m, %S, %f) : !tile.reg<f32, 64, 64>', "%z"))
    limit_columns.run(ir)
    ir.verify()
    eliminate_dead_code.run(ir)
    return show(ir)


@pytest.mark.parametrize(("name", "choice"), [("&", "min"), ("|", "max")])
@pytest.mark.parametrize(
    "body",
    [
        '%m = tile.apply "{0}"(%a, %b) : {1}',
        '%s = tile.apply "{0}"(%a, %o) : {1}\n%m = tile.apply "{0}"(%s, %b) : {1}',
        '%s = tile.apply "{0}"(%o, %a) : {1}\n%t = tile.apply "{0}"(%b, %o) : {1}\n%m = tile.apply "{0}"(%t, %s) : {1}',
    ],
)
def test_upper_limits_become_one(body: str, name: str, choice: str) -> None:
    result = after(body.format(name, FULL))
    (item,) = re.findall(rf'(%\w+) = tile.apply "{choice}"\(%\w+, %\w+\) : !tile.reg<i32, 64, 1>', result)
    assert len(re.findall(r'"<"\(%c, ', result)) == 1 and f'"<"(%c, {item}) : {FULL}' in result


@pytest.mark.parametrize(("name", "choice"), [("&", "max"), ("|", "min")])
def test_lower_limits_become_one(name: str, choice: str) -> None:
    result = after(f'%m = tile.apply "{name}"(%d, %e) : {FULL}')
    (item,) = re.findall(rf'(%\w+) = tile.apply "{choice}"\(%r, %n\) : !tile.reg<i32, 64, 1>', result)
    assert f'"<="({item}, %c) : {FULL}' in result


@pytest.mark.parametrize(
    "body",
    [
        '%m = tile.apply "&"(%a, %d) : {0}',  # from both sides
        '%s = tile.apply "|"(%a, %o) : {0}\n%m = tile.apply "&"(%s, %b) : {0}',  # joined otherwise
    ],
)
def test_other_limits_stay(body: str) -> None:
    assert "min" not in after(body.format(FULL)) and "max" not in after(body.format(FULL))


def test_what_others_read_too_is_not_taken_apart() -> None:
    body = f'%s = tile.apply "&"(%a, %o) : {FULL}\n%m = tile.apply "&"(%s, %b) : {FULL}\n%y = tile.apply "where"(%s, %S, %g) : !tile.reg<f32, 64, 64>\ntile.perform "store"(place: %place, tile: %y)'
    result = after(body)
    assert '"min"' not in result and '"&"(%a, %o)' in result
