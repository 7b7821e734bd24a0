"""benchmarks/sm80.py on a CPU: rows of small problems by the interpreter, kernels that are compiled ahead, refused options."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from types import ModuleType
from typing import Any

import pytest
import torch

from benchmarks import newest_peers, sm80
from cuir.attn.kernels.card_kernels import DEFAULT, VARIABLE, KernelTarget, choose_target
from cuir.performance.suites import results
from cuir.performance.suites.cell_benchmark import Cell, Timing
from cuir.performance.timing.problem import Shape
from cuir.performance.timing.timing_protocol import Call
from tests.stand_in_cards import forget

CPU = torch.device("cpu")
CELL = Cell("causal", {}, "MLA, 8 heads", Shape(2, 8, 1, 2, 128, 576))


class Wrapper:
    """FlashInfer's BatchMLAPagedAttentionWrapper, computed by PyTorch."""

    def __init__(self, room: torch.Tensor, backend: str) -> None:
        assert backend == "fa2" and room.dtype == torch.uint8

    def plan(self, rows: torch.Tensor, pages: torch.Tensor, indices: torch.Tensor, lengths: torch.Tensor, *others: Any) -> None:
        heads, latent, rotary, page, causal, scale, *dtypes = others
        assert causal and (heads, latent, rotary, dtypes) == (8, 512, 64, [torch.float16, torch.float16])
        assert all(x.dtype == torch.int32 for x in (rows, pages, indices, lengths))
        self.rows, self.pages, self.lengths = rows.tolist(), pages.tolist(), lengths.tolist()
        self.indices, self.page, self.scale = indices.long(), page, scale

    def run(self, q_nope: torch.Tensor, q_pe: torch.Tensor, latents: torch.Tensor, rotary: torch.Tensor) -> torch.Tensor:
        assert latents.shape[1] == rotary.shape[1] == self.page and latents.is_contiguous() and rotary.is_contiguous()
        out = []
        for b, n in enumerate(self.lengths):
            own = self.indices[self.pages[b] : self.pages[b + 1]]
            values, positions = (x[own].flatten(0, 1)[:n].float() for x in (latents, rotary))
            queries = slice(self.rows[b], self.rows[b + 1])
            scores = q_nope[queries].float() @ values.T + q_pe[queries].float() @ positions.T
            m = len(scores)
            seen = torch.arange(n) <= torch.arange(m)[:, None] + n - m
            out.append(torch.softmax((scores * self.scale).masked_fill(~seen[:, None], -torch.inf), -1) @ values)
        return torch.cat(out).to(q_nope.dtype)


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(VARIABLE, sm80.ARCH)
    forget()
    yield
    forget()


def call_once(call: Call) -> float:
    call()
    return 2.0


@pytest.mark.parametrize("arch", [sm80.ARCH, sm80.TURING])
def test_rows_of_latent_vectors(arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours by kernels of two architectures, and FlashInfer, are right at the same problem."""
    package, module = ModuleType("flashinfer"), ModuleType("flashinfer.mla")
    vars(package)["mla"], vars(module)["BatchMLAPagedAttentionWrapper"] = module, Wrapper
    monkeypatch.setitem(sys.modules, "flashinfer", package)
    monkeypatch.setitem(sys.modules, "flashinfer.mla", module)
    monkeypatch.setenv(VARIABLE, arch)
    row: Any = sm80.measure_latent_cell(CELL, ("flashinfer",), (DEFAULT,), Timing(1, measure=call_once), "cpu")
    assert row["contenders"].keys() == {"cuir", f"cuir_{DEFAULT}", "flashinfer"}
    for entry in row["contenders"].values():
        assert 0 < entry["error"] < 1e-2 and entry["milliseconds"] == 2.0 and entry["gbs"] > 0
    assert results.names_of_peers([row]) == ["flashinfer", f"cuir_{DEFAULT}"]


def test_a_wrong_result_and_an_absent_package_are_no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flashinfer", None)
    make = newest_peers.make_latent

    def make_wrong(*arguments: Any) -> newest_peers.Problem:
        problem = make(*arguments)
        ours = problem.calls["cuir"]
        return newest_peers.Problem(
            {**problem.calls, "cuir": lambda: ours() * 1.1},  # type: ignore[operator]
            problem.judge,
            problem.unit,
            problem.work,
            problem.prepare,
        )

    monkeypatch.setattr(newest_peers, "make_latent", make_wrong)
    row: Any = sm80.measure_latent_cell(CELL, ("flashinfer",), (), Timing(1, measure=call_once), "cpu")
    assert "wrong" in row["contenders"]["cuir"] and "flashinfer" in row["contenders"]["flashinfer"]["failed"]
    assert all("gbs" not in entry for entry in row["contenders"].values())


def test_a_call_for_an_architecture_leaves_others_as_they_were() -> None:
    assert sm80.call_for("sm_75", partial(choose_target, CPU)) == KernelTarget("sm_75")
    assert choose_target(CPU) == KernelTarget("sm_80")
    with pytest.raises(ZeroDivisionError):
        sm80.call_for("sm_75", lambda: 1 // 0)
    assert choose_target(CPU) == KernelTarget("sm_80")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--arch", "sm_75"], "is for --decode, --packed and --latent"), (["--arch", "sm_75", "--rules"], "is for --decode")],
)
def test_only_calls_of_serving_take_kernels_for_turing(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["sm80", *arguments])
    with pytest.raises(SystemExit):
        sm80.main()
    assert message in capsys.readouterr().err


def test_cells_are_distinct() -> None:
    cells = [*sm80.list_latents(), *sm80.list_caches(), *sm80.list_packed((64, 128))]
    assert len({str(cell.as_json()) for cell in cells}) == len(cells)
