"""Training of one run. The only folder that imports lightning; this file imports nothing, so that planning stays fast.

A change here that gives another loss for an unchanged configuration raises `train` in `sweeps.identity.NUMERICS`.
"""
