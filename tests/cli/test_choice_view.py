"""cuir tune --choice: which setting a call gets, and why, on a machine without a GPU too."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from cuir.performance.selection.shipped_table import list_shipped_devices

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


def test_every_gpu_of_a_table_can_be_asked_for(cuir: Callable) -> None:
    for gpu in list_shipped_devices():
        assert cuir("tune", "full", "--choice", "--gpu", gpu, "--json").json["choices"][0]["source"] == "table"
