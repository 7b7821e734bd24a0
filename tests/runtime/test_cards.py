"""Cards: what is read of a GPU, and the code that kernels are compiled to for it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from cuir.ops.limits import TARGETS
from cuir.runtime.cards import CARDS, Card, find_card, find_relative, find_shared_limit, list_cards, list_codes
from tests.stand_in_cards import stand_in

GPU = torch.device("cuda", 0)


@pytest.mark.parametrize("card", CARDS.values(), ids=lambda card: card.name)
def test_a_card_is_what_pytorch_reports(card: Card) -> None:
    present = replace(card, name="another", multiprocessors=card.multiprocessors + 1, shared_bytes=card.shared_bytes - 1024)
    with stand_in(present):
        assert find_card(GPU) == present == list_cards()[0]
        assert find_card(torch.device("cpu")) is None


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_there_is_no_card() -> None:
    assert find_card(GPU) is None and list_cards() == []


@pytest.mark.parametrize(
    ("capability", "like"), [((8, 7), (8, 6)), ((10, 3), (10, 0)), ((12, 1), (12, 0)), ((13, 0), (12, 0)), ((7, 0), (7, 5))]
)
def test_an_unknown_card_is_like_the_newest_older_one(capability: tuple[int, int], like: tuple[int, int]) -> None:
    assert find_relative(capability) is CARDS[like]


@pytest.mark.parametrize(
    ("capability", "arch", "codes"),
    [
        ((7, 5), "sm_75", ("sm_75", "compute_75")),
        ((8, 0), "sm_80", ("sm_80", "compute_80")),
        ((8, 0), "sm_75", ("sm_80", "compute_75")),
        ((8, 6), "sm_80", ("sm_86", "compute_80")),
        ((8, 9), "sm_80", ("sm_89", "compute_80")),
        ((9, 0), "sm_80", ("sm_90", "compute_80")),
        ((10, 0), "sm_80", ("sm_100", "compute_80")),
        ((12, 0), "sm_80", ("sm_120", "compute_80")),
    ],
)
def test_a_kernel_of_several_cards_is_compiled_for_the_one_that_is_here(
    capability: tuple[int, int], arch: str, codes: tuple[str, ...]
) -> None:
    with stand_in(CARDS[capability]):
        assert list_codes(arch) == codes


@pytest.mark.parametrize("capability", CARDS)
def test_other_kernels_are_compiled_for_their_card_alone(capability: tuple[int, int]) -> None:
    with stand_in(CARDS[capability]):
        assert list_codes("sm_90a") == ("sm_90a",)


def test_each_card_of_a_machine_gets_its_code() -> None:
    with stand_in(CARDS[8, 9], CARDS[7, 5], CARDS[8, 0], CARDS[8, 9]):
        assert list_codes("sm_80") == ("sm_80", "sm_89", "compute_80")
        assert list_codes("sm_75") == ("sm_75", "sm_80", "sm_89", "compute_75")


def test_no_card_that_runs_a_kernel_leaves_the_usual_codes() -> None:
    with stand_in(CARDS[7, 5]):
        assert list_codes("sm_80") == TARGETS["sm_80"].code


def test_only_less_shared_memory_is_a_limit() -> None:
    assert find_shared_limit("sm_80", CARDS[8, 6]) == 99 * 1024
    assert find_shared_limit("sm_80", CARDS[8, 0]) is None and find_shared_limit("sm_80", CARDS[10, 0]) is None
    assert find_shared_limit("sm_75", CARDS[7, 5]) is None and find_shared_limit("sm_90a", None) is None
