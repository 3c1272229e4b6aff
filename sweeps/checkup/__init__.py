"""What a sweep needs of a machine, looked at before it is needed: one file a group of checks. Changes nothing that it
does not remove again, and starts other programs with time limits only. Imports no torch."""
