"""attn_implementation="cuir" on a GPU: prefill and generate() of models of transformers, over dynamic and static caches."""

from __future__ import annotations

import pytest

from tests.gpu.isolation import run_isolated

pytest.importorskip("transformers")
from tests.gpu import transformers_cases as cases

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", cases.MODELS)
def test_logits_are_those_of_eager(name: str) -> None:
    run_isolated(cases.logits, name, seconds=600)
