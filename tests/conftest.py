"""Property tests draw the same examples everywhere, so that a failure is a failure for everyone."""

from hypothesis import settings

settings.register_profile("same everywhere", derandomize=True, deadline=None)
settings.load_profile("same everywhere")
