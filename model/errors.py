"""The one error that a person's input can cause, and how a command line answers it: one line on stderr, exit code 2.

Here because `model` is the lowest folder with a command line; `sweeps.schema` hands both on to fitting and reports.
"""

from __future__ import annotations

import sys
from typing import NoReturn

import typer


class InputError(ValueError):
    """Bad input: the message is one line that names the file, the value, what is allowed and the remedy."""


def run_app(app: typer.Typer) -> NoReturn:
    """Run a command line and exit. Bad input and wrong options are one line each; other exceptions keep their
    traceback, for they are our faults."""
    try:
        code = app(standalone_mode=False)
    except InputError as error:
        code = _complain(str(error))
    except typer.Abort:
        code = 130
    except Exception as error:
        # typer's own base of usage errors moved between its releases; all of them can format their message
        if not hasattr(error, "format_message"):
            raise
        code = _complain(f"{error.format_message().rstrip('.')}: see --help")
    sys.exit(code if isinstance(code, int) else 0)


def _complain(message: str) -> int:
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    return 2
