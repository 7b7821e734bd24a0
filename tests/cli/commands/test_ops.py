"""`cuir ops`: the list, entries, and the page."""

from __future__ import annotations

from collections.abc import Callable

from tests.cli.programs import ROOT


def test_ops_lists_and_prints_entries(cuir: Callable) -> None:
    assert "mma_async" in cuir("ops").out
    assert "write `exp2(x * 1.4426950408889634)`" in cuir("ops", "exp").out
    item = cuir("ops", "mbarrier.wait").out
    assert "bar.wait(parity)" in item and "interpreter: cuir/interp/" in item and "lowering: cuir/lowering/" in item
    assert {e["name"] for e in cuir("ops", "copy_async", "--json").json["entries"]} == {"copy_async.bulk", "copy_async.cp"}
    assert cuir("ops", "--markdown").out == (ROOT / "docs/reference.md").read_text(encoding="utf-8")
