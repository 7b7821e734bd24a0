"""Spaces of candidates: their form, what is given leaves them, and those that are shipped fit their kernels.

Verdicts of the checker that are kept on disk: those of `find_violation`, asked once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

import corpus
from cuir import CuirError, Program, parse, transfer
from cuir.checking.checked import Const
from cuir.performance.search import Space, space
from cuir.performance.search.space import defaults, find_violation, fits, from_plain, plain
from cuir.spec.loading import as_specification
from cuir.syntax.types import BF16, F8E4M3, F16, F32
from cuir.text.diagnostics import Diagnostic
from tests.lowering.conftest import HEAD
from tests.performance.search.fakes import SPACE


@pytest.mark.parametrize(
    "data",
    [
        "",
        "[]",
        "{}",
        '{"axes": {}}',
        '{"axes": [{}]}',
        '{"axes": [{"BM": 64}]}',
        '{"axes": [{"BM": []}]}',
        '{"axes": [{"BM": ["64"]}]}',
        '{"axes": [{"BM": [64]}, {"BM": [128]}]}',
        '{"axes": [{"BM": [64]}], "starts": [3]}',
        '{"axes": [{"BM": [64]}], "starts": [{"BM": [64]}]}',
    ],
)
def test_malformed_spaces(data: str) -> None:
    with pytest.raises(CuirError) as error:
        Space.parse(data, "x.tune.json")
    assert error.value.diagnostics[0].code == "U115" and "x.tune.json" in error.value.diagnostics[0].message


def test_what_is_given_leaves_the_space() -> None:
    space = SPACE.narrow({"D": 128, "BN": 128, "STAGES": 2})
    assert space.parameters == ("BM", "DYNAMIC") and list(space.starts) == [{"BM": 128}]


def test_everything_is_the_product_and_around_is_one_axis() -> None:
    assert len(list(SPACE.enumerate_all())) == 2 * 3 * 3 * 2
    around = list(SPACE.vary(SPACE.axes[0], {"STAGES": 3}))
    assert len(around) == 6 and all(c["STAGES"] == 3 for c in around)


def test_consts_survive_json() -> None:
    consts = {"T": BF16, "D": 64, "DYNAMIC": True}
    back = from_plain(json.loads(json.dumps(plain(consts))))
    assert back == consts and type(back["DYNAMIC"]) is bool


@pytest.mark.sweep(4)
@pytest.mark.parametrize("name", list(corpus.spaces()))
@pytest.mark.parametrize("dim", [64, 128])
def test_shipped_spaces_fit_their_kernels(name: str, dim: int) -> None:
    program: Program = parse({**corpus.programs(), **corpus.kernels()}[name].read_text(encoding="utf-8"))
    space = Space.parse(corpus.spaces()[name].read_text(encoding="utf-8"), name)
    space.check_names(program, None)
    assert space.computes in corpus.variants()
    starts = space.narrow({"D": dim}).starts
    assert starts, f"no start for head dim {dim}"
    dtype = {corpus.expert("f32"): F32, "flash_fwd_f8_sm90": F8E4M3}.get(name, F16)
    assert not [result for s in starts if (result := find_violation(program, None, {"T": dtype, "D": dim, **s}))]
    for parameter, default in defaults(program, None).items():
        values = [v for axis in space.axes for v in axis.get(parameter, ())]
        assert not values or default in values, f"the default of {parameter} is not among the candidates"


def test_a_variant_that_lacks_a_parameter_is_tuned_without_it() -> None:
    origin = parse(corpus.kernels()["flash_fwd_sm90"].read_text(encoding="utf-8"))
    space = Space.parse(corpus.spaces()["flash_fwd_sm90"].read_text(encoding="utf-8"), "flash_fwd_sm90")
    full = transfer(origin, as_specification(corpus.variant("full"), "full")).program
    with pytest.raises(CuirError) as caught:
        space.check_names(full, None)
    assert caught.value.diagnostics[0].code == "N111"
    within = space.restrict(full, None)
    within.check_names(full, None)
    assert set(space.parameters) - set(within.parameters) == {"L2"} and len(within.starts) == len(space.starts)
    assert space.restrict(origin, None) == space
    assert {value for axis in space.axes for value in axis.get("AHEAD", ())} == {True, False}


TEXT = HEAD + "        for t in work:\n            x = zeros(f32, [64, 1]) + scale\n            store(Y[rows(64)], x)\n"
SETTINGS: list[dict[str, Const]] = [{}, {"C": 4}, {"C": True}, {"C": -1}, {"D": 4}, {"C": 2.5}]


@pytest.fixture
def questions(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    calls: list[object] = []

    def find(program: Program, kernel: str | None, consts: Mapping[str, Const], shared_bytes: int | None = None) -> Diagnostic | None:
        calls.append((program, kernel, consts))
        return find_violation(program, kernel, consts, shared_bytes)

    monkeypatch.setattr(space, "find_violation", find)
    return calls


def test_the_verdict_is_the_checkers(questions: list[object]) -> None:
    program = parse(TEXT)
    expected = [find_violation(program, None, s) is None for s in SETTINGS]
    assert True in expected and False in expected
    assert [fits(program, None, s) for s in SETTINGS] == expected == [fits(parse(TEXT), None, s) for s in SETTINGS]
    assert len(questions) == len(SETTINGS)


@pytest.mark.parametrize(
    ("text", "kernel", "consts"),
    [
        (TEXT.replace("+ scale", "- scale"), None, {"C": 4}),
        (TEXT, "k", {"C": 4}),
        (TEXT, "other", {"C": 4}),
        (TEXT, None, {"C": 5}),
        (TEXT, None, {}),
        (TEXT, None, {"C": 4.0}),
    ],
)
def test_another_question_is_asked(questions: list[object], text: str, kernel: str | None, consts: dict[str, Any]) -> None:
    fits(parse(TEXT), None, {"C": 4})
    assert fits(parse(text), kernel, consts) == (find_violation(parse(text), kernel, consts) is None)
    assert len(questions) == 2


def test_what_depends_on_the_stack_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    program = parse(TEXT)
    with monkeypatch.context() as m:
        m.setattr(space, "find_violation", lambda *_: CuirError.of("P018", "nested too deeply").diagnostics[0])
        assert not fits(program, None, {})
    assert fits(program, None, {})
