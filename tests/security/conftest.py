"""What pytest leaves alone here: scripts of other processes."""

collect_ignore = ["driver.py", "watch"]
