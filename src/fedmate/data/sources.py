"""Where data sets come from: the one table of places, sizes and checksums, and of where each checksum is published."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

CIFAR_PAGE = "https://www.cs.toronto.edu/~kriz/cifar.html"
TORCHVISION = "https://github.com/pytorch/vision/blob/main/torchvision/datasets/mnist.py"


@final
@dataclass(frozen=True)
class File:
    """A file that somebody publishes.

    Attributes:
        url: where it is fetched from.
        name: where it belongs, relative to the folder of data sets.
        size: in bytes.
        checksum: what its content comes to, in hexadecimal digits.
        source: where that is published.
        algorithm: of the checksum, as `hashlib` names it.
    """

    url: str
    name: str
    size: int
    checksum: str
    source: str
    algorithm: str = "md5"


@final
@dataclass(frozen=True)
class Origin:
    """How to get a data set.

    Attributes:
        title: what it is.
        files: what is fetched; all of them make the data set.
        others: files that may lie there instead; they are checked, but not fetched.
        steps: what to do where nothing can be fetched; `{folder}` stands for the folder of data sets.
        hint: the same in a few words, for what is nobody's but the user's.
    """

    title: str
    files: tuple[File, ...] = ()
    others: tuple[File, ...] = ()
    steps: tuple[str, ...] = ()
    hint: str = ""


def _cifar(name: str, size: int, checksum: str) -> File:
    # The page redirects to another host of the university, with the same files.
    return File(f"https://www.cs.toronto.edu/~kriz/{name}", name, size, checksum, CIFAR_PAGE)


def _mnist(name: str, size: int, checksum: str) -> File:
    # The first host, yann.lecun.com, answers 403 since 2024, and published no checksums; this is PyTorch's copy.
    url = f"https://ossci-datasets.s3.amazonaws.com/mnist/{name}"
    return File(url, f"mnist/{name}", size, checksum, TORCHVISION)


def _fashion(name: str, size: int, checksum: str) -> File:
    # The makers offer no `https`; the checksum is what tells that nobody has changed the file on its way.
    url = f"http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/{name}"
    page = "https://github.com/zalandoresearch/fashion-mnist#get-the-data"
    return File(url, f"fashion_mnist/{name}", size, checksum, page)


OFFICIAL: dict[str, Origin] = {
    "animal10": Origin(
        "Animals-10: photographs of ten kinds of animals from the web",
        steps=(
            "Sign in at https://www.kaggle.com: an account is needed, and free.",
            "Open https://www.kaggle.com/datasets/alessiocorrado99/animals10 and download the data set.",
            "Put the archive, packed as it is, into `{folder}`; its name is `archive.zip` or `animals10.zip`.",
            "Or unpack it, so that `{folder}/animal10/raw-img/cane` and nine other folders hold the images.",
        ),
    ),
    "cifar10": Origin(
        "CIFAR-10: 60,000 photographs of 32 x 32 pixels in ten classes",
        files=(_cifar("cifar-10-python.tar.gz", 170_498_071, "c58f30108f718f92721af3b95e74349a"),),
        others=(_cifar("cifar-10-binary.tar.gz", 170_052_171, "c32a1d4ab5d03f1284b67883e8d87530"),),
    ),
    "cifar100": Origin(
        "CIFAR-100: 60,000 photographs of 32 x 32 pixels in a hundred classes",
        files=(_cifar("cifar-100-python.tar.gz", 169_001_437, "eb9058c3a382ffc7106e4002c42a8d85"),),
        others=(_cifar("cifar-100-binary.tar.gz", 168_513_733, "03b5dce01913d631647c71ecec9e9cb8"),),
    ),
    "cinic10": Origin(
        "CINIC-10: CIFAR-10 and 210,000 images of ImageNet in its classes and size",
        files=(
            File(
                # Addresses of the older form, `/bitstream/handle/10283/3192/...`, give a web page to programs.
                "https://datashare.ed.ac.uk/bitstreams/e8e186cc-2688-48f1-aa5a-3fda1a43f8b6/download",
                "CINIC-10.tar.gz",
                687_544_992,
                "6ee4d0c996905fe93221de577967a372",
                "the archive's ETag at https://datashare.ed.ac.uk/handle/10283/3192, as public loaders of it agree",
            ),
        ),
    ),
    "digits": Origin(
        "Digits: 1,797 handwritten digits of 8 x 8 pixels", hint="comes with scikit-learn: nothing to get"
    ),
    "emnist": Origin(
        "EMNIST: handwritten digits and letters of 28 x 28 pixels, in several splits",
        files=(
            File(
                "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
                "emnist/gzip.zip",
                561_753_746,
                "58c8d27c78d21e728a6bc7b3cc06412e",
                # https://www.nist.gov/itl/products-and-services/emnist-dataset has none.
                TORCHVISION,
            ),
        ),
    ),
    "fashion_mnist": Origin(
        "Fashion-MNIST: 70,000 pictures of clothes of 28 x 28 pixels in ten classes",
        files=(
            _fashion("train-images-idx3-ubyte.gz", 26_421_880, "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
            _fashion("train-labels-idx1-ubyte.gz", 29_515, "25c81989df183df01b3e8a0aad5dffbe"),
            _fashion("t10k-images-idx3-ubyte.gz", 4_422_102, "bef4ecab320f06d8554ea6380940ec79"),
            _fashion("t10k-labels-idx1-ubyte.gz", 5_148, "bb300cfdad3c16e7a12a480ee83cd310"),
        ),
    ),
    "folder": Origin(
        "A folder of your own: a sub-folder of images for each class",
        hint="yours: `--set dataset.path=FOLDER` names it",
    ),
    "given": Origin("Arrays of your own, in Python", hint="yours: hand them to `fedmate.run(..., data=...)`"),
    "mnist": Origin(
        "MNIST: 70,000 handwritten digits of 28 x 28 pixels",
        files=(
            _mnist("train-images-idx3-ubyte.gz", 9_912_422, "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
            _mnist("train-labels-idx1-ubyte.gz", 28_881, "d53e105ee54ea40749a09fcbcd1e9432"),
            _mnist("t10k-images-idx3-ubyte.gz", 1_648_877, "9fb629c4189551a2d022fa330f9573f3"),
            _mnist("t10k-labels-idx1-ubyte.gz", 4_542, "ec29112dd5afa0611ce80d1b7f02629c"),
        ),
    ),
    "npz": Origin("A file of your own with arrays", hint="yours: `--set dataset.path=FILE.npz` names it"),
    "sites": Origin(
        "Samples that lie with sites of their own", hint="theirs: it stays where it is, see docs/deploy.md"
    ),
}
"""By the name of the data set. A data set of another package need not be here: it says itself what it misses."""
