import torch

from cuir.cuda import KernelCall


def launch(x: torch.Tensor) -> tuple[KernelCall, torch.Tensor]:
    out = torch.empty_like(x)
    return KernelCall(8, 128, x, out, x.numel()), out
