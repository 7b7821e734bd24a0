"""Attention variants as PyTorch specifications, one per file; the factory in `<name>.py` has the file's name."""
