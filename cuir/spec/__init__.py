"""What a kernel should compute, in PyTorch: mods of attention, or any function; and how they are loaded from a user's file."""
