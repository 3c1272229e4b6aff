"""The one error that a person's input can cause. Command lines print it as one line and exit with 2."""

from __future__ import annotations


class InputError(ValueError):
    """Bad input: the message is one line that names the file, the value, what is allowed and the remedy."""
