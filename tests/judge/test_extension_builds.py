"""Extensions of PyTorch without PyTorch's headers: what is joined, which functions are entered, what nvcc refuses."""

from __future__ import annotations

import pytest

from cuir.judge.extension_builds import build_extension, join_sources, list_functions
from cuir.text.diagnostics import CuirError

SOURCE = """
__global__ void __launch_bounds__(128) kernel(const float *x) {}
static int helper(int n) { return n; }
torch::Tensor first(torch::Tensor x, int n = 3) { return x; }
std::vector<at::Tensor> second(at::Tensor x) {
    return {x};
}
"""


def test_functions_of_tensors_are_found() -> None:
    assert list_functions(SOURCE) == ["first", "second"]
    assert 'm.def("second", &second);' in join_sources([SOURCE], list_functions(SOURCE))
    own = "PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {}"
    assert join_sources([SOURCE, own], ["first"]).count("PYBIND11_MODULE") == 1


@pytest.mark.nvcc
def test_what_the_headers_lack_is_named() -> None:
    text = join_sources(["torch::Tensor f(torch::Tensor x) { return torch::fft_rfft(x); }"], ["f"])
    with pytest.raises(CuirError, match="fft_rfft"):
        build_extension(text, "lacking", "sm_90a")
