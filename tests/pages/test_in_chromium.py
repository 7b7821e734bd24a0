"""Pages in headless Chromium: buttons do what they say, and no request leaves a page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import cuir
from cuir.bridging import BridgeReport, Step
from cuir.mutation import MutateReport
from cuir.pages.bench_page import render_bench_page
from cuir.pages.bridge_page import render_bridge_page
from cuir.pages.evaluation_page import Exchange, SampleOutcome, render_evaluation_page
from cuir.pages.listing_html import map_code, render_map
from cuir.pages.mutation_page import render_mutation_page
from cuir.pages.page import Section, render_page
from cuir.performance.suites.results import read
from cuir.runtime.machine_code import Instruction
from tests.pages.chromium import Visit, find_reason_to_skip, visit
from tests.pages.ring_programs import HANG, TEXT, record
from tests.pages.test_mutation_page import judge

pytestmark = pytest.mark.browser
RESULTS = Path(__file__).parents[2] / "benchmarks/results"
BOX = "const box = () => document.querySelector('.timeline svg').getAttribute('viewBox').split(' ').map(Number);"
PRESS = "const press = name => document.querySelector(`[data-${name}]`).click();"
STATE = """return [document.querySelector('.counter').textContent, document.querySelector('.now').textContent,
    [...document.querySelectorAll('.current')].map(x => x.dataset.n), Number(document.querySelector('.marker').getAttribute('x1')),
    [...document.querySelectorAll('.barriers tr.changed th')].map(x => x.textContent),
    Object.fromEntries([...document.querySelectorAll('.barriers tr')].map(x => [x.querySelector('th').textContent, x.querySelector('td').textContent]))]"""


def make_map() -> str:
    cuda = cuir.lower(cuir.check(cuir.parse(TEXT)))
    instructions = [Instruction(16 * i, f"OP{i}", (number,)) for i, number in enumerate(cuda.line_map)]
    return render_page("map", "", [Section("Code", render_map(map_code(cuda, instructions)))])


def make_bridge() -> str:
    origin = cuir.load(RESULTS.parents[1] / "corpus/programs/flash_fwd.cuir")
    spec = cuir.Specification("window", lambda b, h, q, k: (q - k < 200) & (q >= k))
    result = cuir.transfer(origin, spec)
    report = BridgeReport("window", result.kernel, {"T": cuir.f16, "D": 64}, [Step("transfer", "done", "ok", 0.1)])
    return render_bridge_page(report, origin, result.text, spec)


def make_evaluation() -> str:
    exchanges = [Exchange(1, "q", "```cuir\nx = 1\n```", "check", ["T156"], 9)]
    failed = SampleOutcome("causal", "m", 0, None, "no", [("check", ["T156"])], 9, 1.0, exchanges)
    right = SampleOutcome("full", "m", 0, 1, "passed", [("passed", [])], 9, 1.0, exchanges)
    return render_evaluation_page({"pass": "transfer"}, [], [failed, right])


@pytest.fixture(scope="module")
def visits(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Visit]:
    """Visits of all pages, in one browser."""
    if reason := find_reason_to_skip():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("pages")
    step = "const timeline = document.querySelector('.timeline');"
    scripts: dict[str, tuple[Callable[[], str], list[str]]] = {
        "run": (
            lambda: render_page("run", "", [Section("Run", record(HANG)[1]._repr_html_())]),
            [
                BOX + "return box()",
                BOX + PRESS + "press('zoom=in'); press('zoom=in'); return [box(), document.querySelector('.range').textContent]",
                BOX + PRESS + "press('zoom=right'); return box()",
                BOX
                + step
                + "timeline.querySelector('svg').dispatchEvent(new WheelEvent('wheel', {ctrlKey: true, deltaY: -9, bubbles: true, cancelable: true})); return box()",
                BOX + PRESS + "press('zoom=all'); return box()",
                STATE,
                PRESS + "press('step=first');" + STATE,
                PRESS + "press('step=next');" + STATE,
                "document.querySelector('.player').dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowRight', bubbles: true}));"
                + STATE,
                PRESS + "press('step=previous'); press('step=previous'); press('step=previous');" + STATE,
                "const i = new Image(); i.src = 'http://127.0.0.1:9/x.png'; fetch('http://127.0.0.1:9/y').catch(() => 0); return 1",
                "return document.querySelectorAll('.timeline rect').length",
                "const i = document.querySelector('.player input'); i.value = 6; i.dispatchEvent(new Event('input', {bubbles: true}));"
                + STATE,
                "const e = document.querySelector('.timeline [data-line=\"17\"]'); e.dispatchEvent(new MouseEvent('click', {bubbles: true}));"
                "return [...document.querySelectorAll('.current')].map(x => x.dataset.n)",
            ],
        ),
        "map": (
            make_map,
            [
                "document.querySelector('.program [data-cuir=\"17\"]').click();"
                "return [...document.querySelectorAll('.picked')].map(x => [x.closest('.code').className, x.dataset.cuir])",
                "return document.querySelector('.chosen').textContent",
                "const x = document.querySelector('.sass [data-cuir]'); x.click();"
                "return [x.dataset.cuir, [...document.querySelectorAll('.program .picked')].map(y => y.dataset.n), document.querySelectorAll('.cuda .picked').length]",
                "const c = document.querySelector('.cuda'), r = c.getBoundingClientRect(), y = c.querySelector('.picked').getBoundingClientRect(); return y.top >= r.top && y.bottom <= r.bottom",
            ],
        ),
        "bridge": (
            make_bridge,
            [
                "return [...document.querySelectorAll('h2')].map(x => x.textContent)",
                "const d = document.querySelector('details.same'); const before = d.open; d.querySelector('summary').click(); return [before, d.open, d.querySelectorAll('tr').length]",
                "return [document.querySelectorAll('#mask rect').length, document.querySelectorAll('#beside-the-origin td.new').length]",
            ],
        ),
        "bench": (
            lambda: render_bench_page(*read(RESULTS / "smoke-h200-2026-11-23.jsonl")),
            ["return [...document.querySelectorAll('.bar i')].map(x => x.getBoundingClientRect().width)"],
        ),
        "mutants": (
            lambda: render_mutation_page(MutateReport([judge(1, "killed", "drop"), judge(2, "survived", "late")]), {}),
            ["return [...document.querySelectorAll('.mutant')].map(x => [x.open, x.querySelector('b').textContent])"],
        ),
        "evaluation": (
            make_evaluation,
            [
                "return [...document.querySelectorAll('.sample')].map(x => x.open)",
                "document.querySelector('#samples tr:nth-child(2) a').click(); return document.getElementById('sample-full-m-0').open",
            ],
        ),
    }
    for name, (make, _) in scripts.items():
        (folder / f"{name}.html").write_text(make(), encoding="utf-8")
    return visit({folder / f"{name}.html": codes for name, (_, codes) in scripts.items()})


def test_a_timeline_zooms_and_pans(visits: dict[str, Visit]) -> None:
    whole, (near, words), right, wheeled, last, *_ = visits["run"].results
    assert whole[0] == 0 and near[2] == whole[2] / 4 and near[0] == pytest.approx(whole[2] * 3 / 8) and "cycles 0 to" not in words
    assert right[0] == pytest.approx(near[0] + near[2] / 3) and wheeled[2] == pytest.approx(0.8 * right[2]) and last == whole


def test_a_click_on_an_event_shows_its_line(visits: dict[str, Visit]) -> None:
    assert visits["run"].results[13] == ["17"]


def test_a_schedule_steps_forward_and_back(visits: dict[str, Visit]) -> None:
    last, first, second, third, back = visits["run"].results[5:10]
    slid = visits["run"].results[12]
    total = last[0].split()[-1]
    assert last[0] == f"step {total} of {total}" and "deadlock" in last[1] and first[0] == f"step 1 of {total}" == back[0]
    assert second[0] == f"step 2 of {total}" and third[0] == f"step 3 of {total}"
    assert "load[0] goes on" in first[1] and "arrives on phase 0 of full[0]" in second[1] and second[4] == ["full[0]"]
    assert (
        first[5]["full[0]"] == "not used yet" == back[5]["full[0]"]
        and second[5]["full[0]"] == "phase 0: 1 of 1 arrival, 8,192 bytes missing"
    )
    assert last[5]["empty[0]"] == "phase 0: 1 of 2 arrivals" and last[5]["full[1]"] == "phase 1: 0 of 1 arrival"
    assert "lands" in slid[1] and slid[3] > second[3] >= 0 and visits["run"].results[11] > 10


def test_a_click_marks_the_lines_of_all_columns(visits: dict[str, Visit]) -> None:
    picked, words, (line, numbers, cuda), is_visible = visits["map"].results
    assert {column for column, _ in picked} == {"code program", "code cuda", "code sass"} and {n for _, n in picked} == {"17"}
    assert words.startswith("line 17: ") and "lines of CUDA" in words and "instruction" in words
    assert numbers == [line] and cuda > 0 and is_visible


def test_an_adaptation_shows_its_parts(visits: dict[str, Visit]) -> None:
    titles, (before, after, rows), (cells, new) = visits["bridge"].results
    for title in ("Steps", "Beside the origin", "Variant", "Mask", "Workers over time", "Program", "Resources", "CuIR, CUDA, SASS"):
        assert title in titles
    assert not before and after and rows > 3 and cells == 64 + 3 and new > 2


def test_bars_mutants_and_samples(visits: dict[str, Visit]) -> None:
    widths = visits["bench"].results[0]
    assert len(widths) == 6 and all(w > 0 for w in widths) and widths[0] > widths[1] > widths[3] > widths[2]
    assert visits["mutants"].results[0] == [[True, "survived"], [False, "killed"]]
    assert visits["evaluation"].results == [[True, False], True]


def test_no_request_leaves_a_page(visits: dict[str, Visit]) -> None:
    """The page of the run tries to, by an image and by fetch: its policy refuses both."""
    for name, page in visits.items():
        assert [r.rpartition("/")[2] for r in page.requests] == [f"{name}.html"] and page.requests[0].startswith("file:")
    refused = visits["run"].messages
    assert all(any(f"'http://127.0.0.1:9/{name}'" in m and "Content Security Policy" in m for m in refused) for name in ("x.png", "y"))
    assert not [m for name, page in visits.items() for m in page.messages if name != "run"]
