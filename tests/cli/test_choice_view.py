"""cuir tune --choice: which setting a call gets, and why, on a machine without a GPU too."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import corpus
from cuir.attn.capture.capture_keys import make_capture_key
from cuir.attn.kernels.attention_kernel import make_attention
from cuir.attn.kernels.card_kernels import choose_target
from cuir.attn.kernels.experts import Form
from cuir.checking.const_defaults import consts_as_json
from cuir.performance.selection.shipped_table import list_shipped_devices
from cuir.runtime.cards import CARDS
from cuir.spec.specification import Lengths
from tests.stand_in_cards import stand_in

H200 = "NVIDIA H200"


def test_it_says_which_and_why(cuir: Callable) -> None:
    shapes = ("--shape", "2,32,32,8192,8192,128", "--shape", "1,4,4,512,512,128", "--shape", "2,16,16,4096,4096,192,128")
    output = cuir("tune", "causal", "--choice", "--gpu", H200, *shapes, "--dtype", "bf16", "--json")
    result = output.json["choices"]
    assert output.code == 0 and output.json["device"] == H200
    assert [c["source"] for c in result] == ["table", "model", "start"] and result[0]["setting"]["BM"] == 192 and H200 in result[0]["why"]
    assert result[2]["shape"] == [2, 16, 16, 4096, 4096, 192, 128]
    assert [(c["consts"]["T"], c["consts"]["D"]) for c in result] == [("bf16", 128), ("bf16", 128), ("bf16", 192)]


def test_it_is_a_table_for_people(cuir: Callable) -> None:
    output = cuir("tune", "document", "--choice", "--gpu", H200, "--shape", "16,32,32,1024,1024,64", "-c", "BN=64")
    assert output.code == 0 and all(w in output.out for w in ("document on NVIDIA H200", "BN=64", "T=f16", "D=64"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="what is said where there is no GPU")
def test_without_a_gpu_it_is_the_start_of_the_space(cuir: Callable) -> None:
    output = cuir("tune", "causal", "--choice", "--json")
    assert output.code == 0 and output.json["device"] is None and output.json["choices"][0]["source"] == "start"


@pytest.mark.parametrize("words", [("--choice", "--gpu", "NVIDIA B9000"), ("--gpu", H200), ("--choice", "--shape", "1,2")])
def test_wrong_calls(cuir: Callable, words: tuple[str, ...]) -> None:
    output = cuir("tune", "causal", *words, "--json")
    assert output.code == 2 and output.json["diagnostics"][0]["code"] in ("U100", "U116")


@pytest.mark.parametrize(("capability", "dim"), [((7, 5), 64), ((8, 0), 128), ((8, 9), 64)])
def test_a_card_has_the_setting_of_its_calls(capability: tuple[int, int], dim: int, cuir: Callable) -> None:
    """By name, and where it is the GPU of this machine: the estimate that a call takes, for kernels of its architecture."""
    card, shape = CARDS[capability], (2, 8, 8, 2048, 2048)
    words = ("tune", "causal", "--choice", "--shape", ",".join(map(str, (*shape, dim))), "--json")
    named = cuir(*words, "--gpu", card.name)
    with stand_in(card):
        present, target = cuir(*words), choose_target(torch.device("cuda", 0))
        spec = corpus.variant("causal")()
        form = Form(torch.float16, dim, dim, target=target)
        expected = make_attention(spec, make_capture_key(spec.mask_mod, None), form, "off").settings.choice(Lengths(*shape))
    assert expected.source == "model" and card.name in expected.why
    for output in (named, present):
        (found,) = output.json["choices"]
        assert output.code == 0 and output.json["device"] == card.name
        assert (found["source"], found["why"], found["setting"]) == ("model", expected.why, consts_as_json(expected.setting))


def test_every_gpu_of_a_table_can_be_asked_for(cuir: Callable) -> None:
    for gpu in list_shipped_devices():
        assert cuir("tune", "full", "--choice", "--gpu", gpu, "--json").json["choices"][0]["source"] == "table"
