import torch


def reference(q, k, cos, sin):
    """Rotary position embedding, halves: (x, y) -> (x cos - y sin, y cos + x sin)."""
    def turned(x):
        u, v = x.chunk(2, -1)
        return torch.cat([u * cos - v * sin, v * cos + u * sin], -1)
    return {"QR": turned(q), "KR": turned(k)}


def sizes(drawn):
    return {"S": max(drawn["S"], 1)}


def inputs(sizes, generator):
    angle = 6.3 * torch.rand(sizes["S"], sizes["HD"], generator=generator)
    return {"COS": angle.cos(), "SIN": angle.sin()}
