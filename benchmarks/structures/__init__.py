"""Structures of attention that no mask and no score says, each a function: targets of `cuir eval` beside the variants of the corpus."""
