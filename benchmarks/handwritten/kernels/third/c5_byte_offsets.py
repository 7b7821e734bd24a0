import torch


def reference(size):
    total = size.long().cumsum(1)
    begin = (total - size).to(torch.int32)
    return {"begin": begin, "page": begin // 4096, "within": begin % 4096, "length": total[:, -1].to(torch.int32)}


def sizes(drawn):
    return {"N": max(1, drawn["N"])}


def inputs(sizes, generator):
    """Records are short or of up to a megabyte; some rows have mostly long ones."""
    short = torch.randint(0, 2000, (sizes["B"], sizes["N"]), generator=generator)
    long = torch.randint(0, 1 << 20, (sizes["B"], sizes["N"]), generator=generator)
    often = torch.rand(sizes["B"], 1, generator=generator)
    return {"size": torch.where(torch.rand(short.shape, generator=generator) < often, long, short)}
