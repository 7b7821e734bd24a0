import torch


def reference(x):
    y, at = torch.nn.functional.max_pool2d(x.permute(0, 3, 1, 2), 3, 2, 1, return_indices=True)
    return {"Y": y.permute(0, 2, 3, 1), "at": at.permute(0, 2, 3, 1).to(torch.int32)}


def sizes(drawn):
    H, W = max(1, drawn["H"]), max(1, drawn["W"])
    return {"H": H, "W": W, "HO": (H - 1) // 2 + 1, "WO": (W - 1) // 2 + 1}
