"""The option `--on`."""

from __future__ import annotations

import pytest

from cuir.campaigns.executors import make_executor
from cuir.campaigns.local_executor import LocalExecutor
from cuir.campaigns.ray_executor import RayExecutor
from cuir.text.diagnostics import CuirError


def test_a_place_makes_an_executor() -> None:
    assert make_executor("local", 3) == LocalExecutor(3)
    assert make_executor("ray") == RayExecutor() and make_executor("ray:head:6379") == RayExecutor("head:6379")
    assert make_executor("ray:ray://head:10001") == RayExecutor("ray://head:10001")
    assert make_executor("local", 3).describe() == "3 processes" and make_executor("ray:a:1").describe() == "Ray at a:1"


@pytest.mark.parametrize("place", ["", "slurm", "local:2", "Ray"])
def test_another_place_is_refused(place: str) -> None:
    with pytest.raises(CuirError, match="--on ray") as caught:
        make_executor(place)
    assert caught.value.diagnostics[0].code == "U100"
