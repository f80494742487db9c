"""Prior calibration: a client's class shares are kept out of its model, and put in again where they hold.

A client trains with cross-entropy on `logits + tau * log p_i`, p_i its class shares: what makes a class likely at this
client is explained by p_i, and the logits answer as if all classes were equally likely. The same model then serves any
test distribution p with `logits + tau * log p`: the client's own, another that is known, or one that is estimated from
samples without labels. Menon, Jayasumana, Rawat, Jain, Veit and Kumar, "Long-tail learning via logit adjustment", ICLR
2021; Ren et al., "Balanced Meta-Softmax for Long-Tailed Visual Recognition", NeurIPS 2020.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedmate.core.data import ClientData, class_counts
from fedmate.core.method import Method
from fedmate.core.options import Limits, option

BARRIER = -1e9
"""What stands for log 0: so low that nothing is left of a class, and finite, so that nothing becomes NaN."""

CALIBRATION = "weight of log class shares in clients' training loss, prior calibration (tau); 0 is off"


@dataclass(frozen=True, kw_only=True)
class Calibrated(Method):
    """A method whose clients can train with prior calibration."""

    calibration: float = option(0.0, CALIBRATION, Limits(at_least=0), is_later=True)

    def adjustment(self, data: ClientData) -> Tensor | None:
        """Return `tau * log p_i`."""
        if not self.calibration:
            return None
        counts = class_counts(data, self.setup.num_classes).to(data.source.mean.dtype)
        return prior_adjustment(counts / counts.sum().clamp(min=1), self.calibration)


def prior_adjustment(shares: Tensor, tau: float) -> Tensor:
    """Return what is added to logits for a distribution of classes.

    Args:
        shares: how likely each class is, `[classes]`; 0 rules a class out.
        tau: how much of it counts.
    """
    absent = shares <= 0
    return (tau * shares.masked_fill(absent, 1).log()).masked_fill(absent, BARRIER)


def estimate_prior(logits: Tensor, tau: float = 1.0, steps: int = 1000, tolerance: float = 1e-9) -> Tensor:
    """Estimate how likely classes are among samples without labels: the most probable shares, by EM.

    Saerens, Latinne and Decaestecker, "Adjusting the Outputs of a Classifier to New a Priori Probabilities", Neural
    Computation 2002: each sample's answer under the shares so far, then the mean of the answers.

    Args:
        logits: of a calibrated model, `[samples, classes]`.
        tau: of its calibration.
        steps: the most that are taken.
        tolerance: it ends when no share moves by more.

    Returns:
        Shares, `[classes]`, float64.
    """
    logits = logits.to(torch.float64)
    shares = logits.new_full(logits.shape[1:], 1 / logits.shape[1])
    for _ in range(steps):
        previous, shares = shares, (logits + prior_adjustment(shares, tau)).softmax(-1).mean(0)
        if (shares - previous).abs().max() <= tolerance:
            break
    return shares
