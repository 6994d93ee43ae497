"""The harness runs by itself, and finds its other half beside it."""

collect_ignore = ["harness.py", "inject.py"]
