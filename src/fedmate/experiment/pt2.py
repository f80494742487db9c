"""Networks as `.pt2` files: graphs that PyTorch runs without fedmate, on raw samples."""

from __future__ import annotations

import io
import warnings

import torch
from torch import Tensor, nn

from fedmate.errors import UserError
from fedmate.experiment.signature import Signature


class RawReader(nn.Module):
    """A network that normalises its samples itself.

    Args:
        network: reads normalised samples.
        signature: how they are normalised.
    """

    def __init__(self, network: nn.Module, signature: Signature) -> None:
        super().__init__()
        self.network = network
        shape = (-1, *[1] * (len(signature.input_shape) - 1))
        dtype = getattr(torch, signature.dtype)
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", torch.tensor(signature.normalisation.mean, dtype=dtype).reshape(shape))
        self.register_buffer("std", torch.tensor(signature.normalisation.std, dtype=dtype).reshape(shape))

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of raw samples."""
        logits: Tensor = self.network((x - self.mean) / self.std)
        return logits


def write(module: nn.Module, signature: Signature, note: str) -> bytes:
    """Return a network as an archive that reads raw samples, any number of them, and returns logits.

    Args:
        module: the network, in evaluation mode.
        signature: what it reads and answers.
        note: JSON to store beside it, as `fedmate.json`.

    Raises:
        UserError: torch cannot export the network.
    """
    # Zeros, never a client's samples: the archive may contain the inputs that a graph is traced with.
    samples = torch.zeros(2, *signature.input_shape, dtype=getattr(torch, signature.dtype))
    with warnings.catch_warnings():
        # torch warns about its own code: signatures it copies, weights of recurrent layers.
        warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)` is deprecated", FutureWarning)
        warnings.filterwarnings("ignore", r"The tensor attributes? .* assigned during export", UserWarning)
        try:
            exported = torch.export.export(
                RawReader(module, signature).eval(), (samples,), dynamic_shapes=({0: torch.export.Dim("batch")},)
            ).run_decompositions()
        except Exception as error:
            # A user's `forward` and torch's tracer can raise anything.
            reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
            raise UserError(
                f"`model` cannot be written as `.pt2`, torch says: {reason.rstrip('.')}; use `.safetensors`."
            ) from error
    exported.example_inputs = None
    for node in exported.graph.nodes:
        # The other entries hold folders of this machine and lines of source code.
        node.meta = {key: value for key, value in node.meta.items() if key == "val"}
    archive = io.BytesIO()
    torch.export.save(exported, archive, extra_files={"fedmate.json": note})
    return archive.getvalue()
