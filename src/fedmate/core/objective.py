"""What local training minimises beside the task's loss, for every method alike: the `[objective]` section.

**Prior calibration** keeps a client's class shares p_i out of its model. The client trains with cross-entropy on
`logits + tau * log p_i`. With tau = 1 the logits answer as if all classes were equally likely. The same model then
serves any test distribution p with `logits + log p`, as long as each class looks the same there. A smaller tau leaves
some of p_i in the logits.

Two controls change the test instead of training. `own_prior` adds class shares to global models on the own test.
`posthoc` takes them out of clients' models on the balanced test.

Menon, Jayasumana, Rawat, Jain, Veit and Kumar, "Long-tail learning via logit adjustment", ICLR 2021; Ren et al.,
"Balanced Meta-Softmax for Long-Tailed Visual Recognition", NeurIPS 2020. `class_balance` is the loss of Cui, Jia, Lin,
Song and Belongie, "Class-Balanced Loss Based on Effective Number of Samples", CVPR 2019.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedmate.core.options import Limits, check_options, option
from fedmate.core.task import Adjustment
from fedmate.errors import UserError

BARRIER = -1e9
"""What stands for log 0: so low that nothing is left of a class, and finite, so that nothing becomes NaN."""


@dataclass(frozen=True, kw_only=True)
class ObjectiveOptions:
    """The `[objective]` section. `counts` are a client's samples per class, `[classes]`, in the data's type.

    `is_global` tells the global model from one that a client has trained for itself.
    """

    calibration: float = option(
        0.0,
        "weight of log class shares in clients' training loss, prior calibration (tau); 0 is off",
        Limits(at_least=0, at_most=10),
    )
    absent_share: float = option(
        0.0, "pseudo-frequency of classes that a client lacks in p_i; 0 masks them", Limits(at_least=0, below=1)
    )
    own_prior: bool = option(False, "add log class shares to global models on the own test only: calibration's control")
    posthoc: float = option(
        0.0,
        "weight of log class shares taken out of clients' models on the balanced test only: the other control",
        Limits(at_least=0, at_most=10),
    )

    class_balance: float = option(
        0.0,
        "beta of the class-balanced loss: classes weigh (1 - beta) / (1 - beta^n_ik); 0 is off, 1 is 1 / n_ik",
        Limits(at_least=0, at_most=1),
    )
    label_smoothing: float = option(
        0.0, "share of each label that is spread over all classes", Limits(at_least=0, below=1)
    )

    def __post_init__(self) -> None:
        check_options("objective", ObjectiveOptions, vars(self))

    def warnings(self, class_counts: Sequence[Tensor]) -> list[str]:
        """Warn about options without effect, and about clients of a single class."""
        found = []
        if self.absent_share and not self.calibration:
            found.append("`objective.absent_share` changes nothing while `objective.calibration` is 0.")
        for name in ("own_prior", "posthoc"):
            if getattr(self, name) and self.calibration:
                found.append(f"`objective.{name}` changes nothing beside `objective.calibration`.")
        alone = sum(int((counts > 0).sum()) == 1 for counts in class_counts)
        if alone:
            loss = " their loss is constant and" * bool(self.calibration and not self.absent_share)
            found.append(
                f"{alone} of {len(class_counts)} clients hold a single class:{loss} their `own` accuracy is 100 % "
                "whatever the model is."
            )
        return found

    def prior_weight(self, is_global: bool) -> float:
        """Return how much of the logarithm of a distribution is added to a model's logits to answer for it."""
        return self.calibration or float(self.own_prior and is_global)

    def for_training(self, counts: Tensor) -> Adjustment:
        """Return what training adds to the logits, `tau * log p_i`, and the weights of classes."""
        logits = weights = None
        if self.calibration:
            shares = counts / counts.sum().clamp(min=1)
            lacking = torch.full_like(shares, self.absent_share)
            logits = prior_adjustment(torch.where(shares > 0, shares, lacking), self.calibration)
        if self.class_balance:
            beta = self.class_balance
            effective = (1 - beta**counts) / (1 - beta) if beta < 1 else counts
            weights = torch.where(counts > 0, 1 / effective, torch.zeros_like(counts))
        return Adjustment(logits, weights)

    def for_balanced(self, counts: Tensor, is_global: bool) -> Tensor | None:
        """Return what the balanced test adds: nothing, or `-tau * log p_i` after training.

        A class that the client lacks counts as half a sample there.
        """
        if is_global or self.calibration or not self.posthoc:
            return None
        seen = counts.clamp(min=0.5)
        return -prior_adjustment(seen / seen.sum(), self.posthoc)

    def for_own(self, counts: Tensor, is_global: bool) -> Tensor:
        """Return what the client's own tests add: no answer names a class that the client lacks."""
        weight = self.prior_weight(is_global)
        if weight:
            return prior_adjustment(counts / counts.sum().clamp(min=1), weight)
        return torch.zeros_like(counts).masked_fill(counts <= 0, BARRIER)


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
