"""Cases that end in each of the ways in which a case can end, for the tests of the runner."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from cuir.text.diagnostics import CuirError
from tests.peer.cases import ATTENTION, Case
from tests.peer.judging import expect
from tests.peer.trial import Trial, attention

Q = (1, 2, 70, 64)


def in_place(t: Trial, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """A call of PyTorch's in the place of ours, with another result."""
    t.ours = SimpleNamespace(flex_attention=lambda *arguments, **options: change(t.torch_api.flex_attention(*arguments, **options)))
    t.judge(attention(), t.qkv(Q, dtype=torch.float16), compiled=False)


def right(t: Trial) -> None:
    in_place(t, lambda o: o)


def wrong(t: Trial) -> None:
    in_place(t, lambda o: o * 1.01)


def not_finite(t: Trial) -> None:
    in_place(t, lambda o: torch.where(o == o.max(), torch.nan, o))


def other_dtype(t: Trial) -> None:
    in_place(t, lambda o: o.float())


def unexpected(t: Trial) -> None:
    expect(False, "something else")


def refused(t: Trial) -> None:
    raise CuirError.of("U413", "not this")


def refused_within(t: Trial) -> None:
    try:
        refused(t)
    except CuirError as error:
        raise RuntimeError("a compiler met an error") from error


def race(t: Trial) -> None:
    raise CuirError.of("R001", "read too early")


def crash(t: Trial) -> None:
    raise KeyError("x")


def death(t: Trial) -> None:
    os._exit(3)


def hang(t: Trial) -> None:
    time.sleep(600)


EXPECTED = {
    hang: ("hang", "limit"),  # first, so that the others run meanwhile
    right: ("pass", ""),
    wrong: ("wrong", ""),
    not_finite: ("wrong", ""),
    other_dtype: ("differs", ""),
    unexpected: ("differs", ""),
    refused: ("refused", "U413"),
    refused_within: ("refused", "U413"),
    race: ("crash", "R001"),
    crash: ("crash", "KeyError"),
    death: ("crash", "death"),
}


def load() -> dict[str, Any]:
    cases = [Case(ATTENTION, f.__name__, "", "faulty", "", False, f) for f in EXPECTED]
    repeated = Case(ATTENTION, "right_again", "", "faulty", "backward", False, right)  # after those that ended their process
    return {case.name: case for case in (*cases, repeated)}
