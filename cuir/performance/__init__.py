"""Performance: timing, the search for settings, the settings of a call, and suites beside peers."""
