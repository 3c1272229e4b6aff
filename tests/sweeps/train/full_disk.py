"""Train with a limit on file sizes from a step on: `python -m tests.sweeps.train.full_disk FOLDER STEP BYTES`."""

import json
import resource
import sys
from dataclasses import asdict
from pathlib import Path

from sweeps.train.batches import Batches
from sweeps.train.loop import Cadence
from tests.sweeps.train.runs import train

folder, step, limit = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
original = Batches.__iter__


def iterate(self):
    for number, batch in enumerate(original(self), start=self.first + 1):
        if number == step:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        yield batch


Batches.__iter__ = iterate  # type: ignore[method-assign]
result = train(folder, Cadence(steps=5))
print(json.dumps(asdict(result)))
