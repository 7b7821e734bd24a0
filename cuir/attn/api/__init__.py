"""FlexAttention's call and block masks, eager and in graphs."""
