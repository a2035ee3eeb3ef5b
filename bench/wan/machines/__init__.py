"""The processes that a run needs, where they run, and the CPU time they use."""
