"""The command `fedmate`."""

from fedmate.cli.app import main

__all__ = ["main"]
