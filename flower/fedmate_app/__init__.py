"""FedMate and the methods it is compared with, as an app of Flower's; all of it is in the package `fedmate`."""

from pathlib import Path

from fedmate.flower import silence

silence()

FOLDER = Path(__file__).parent.parent
"""Where the app was unpacked: its experiments lie here."""
