import torch


def reference(x, f, bias):
    """Leaky relu of a 3 x 3 convolution, channels last."""
    y = torch.nn.functional.conv2d(x.permute(0, 3, 1, 2), f.permute(3, 2, 0, 1), padding=1).permute(0, 2, 3, 1) + bias
    return torch.where(y > 0, y, 0.125 * y)
