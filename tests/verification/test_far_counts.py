"""Hundreds of units and steps, also where a dim makes both: a fault far out shows, for few events."""

from __future__ import annotations

import pytest

from cuir import CuirError, FunctionSpecification, check, parse
from cuir.checking.checked import Checked
from cuir.verification import far_counts
from cuir.verification.far_counts import lengthens_units, make_far_cases, run_far_case

CAUSAL = """
@kernel(arch="sm_90a")
def k(X: Global[f16, B, M, 64], Y: Global[f16, B, M, 64]):
    sX = shared(f16, [2, 64, 64])
    full, empty = mbarrier(1, stages=2), mbarrier(1, stages=2)
    work = tiles(cdiv(M, 64) * B)
    with role("load", warps=1):
        it = 0
        for t in work:
            b, m = t % B, t // B
            for j in range({turns}):
                s, phase = it % 2, it // 2 % 2
                empty[s].wait(phase ^ 1)
                full[s].expect(nbytes(sX[s]))
                copy_async(X[b, j * 64 : j * 64 + 64, :], sX[s], full[s])
                it += 1
    with role("compute", warpgroups=1):
        it, n = 0, 0
        for t in work:
            b, m = t % B, t // B
            acc = zeros(f32, [64, 64])
            for j in range({turns}):
                s, phase = it % 2, it // 2 % 2
                full[s].wait(phase)
                acc = acc + cast(load(sX[s]), f32)
                if {kept}:
                    empty[s].arrive()
                it += 1
            store(Y[b, m * 64 : m * 64 + 64, :], cast(acc, f16))
            n += 1
"""
SPEC = FunctionSpecification("running", lambda x: x)


def kernel(turns: str = "m + 1", condition: str = "True") -> Checked:
    return check(parse(CAUSAL.format(turns=turns, kept=condition)))


def run_all(checked: Checked) -> int:
    return sum(run_far_case(checked, SPEC, case) for case in make_far_cases(checked, SPEC))


@pytest.mark.parametrize(("turns", "grows"), [("m + 1", True), ("3", False)])
def test_a_dim_of_units_and_their_steps_is_told_by_its_events(turns: str, grows: bool) -> None:
    checked = kernel(turns)
    assert lengthens_units(checked, SPEC, "M") == grows and not lengthens_units(checked, SPEC, "B")


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, int]]:
    """Events, units and CTAs of the launches that run."""
    result, real = [], far_counts.run_synchronisation

    def count_launch(*arguments, **more):  # type: ignore[no-untyped-def]
        finished = real(*arguments, **more)
        result.append((sum(finished.report.events.values()), finished.report.units, finished.report.grid))
        return finished

    monkeypatch.setattr(far_counts, "run_synchronisation", count_launch)
    return result


def test_such_a_launch_is_run_as_smaller_ones(launches: list[tuple[int, int, int]]) -> None:
    assert run_all(kernel()) == 3, "units of B; the ends of 520 steps of M; units of both"
    assert max(events for events, _, _ in launches) < 50_000, "300 steps in 300 units have 180,000"
    assert any(units == ctas == 520 for _, units, ctas in launches)
    assert any(units >= 300 and ctas == 1 for _, units, ctas in launches)


@pytest.mark.parametrize("retained", ["j < 500", "n < 280 or j % 2 == 0", "not (m == 15 and b == 17)"])
def test_a_fault_far_out_is_still_found(retained: str) -> None:
    """By the steps of a unit, the units of a CTA, or a block of both dims."""
    with pytest.raises(CuirError) as caught:
        run_all(kernel(condition=retained))
    assert caught.value.diagnostics[0].code in ("D401", "S402", "R401", "M403")


def test_ctas_that_exchange_data_run_together(launches: list[tuple[int, int, int]]) -> None:
    """One that waits for another is never run alone."""
    stored = "store(Y[b, m * 64 : m * 64 + 64, :], cast({}, f16))"
    text = CAUSAL.format(turns="m // 60 + 1", kept="True")
    text = text.replace(stored.format("acc"), stored.format("acc + cast(load(Y[b, m * 64 : m * 64 + 64, :]), f32)"))
    checked = check(parse(text))
    case = next(c for c in make_far_cases(checked, SPEC) if c.name.endswith("300 of M"))
    assert run_far_case(checked, SPEC, case) == 1 and [launch[1:] for launch in launches] == [(300, 1)]
