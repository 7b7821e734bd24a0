"""A GPU that is a formula: candidates have a cost, some are wrong, hang, spill or do not compile."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import corpus
from cuir.performance.search import Space
from cuir.performance.search.compiling import BuildResult

TEXT = corpus.kernels()["flash_fwd_sm90"].read_text(encoding="utf-8")
SPACE = Space(
    ({"BM": (64, 128), "BN": (64, 96, 128)}, {"STAGES": (2, 3, 8)}, {"DYNAMIC": (False, True)}),
    ({"D": 64, "BM": 64, "BN": 64}, {"D": 128, "BM": 128, "BN": 128}),
)


class FakeDevice:
    def __init__(self, cost: Callable[[Mapping], float], verdicts: Mapping[tuple[int, int], str] | None = None):
        self.cost, self.verdicts = cost, verdicts or {}
        self.checked: list[dict] = []
        self.timed: list[dict] = []

    def check(self, consts: Mapping) -> tuple[str, str]:
        self.checked.append(dict(consts))
        status = self.verdicts.get((consts["BM"], consts["BN"]), "right")
        return status, "" if status == "right" else f"it {status}"

    def time(self, consts: Mapping) -> float:
        self.timed.append(dict(consts))
        return self.cost(consts)


class FakeCompiler:
    def __init__(self, built: Callable[[Mapping], BuildResult] = lambda consts: BuildResult()):
        self.built = built
        self.settings: list[dict] = []

    def __call__(self, settings: Sequence[Mapping]) -> Iterator[tuple[int, BuildResult]]:
        for index in reversed(range(len(settings))):  # processes end in any order
            self.settings.append(dict(settings[index]))
            yield index, self.built(settings[index])


def cost(consts: Mapping) -> float:
    """Best at BM = 128, BN = 96, STAGES = 3, static."""
    return 1.0 + (consts["BM"] == 64) + 0.01 * abs(consts["BN"] - 96) + 0.3 * (consts["STAGES"] != 3) + 0.2 * consts["DYNAMIC"]


def nan(consts: Mapping) -> float:
    return math.nan
