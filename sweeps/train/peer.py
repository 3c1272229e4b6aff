"""A further process of one run on this machine: `python -m sweeps.train.peer PARENT_PID REQUEST`, started by
`sweeps.train.peers`. REQUEST is JSON: run (folder), rank, size, rendezvous, device."""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path

from sweeps.worker import die_with_parent


def main() -> None:
    """Entry point."""
    die_with_parent(int(sys.argv[1]))
    request = json.loads(sys.argv[2])
    from sweeps.train.run import Options, train_run
    from sweeps.train.stop import Stop
    from sweeps.train.world import World

    stop = Stop()
    stop.install()
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(message)s")
    world = World(request["rank"], request["size"], Path(request["rendezvous"]))
    result = train_run(Path(request["run"]), Options(request["device"], world=world), stop, lambda beat: None)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1 if result.status == "failed" else 0)  # without taking torch down, which costs a second


if __name__ == "__main__":
    main()
