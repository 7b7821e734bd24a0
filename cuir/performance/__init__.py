"""How fast kernels are: timing, the search for settings, the choice of settings for a call, and suites beside peers."""
