"""Campaigns: independent tasks of some seconds, in local processes or on a Ray cluster, with a journal to resume from."""
