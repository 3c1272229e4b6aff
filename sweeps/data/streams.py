"""Named streams of random 64-bit integers, equal on every machine and in every process.

A stream is PCG64 seeded by blake2b of its name, a tuple of words and integers such as ("order", seed, epoch): two
names give unrelated streams, and there is no state that a resumed run could lose. Only raw integers of a bit generator
are used, because numpy freezes those for ever, while the output of `Generator` methods may change between its releases.
"""

from __future__ import annotations

import hashlib
import json

import numpy as np


def stream(*name: int | str) -> np.random.PCG64:
    """The bit generator called `name`; `.random_raw(n)` gives its first n integers, uniform on [0, 2**64)."""
    digest = hashlib.blake2b(json.dumps(name).encode(), digest_size=16).digest()
    return np.random.PCG64(int.from_bytes(digest, "little"))


def permutation(bits: np.random.PCG64, n: int) -> np.ndarray:
    """A uniformly random order of 0..n-1 (int64): the sorting order of n raw integers, ties kept in place."""
    return np.argsort(bits.random_raw(n), kind="stable")
