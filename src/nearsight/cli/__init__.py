"""The command line, a file for each command: thin shells over the verbs of `nearsight`."""

from .shell import main

__all__ = ["main"]
