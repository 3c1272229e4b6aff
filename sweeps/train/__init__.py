"""Training of one run. The only folder that imports lightning; this file imports nothing, so that planning stays fast."""

NUMERICS = 1
"""Raise by one whenever training gives another loss for an unchanged configuration; it enters every run id."""
