import torch


def reference(x):
    return (x * 8.0).clamp(-128.0, 127.0).add(0.5).floor()
