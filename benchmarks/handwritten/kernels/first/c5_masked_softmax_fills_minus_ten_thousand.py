import torch


def inputs(sizes, generator, x):
    return {"len": torch.randint(1, 65, (sizes["M"],), generator=generator, dtype=torch.int32), "X": x - 200.0 * (torch.arange(len(x)) % 3 == 1)[:, None]}


def reference(x, len):
    return (x * 64).masked_fill(torch.arange(x.shape[1]) >= len[:, None], -torch.inf).softmax(-1)
