"""The reference says everything that the table does, and the page made from it is up to date."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from cuir.cli import reference_pages as reference
from cuir.ops import OPERATORS, TABLE
from cuir.ops.limits import list_architectures
from cuir.text.codes import CODES

ROOT = Path(__file__).parents[2]


def test_reference_page_is_up_to_date() -> None:
    assert (ROOT / "docs/reference.md").read_text(encoding="utf-8") == reference.markdown(), "run `make docs`"


@pytest.mark.parametrize("name", [*TABLE, *OPERATORS])
def test_every_entry_is_documented(name: str) -> None:
    op = reference.entries()[name]
    assert op.doc.endswith(".")
    data = reference.as_json(op)
    assert data["archs"] and data["threads"]
    assert [p["name"] for p in data["parameters"]] == [p.name for p in op.params]
    assert reference.spelling(op) in reference.markdown()


def test_the_page_says_what_is_not_the_same_for_most_entries() -> None:
    """Entries that are alike share a section; places, workers and architectures stand only where they differ from the head's."""
    head, *sections = reference.markdown().split("### ")
    everywhere = list_architectures()
    assert f"in a role of warps or warpgroups, marked † anywhere, from {everywhere[0]} on, unless" in " ".join(head.split())
    for op in reference.entries().values():
        title = f"`{reference.spelling(op)}`{reference.receiver(op)}"
        (body,) = (s.partition("\n")[2] for s in sections if title in re.findall(r"`[^`]+`(?: of an? \w+)?", s.partition("\n")[0]))
        assert body.startswith(f"\n{op.doc}\n")
        facts = [line for line in body.splitlines() if line.startswith("* ")]
        archs = f"from {op.archs[0]} on" if op.archs == everywhere[-len(op.archs) :] else f"only on {', '.join(op.archs)}"
        place = {"role": "", "declaration": "before the roles", "any": ""}[op.where]
        place = "outside of roles" if op.traits.makes == "workers" else place
        workers = {(32,): "by a warp", (128,): "by a warpgroup"}.get(op.workers, "")
        words = "; ".join(filter(None, (place, workers, archs if op.archs != everywhere else "")))
        assert (f"* {words}" in facts) == bool(words)
        assert f"from {everywhere[0]} on" not in body


@pytest.mark.parametrize("name", [*TABLE, *OPERATORS])
def test_every_entry_names_the_places_of_its_meaning(name: str) -> None:
    places = reference.places(name)
    assert places.keys() == {"interpreter", "lowering"}
    for place in places.values():
        file, _, line = place.rpartition(":")
        assert (ROOT / file).is_file() and int(line) > 0


def test_entries_that_are_written_alike_are_told_apart() -> None:
    output = [reference.spelling(op) + reference.receiver(op) for op in reference.entries().values()]
    assert len(set(output)) == len(output)
    assert {"bar.arrive() of a named_barrier", "bar.wait(parity) of an mbarrier"} <= set(output)


def test_places_in_the_interpreter_are_those_that_run() -> None:
    from cuir.interp.ops import RUNS

    assert reference.interpreter_places().keys() == RUNS.keys()


def _without_spaces(text: str) -> str:
    return "".join(text.split())


@pytest.mark.parametrize("name", [*TABLE, *OPERATORS])
def test_the_printed_entry_holds_its_words_and_brackets(cuir: Callable, name: str) -> None:
    output, op = _without_spaces(cuir("ops", name).out), reference.entries()[name]
    for part in (
        reference.spelling(op),
        op.doc,
        *(p.description for p in op.params),
        *(p.default for p in op.params),
        *reference.effects(op),
    ):
        assert _without_spaces(part) in output


def test_every_printed_explanation_holds_its_words_and_brackets(cuir: Callable) -> None:
    for code in CODES.values():
        assert _without_spaces(cuir("explain", code.code).out) == _without_spaces(code.code + code.title + code.help)


def test_no_command_prints_markup() -> None:
    for file in (ROOT / "cuir" / "cli").glob("*.py"):
        text = file.read_text(encoding="utf-8")
        assert "[/]" not in text and "markup=True" not in text, file.name


@pytest.mark.parametrize(
    ("word", "near"),
    [
        ("wait", "bar.wait"),
        ("expect", "bar.expect"),
        ("arive", "bar.arrive"),
        ("bar.wiat", "bar.wait"),
        ("mma_wiat", "mma_wait"),
        ("stroe", "store"),
    ],
)
def test_a_word_is_near_to_the_part_of_a_name_behind_the_dot(cuir: Callable, word: str, near: str) -> None:
    output = cuir("ops", word)
    assert output.code == 2 and f"did you mean `{near}`?" in output.err
    assert cuir("ops", near).code == 0
