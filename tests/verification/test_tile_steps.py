"""How far counters are followed: what goes wrong only at a CTA's seventeenth unit of work, or at a ring's fortieth turn, is seen."""

from __future__ import annotations

import pytest

import corpus
from corpus.computes import COMPUTES
from cuir import check, parse, verify
from cuir.spec import FunctionSpecification
from cuir.syntax.types import F16
from cuir.verification import tile_steps
from cuir.verification.tile_steps import count_counter_turns, count_ring_uses, find_steps

TEXT = """\
@kernel(arch="sm_90a")
def double(X: Global[f32, M, 32], Y: Global[f32, M, 32]):
    s = shared(f32, [3, 64, 32])
    full, empty = mbarrier(1, stages=3), mbarrier(1, stages=3)
    work = tiles(cdiv(M, 64))
    with role("load", warps=1):
        i = 0
        for t in work:
            empty[i % 3].wait(i // 3 % 2 ^ 1)
            full[i % 3].expect(nbytes(s[i % 3]))
            copy_async(X[t * 64 : t * 64 + 64, :], s[i % 3], full[i % 3])
            i += 1
    with role("math", warpgroups=1):
        i = 0
        for t in work:
            full[i % 3].wait(i // 3 % 2)
            x = load(s[i % 3])
            empty[i % 3].arrive()
            store(Y[t * 64 : t * 64 + 64, :], x + x)
            i += 1
"""
SPEC = FunctionSpecification("double", lambda X: 2 * X)
LOAD_STEP = "copy_async(X[t * 64 : t * 64 + 64, :], s[i % 3], full[i % 3])\n            i += 1"


def test_the_right_one_passes() -> None:
    assert verify(parse(TEXT), SPEC, seeded=0).ok


@pytest.mark.parametrize(
    "change",
    [
        ("            i += 1", "            i = (i + 1) % 16"),  # no multiple of two rounds: the parities are wrong from there on
        (LOAD_STEP, LOAD_STEP.replace("i += 1", "i = i + 1 if i < 20 else 0")),
        ("store(Y[t * 64 : t * 64 + 64, :], x + x)", "store(Y[t * 64 : t * 64 + 64, :], x + x if i // 3 != 13 else x)"),
    ],
    ids=["wraps at 16", "starts again at 20", "in the 40th turn"],
)
def test_what_goes_wrong_late_is_refused(change: tuple[str, str]) -> None:
    assert change[0] in TEXT
    assert not verify(parse(TEXT.replace(*change)), SPEC, shrink=False, seeded=0).ok


@pytest.mark.parametrize(
    ("text", "turns"),
    [
        ("i % 16", 16),
        ("i // 3 % 5", 15),
        ("(i + t) % 7", 7),
        ("cast(i == 9, i32)", 10),
        ("cast(i // 3 < 13, i32)", 42),
        ("i % 1000", 6),  # further than is looked
        ("M % 100", 6),  # of no counter
        ("cast(9 == i, i32)", 10),
    ],
)
def test_how_far(text: str, turns: int) -> None:
    checked = check(
        parse(TEXT.replace("store(Y[t * 64 : t * 64 + 64, :], x + x)", f"store(Y[t * 64 : t * 64 + 64, :], x + cast({text}, f32))"))
    )
    assert count_counter_turns(checked) == turns and count_ring_uses(checked) == (7 if turns <= 6 else turns + 7)


@pytest.mark.sweep(4)
@pytest.mark.parametrize(
    ("name", "kernel", "least"),
    [
        ("flash_bwd_sm80", "flash_bwd", {"M": 64, "N": 128}),  # a causal mask keeps no more queries than there are keys
        ("flash_bwd_sm75", "flash_bwd", {"M": 32, "N": 64}),
        ("flash_fwd_varlen_sm75", "flash_fwd_varlen", {"TQ": 64, "PAGE": 64}),
        ("flash_fwd_varlen_sm80", "flash_fwd_varlen", {"TQ": 128, "PAGE": 64}),  # a key more may need fewer rows cleared
    ],
)
def test_blocks_whose_rows_several_warps_fetch(name: str, kernel: str, least: dict[str, int]) -> None:
    """A copy is of a warp's rows, a step of a block's."""
    spec = corpus.specification(COMPUTES[name][kernel].specification)()
    assert isinstance(spec, FunctionSpecification)
    steps = find_steps(check(parse(corpus.kernels()[name].read_text(encoding="utf-8")), kernel, {"T": F16, "D": 64}), spec)
    assert all(length <= steps[dim] < 1.1 * length for dim, length in least.items()), steps


def test_lengths_that_the_specification_makes_equal_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[int] = []
    interpret = tile_steps.run
    monkeypatch.setattr(
        tile_steps, "run", lambda checked, arguments, **k: runs.append(len(arguments["X"])) or interpret(checked, arguments, **k)
    )
    fixed = FunctionSpecification("double", lambda X: 2 * X, sizes=lambda drawn: {"M": min(drawn["M"], 65)})
    assert find_steps(check(parse(TEXT)), fixed) == {"M": 64}
    assert sorted(runs) == [1, 65]
    constant = FunctionSpecification("double", lambda X: 2 * X, sizes=lambda drawn: {"M": 40})
    runs.clear()
    assert find_steps(check(parse(TEXT)), constant) == {"M": 64} and runs == [40]
