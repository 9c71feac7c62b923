"""Processes and clusters of processes, for tests that kill them and for benchmarks.

`processes` starts children, talks to them and leaves none behind; `group` is a cluster of nodes
with replicated groups, whose nodes (`group_node`) do what their parent says; `ports` gives tests
ports of their own.
"""
