"""Experiments: the simulated corpus, and the papers' figures and tables, from descriptions of runs to a page of results."""
