"""ResNet-18: four stages of two residual blocks, each block two 3 x 3 convolutions beside a shortcut.

He, Zhang, Ren and Sun, "Deep Residual Learning for Image Recognition", CVPR 2016.

| stage      | output for 32 x 32 | for 224 x 224 | layers                                              |
|------------|--------------------|---------------|-----------------------------------------------------|
| stem       | 64 x 32 x 32       | 64 x 56 x 56  | up to 64 pixels 3 x 3; above 7 x 7, stride 2, pool  |
| stage1     | 64 x 32 x 32       | 64 x 56 x 56  | 2 blocks                                            |
| stage2     | 128 x 16 x 16      | 128 x 28 x 28 | 2 blocks, the first with stride 2                   |
| stage3     | 256 x 8 x 8        | 256 x 14 x 14 | 2 blocks, the first with stride 2                   |
| stage4     | 512 x 4 x 4        | 512 x 7 x 7   | 2 blocks, the first with stride 2                   |
| classifier | classes            | classes       | mean of each channel, then one linear layer         |

Of an image of at most 64 pixels on its longer side the paper's stem would leave 2 x 2 or less for the last stage, so
it is read by a 3 x 3 convolution with stride 1, without pooling, as is usual for CIFAR. Where a block changes the
shape, its shortcut is a 1 x 1 convolution. For 10 classes there are 11,173,962 parameters with the small stem and
11,181,642 with the large one, whichever the normalisation.

Deviations: GroupNorm unless BatchNorm is chosen. It looks at one sample at a time and so has no statistics on which
unequal clients could disagree (Hsieh, Phanishayee, Mutlu and Gibbons, ICML 2020).

Convolutions start as the paper's do, normal with variance 2 / (kernel x kernel x output channels). What follows them
takes their scale out again, but their steps feel it: PyTorch's default, with a sixth of that variance, would act like a
six times larger learning rate. The classifier has PyTorch's initialisation.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias, final

from torch import Tensor, nn

from fedmate.core import Limits, option
from fedmate.errors import UserError
from fedmate.models import Architecture

Norm: TypeAlias = partial[nn.GroupNorm] | type[nn.BatchNorm2d]
"""Makes a layer that normalises so many channels."""


@final
@dataclass(frozen=True, kw_only=True)
class ResNet18(Architecture):
    """Residual network of 18 layers, for images of any size from 8 x 8."""

    norm: Literal["group", "batch"] = option("group", "normalisation: GroupNorm, or BatchNorm with its `buffers`")
    groups: int = option(32, "groups of channels that GroupNorm looks at", Limits(at_least=1))
    width: int = option(64, "channels of the first stage; features are 8 times as wide", Limits(at_least=1))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.norm == "group" and self.width % self.groups:
            raise UserError(
                f"`model.groups` is {self.groups}, which does not divide the {self.width} channels of the first stage "
                "(`model.width`); set it to a number that does."
            )

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """Return the network; convolutions start as in the paper, the rest as in PyTorch."""
        # A side of 8 can be halved three times.
        if len(input_shape) != 3 or min(input_shape[1:]) < 8:
            raise UserError(
                f"`model.name` is `resnet18`, which reads images (channels, height, width) of at least 8 x 8, not "
                f"{input_shape}; choose another, or give your own network to `fedmate.run(model=...)`."
            )
        norm: Norm = partial(nn.GroupNorm, self.groups) if self.norm == "group" else nn.BatchNorm2d
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        is_small = max(input_shape[1:]) <= 64
        kernel, stride = (3, 1) if is_small else (7, 2)
        layers["conv1"] = nn.Conv2d(input_shape[0], self.width, kernel, stride, padding=kernel // 2, bias=False)
        layers["norm1"] = norm(self.width)
        layers["act1"] = nn.ReLU()
        if not is_small:
            layers["pool1"] = nn.MaxPool2d(3, 2, padding=1)
        channels = self.width
        for number in range(4):
            wide, stride = self.width * 2**number, 1 if number == 0 else 2
            layers[f"stage{number + 1}"] = nn.Sequential(
                ResidualBlock(channels, wide, stride, norm), ResidualBlock(wide, wide, 1, norm)
            )
            channels = wide
        layers["mean"] = nn.AdaptiveAvgPool2d(1)
        layers["flatten"] = nn.Flatten()
        layers["classifier"] = nn.Linear(channels, num_classes)
        network = nn.Sequential(layers)
        for layer in network.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
        return network


@final
class ResidualBlock(nn.Module):
    """Two convolutions whose output is added to their input; `stride` is that of the first."""

    def __init__(self, channels: int, wide: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, wide, 3, stride, padding=1, bias=False)
        self.norm1 = norm(wide)
        self.conv2 = nn.Conv2d(wide, wide, 3, padding=1, bias=False)
        self.norm2 = norm(wide)
        self.shortcut = nn.Sequential()
        if stride > 1 or channels != wide:
            self.shortcut.add_module("conv", nn.Conv2d(channels, wide, 1, stride, bias=False))
            self.shortcut.add_module("norm", norm(wide))

    def forward(self, x: Tensor) -> Tensor:
        """Return `[samples, wide, height / stride, width / stride]`."""
        change: Tensor = self.norm2(self.conv2(self.norm1(self.conv1(x)).relu()))
        unchanged: Tensor = self.shortcut(x)
        return (change + unchanged).relu()
