"""Executors: what brings planned runs to their end on this machine or on a cluster."""
