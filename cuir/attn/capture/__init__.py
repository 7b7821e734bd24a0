"""Arguments of calls: captured values and keys of mods, and layouts of tensors.

It also holds what torch.compile knows of both.
"""
