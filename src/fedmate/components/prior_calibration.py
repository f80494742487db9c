"""Prior calibration: a client's class shares are kept out of its model, and put in again where they hold.

A client trains with cross-entropy on `logits + tau * log p_i`, p_i its class shares. With tau = 1 what makes a class
likely at this client is explained by p_i, and the logits answer as if all classes were equally likely. The same model
then serves any test distribution p with `logits + log p`: the client's own, another that is known, or one that is
estimated from samples without labels; what a class looks like must be the same there. A smaller tau leaves some of p_i
in the logits: on the client's own distribution `tau * log p_i` is added, elsewhere nothing is.

Menon, Jayasumana, Rawat, Jain, Veit and Kumar, "Long-tail learning via logit adjustment", ICLR 2021; Ren et al.,
"Balanced Meta-Softmax for Long-Tailed Visual Recognition", NeurIPS 2020.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedmate.core.data import ClientData
from fedmate.core.method import Method
from fedmate.core.options import Limits, option
from fedmate.errors import UserError

BARRIER = -1e9
"""What stands for log 0: so low that nothing is left of a class, and finite, so that nothing becomes NaN."""


@dataclass(frozen=True, kw_only=True)
class Calibrated(Method):
    """A method whose clients can train with prior calibration."""

    calibration: float = option(
        0.0,
        "weight of log class shares in clients' training loss, prior calibration (tau); 0 is off",
        Limits(at_least=0, at_most=10),
    )
    absent_share: float = option(
        0.0, "pseudo-frequency of classes that a client lacks in p_i; 0 masks them", Limits(at_least=0, below=1)
    )
    own_prior: bool = option(False, "add log class shares to global models on the own test only: calibration's control")

    def warnings(self, class_counts: Sequence[Tensor]) -> list[str]:
        """Warn about options without effect, and about clients of a single class."""
        found = super().warnings(class_counts)
        if self.absent_share and not self.calibration:
            found.append("`method.absent_share` changes nothing while `method.calibration` is 0.")
        if self.own_prior and self.calibration:
            found.append("`method.own_prior` changes nothing beside `method.calibration`.")
        alone = sum(int((counts > 0).sum()) == 1 for counts in class_counts)
        if alone and (self.calibration or self.own_prior):
            option = "calibration" if self.calibration else "own_prior"
            constant = "their loss is constant and " * bool(self.calibration and not self.absent_share)
            found.append(
                f"{alone} of {len(class_counts)} clients hold a single class; with `method.{option}` {constant}their "
                "`own` accuracy is 100 % whatever the model is."
            )
        return found

    def prior_weight(self, is_global: bool) -> float:
        """Return how much of the logarithm of a distribution is added to a model's logits to answer for it.

        `own_prior` adds class shares that training did not keep out. A model that a client has trained for itself
        holds that client's already.
        """
        return self.calibration or float(self.own_prior and is_global)

    def adjustment(self, data: ClientData) -> Tensor | None:
        """Return `tau * log p_i`."""
        if not self.calibration:
            return None
        shares = self._shares(data)
        lacking = torch.full_like(shares, self.absent_share)
        return prior_adjustment(torch.where(shares > 0, shares, lacking), self.calibration)

    def own_adjustment(self, data: ClientData, is_global: bool) -> Tensor | None:
        """Return the same for the test: what a client lacks is not asked for there."""
        weight = self.prior_weight(is_global)
        return prior_adjustment(self._shares(data), weight) if weight else None

    def _shares(self, data: ClientData) -> Tensor:
        counts = self.setup.class_counts(data).to(data.source.mean.dtype)
        return counts / counts.sum().clamp(min=1)


def prior_adjustment(shares: Tensor, tau: float) -> Tensor:
    """Return `tau` times the logarithm of class shares, to be added to logits; a share of 0 rules a class out."""
    absent = shares <= 0
    return (tau * shares.masked_fill(absent, 1).log()).masked_fill(absent, BARRIER)


def estimate_prior(logits: Tensor, steps: int = 1000, tolerance: float = 1e-9) -> Tensor:
    """Estimate how likely classes are among samples without labels: the most probable shares, by EM.

    As if one more sample had been seen that is a bit of each class: few samples are no proof that a class is not there.
    One in all, however many classes there are, or those that are not there would outweigh the samples.
    It takes the probabilities at their word: a network that is right more often than it is sure is led astray.

    Saerens, Latinne and Decaestecker, "Adjusting the Outputs of a Classifier to New a Priori Probabilities", Neural
    Computation 2002: each sample's answer under the shares so far, then the mean of the answers.

    Args:
        logits: of a model that answers as if classes were equally likely, `[samples, classes]`; minus infinity rules
            a class out.
        steps: the most that are taken.
        tolerance: it ends when no share moves by more.

    Returns:
        Shares, `[classes]`, float64.

    Raises:
        UserError: the logits of a sample are no probabilities, but NaN or infinite; one would make all shares NaN.
    """
    logits = logits.to(torch.float64)
    odd = (~logits.softmax(-1).isfinite().all(1)).nonzero()
    if len(odd):
        raise UserError(f"`logits` are NaN or infinite for sample {int(odd[0])}; check the scale of the samples.")
    samples, classes = logits.shape
    shares = logits.new_full((classes,), 1 / classes)
    for _ in range(steps):
        seen = (logits + prior_adjustment(shares, 1.0)).softmax(-1).sum(0)
        previous, shares = shares, (seen + 1 / classes) / (samples + 1)
        if (shares - previous).abs().max() <= tolerance:
            break
    return shares
