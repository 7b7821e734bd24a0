"""Arguments of calls: captured values and keys of mods, layouts of tensors, and what torch.compile knows of both."""
