"""Launch files: templates have an argument for each parameter."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cuir.cli.launch_files import load_launch, make_template
from cuir.cuda import LoadedModule
from cuir.ptx.module import read_module

HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry {name}({parameters}) {maximum} {{\n    ret;\n}}\n"


@pytest.mark.parametrize(
    ("signature", "name", "parameters", "parts"),
    [
        (
            "add(const half* x, int n)",
            "_Z3addPK6__halfi",
            ".param .u64 a, .param .u32 b",
            ["x = torch.randn(1024).to(torch.float16)", "n = 1024"],
        ),
        (
            "fill(int *out, float v)",
            "_Z4fillPif",
            ".param .u64 a, .param .f32 b",
            ["out = torch.zeros(1024, dtype=torch.int32)", "v = 1.0"],
        ),
        ("raw(float *p, S s)", "_Z3rawPf1S", ".param .u64 a, .param .align 8 .b8 b[40]", ["p = torch.zeros(1024)", "s = bytes(40)"]),
        ("", "_Z4copy11CUtensorMap", ".param .align 64 .b8 a[128]", ["tensor_map(torch.randn(128, 128).half()", "KernelCall, tensor_map"]),
        ("", "plain", ".param .u64 a, .param .u32 b", ["p0 = torch.zeros(1024)", "p1 = 1024"]),
    ],
)
def test_templates_name_each_parameter(tmp_path: Path, signature: str, name: str, parameters: str, parts: list[str]) -> None:
    source = tmp_path / "k.cu"
    source.write_text(f"__global__ void {signature} {{}}\n" if signature else "", encoding="utf-8")
    module = LoadedModule(read_module(HEAD.format(name=name, parameters=parameters, maximum=".maxntid 64, 2")), source)
    template = make_template(module.choose(None))
    assert all(part in template for part in parts) and "KernelCall(1, (64, 2, 1), " in template
    (tmp_path / "launch.py").write_text(template, encoding="utf-8")
    (call,) = load_launch(str(tmp_path / "launch.py"))()
    assert call.block == (64, 2, 1) and len(call.arguments) == parameters.count(".param")
    assert all(isinstance(a, (torch.Tensor, int, float, bytes)) or "tensor_map" in template for a in call.arguments)
