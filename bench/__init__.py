"""Workloads x systems: sendlater and its peers on one machine, in one run, by the same clock."""
