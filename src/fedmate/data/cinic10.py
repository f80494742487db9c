"""CINIC-10 (Darlow et al., 2018): CIFAR-10 and downsampled ImageNet; the folder `valid` is not used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, final

from fedmate.core import option
from fedmate.data.cifar import CIFAR10_CLASSES, SHAPE
from fedmate.data.dataset import CROP_HELP, CROP_LIMITS, FLIP_HELP, Arrays, Normalisation, RemoteFile
from fedmate.data.files import FileDataset, find_first
from fedmate.data.images import ImageFormat, read_images
from fedmate.data.npz import read_prepared

PARTS = ("train", "test")


@final
@dataclass(frozen=True, kw_only=True)
class Cinic10(FileDataset):
    """CINIC-10: ten classes of photographs, 32 x 32 pixels, 4.5 times as many as in CIFAR-10."""

    normalisation: ClassVar[Normalisation] = Normalisation.of_bytes(
        mean=(0.47889522, 0.47227842, 0.43047404), std=(0.24205776, 0.23828046, 0.25874835)
    )
    downloads: ClassVar[tuple[RemoteFile, ...]] = (
        RemoteFile(
            # Addresses of the older form, `/bitstream/handle/10283/3192/...`, return a web page to programs.
            "https://datashare.ed.ac.uk/bitstreams/e8e186cc-2688-48f1-aa5a-3fda1a43f8b6/download",
            "CINIC-10.tar.gz",
            687_544_992,
            "6ee4d0c996905fe93221de577967a372",
        ),
    )
    reading: ClassVar[tuple[str, ...]] = ("skip_bad",)
    citation: ClassVar[str] = "cinic2018"

    crop: int = option(4, CROP_HELP, CROP_LIMITS)
    flip: bool = option(True, FLIP_HELP)
    skip_bad: bool = option(False, "leave out images that cannot be read")

    @property
    def defaults(self) -> dict[str, dict[str, Any]]:
        """The paper's setting."""
        return {"partition": {"name": "share", "examples": 600}, "model": {"name": "cifar_cnn"}}

    @property
    def published(self) -> tuple[int, int]:
        """The official numbers of images."""
        return 90_000, 90_000

    def find(self, folder: Path) -> list[Path]:
        """Return the folders of the classes, the archive or the prepared file."""
        roots = [folder / "CINIC-10", folder / "cinic10", folder / "cinic-10", folder]
        trees = [[root / part / kind for part in PARTS for kind in CIFAR10_CLASSES] for root in roots]
        return find_first("cinic10", folder, [*trees, [folder / "CINIC-10.tar.gz"], [folder / "cinic10.npz"]])

    def read(self, found: Sequence[Path]) -> Arrays:
        """Read all images, or the prepared file."""
        if found[0].suffix == ".npz":
            return read_prepared(found[0], SHAPE, CIFAR10_CLASSES)
        return read_images(found, _locate, CIFAR10_CLASSES, ImageFormat(32, resize=False, skip_bad=self.skip_bad))


def _locate(path: PurePosixPath) -> tuple[bool, int] | None:
    part, kind = path.parts[-3:-1] if len(path.parts) > 2 else ("", "")
    return (part == "test", CIFAR10_CLASSES.index(kind)) if part in PARTS and kind in CIFAR10_CLASSES else None
