"""SCAFFOLD: control variates take a client's own direction out of its steps.

Karimireddy, Kale, Mohri, Reddi, Stich and Suresh, "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning",
ICML 2020. Option II of its algorithm: a client's variate c_i is the mean gradient of its last round, read off the way
it went, and c is their mean.

Deviations:
- averages are weighted by size (n_i), as in the shared protocol; the paper's are not. The variates have the weights of
  the models: the corrections c - c_i then average to zero where models are averaged, and leave the common direction
  alone. So the server remembers sizes, and c is sum n_i c_i over N times the mean size of those it has met: the
  paper's mean if all are of one size, and the weighted one once it met all clients. (To move c by the share |S|/N of
  a weighted mean would let it drift away from the c_i for good, if clients differ in size and not all take part.)
- `training.momentum` is not used: way / (K eta) is a mean gradient for plain steps only. With a `momentum` of its own
  the way is divided by how far K steps along one gradient would lead instead;
- the steps are always those of SGD, whatever `training.optimiser` is: a variate is a mean gradient;
- weight decay is part of a step's gradient, so the variates hold it;
- K is the number of batches of this client, padding apart; a round without a step (or with `learning_rate` 0) tells
  nothing, and c_i stays;
- clients that diverged count neither in |S| nor keep what they found;
- buffers follow the model's declaration and are averaged as they are, whatever `server_learning_rate` is.

There is no preset: the authors tuned the learning rate by experiment, made batches of a fifth of a client's samples,
and published no code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from fedmate.core import (
    MODEL_PARTS,
    SGD,
    TRAINED,
    Batch,
    ClientData,
    Limits,
    LocalResult,
    Method,
    Objective,
    Tree,
    Wire,
    fit,
    leaves,
    num_samples,
    option,
    select,
    supervised_loss,
    tree_map,
    where,
)


@final
@dataclass(frozen=True, kw_only=True)
class Scaffold(Method):
    """Federated averaging with control variates against client drift."""

    is_global: ClassVar[bool] = True

    citation: ClassVar[str] = "scaffold2020"

    momentum: float = option(0.0, "momentum of SGD; `training.momentum` is not used", Limits(at_least=0, below=1))
    server_learning_rate: float = option(1.0, "step size of the server (eta_g)", Limits(at_least=0))

    def warnings(self, class_counts: Sequence[Tensor]) -> list[str]:
        """Warn of another optimiser, which is not used."""
        found, chosen = super().warnings(class_counts), self.setup.training.optimiser
        if chosen == "sgd":
            return found
        return [*found, f"`training.optimiser` is `{chosen}`, but SCAFFOLD always takes steps of `sgd`."]

    def init_server(self, params: Tree, num_clients: int, key: Tensor) -> Tree:
        """The server holds the common model, c = 0, and the sizes of the clients it has met."""
        sizes = next(leaves(params["classifier"])).new_zeros(num_clients, dtype=torch.int64)
        return {
            **params,
            **self.server.init(params),
            "control": tree_map(torch.zeros_like, select(params, TRAINED)),
            "sizes": sizes,
        }

    def init_client(self, params: Tree, key: Tensor) -> Tree:
        """A client keeps c_i, at first 0, and its buffers in case they are private."""
        return {"control": tree_map(torch.zeros_like, select(params, TRAINED)), **select(params, ("buffers",))}

    def wire(self, round_number: int) -> Wire:
        """Model and variate go down; up goes how both changed, and the client's size."""
        buffers = self.setup.model.shared_buffers
        return Wire(
            down=frozenset({*TRAINED, "control", *buffers}),
            up=frozenset({"change", "control_change", "num_samples", *buffers}),
        )

    def download(self, server: Tree, client_id: Tensor) -> Tree:
        """Send the model and c."""
        return select(server, (*MODEL_PARTS, "control"))

    def local_update(self, client: Tree, download: Tree, data: ClientData, key: Tensor) -> LocalResult:
        """Train the received model with corrected gradients, then estimate the client's own anew."""
        model, training = self.setup.model, self.setup.training
        start, own, common = self.personal_params(client, download), client["control"], download["control"]
        params = fit(
            _corrected_loss(supervised_loss(model, self.adjustment(data)), tree_map(torch.sub, common, own)),
            start,
            training.batches(data, key),
            SGD(self._rate, self.momentum, training.weight_decay, training.gradient_clip),
            TRAINED,
        )
        change = tree_map(torch.sub, select(params, TRAINED), select(start, TRAINED))
        control = _next_control(own, common, change, self._reach(data))
        buffers = select(params, ("buffers",))
        upload = {
            "change": change,
            "control_change": tree_map(torch.sub, control, own),
            "num_samples": num_samples(data),
            **buffers,
        }
        return LocalResult({"control": control, **buffers}, upload, params, diagnostics={})

    def aggregate(self, server: Tree, uploads: Tree, client_ids: Tensor, valid: Tensor, key: Tensor) -> Tree:
        """Move the model by the mean change, c by what the participants' variates changed, average buffers; by n_i."""
        weights = uploads["num_samples"].masked_fill(~valid, 0)
        mean = self.server.aggregator(select(uploads, ("change", "control_change", "buffers")), weights)
        control_change, buffers = mean["control_change"], select(mean, ("buffers",))
        model = tree_map(lambda w, step: w + self.server_learning_rate * step, select(server, TRAINED), mean["change"])
        met = torch.where(valid, uploads["num_samples"], server["sizes"].index_select(0, client_ids))
        sizes = server["sizes"].index_copy(0, client_ids, met)
        before, after = _all_samples(server["sizes"]), _all_samples(sizes)

        def move(c: Tensor, step: Tensor) -> Tensor:
            moved: Tensor = c * (before / after).to(c.dtype) + step * (weights.sum() / after).to(c.dtype)
            return moved

        return {
            **self.server.move(server, {**model, **buffers}, weights.sum() > 0),
            "control": tree_map(move, server["control"], control_change),
            "sizes": sizes,
        }

    def personal_params(self, client: Tree, download: Tree) -> Tree:
        """A client holds the received model."""
        return select({**client, **download}, MODEL_PARTS)

    @property
    def _rate(self) -> float | Tensor:
        return self.setup.training.learning_rate * self.setup.rate_factor

    def _reach(self, data: ClientData) -> Tensor:
        """Return how far a round goes along a gradient of 1: K eta, and further with momentum m."""
        steps = self.setup.training.num_steps(data).to(torch.float64)
        keep = self.momentum
        # A velocity that starts at 0 has grown to (1 - m^k) / (1 - m) in step k; this is the sum of these.
        return self._rate * (steps / (1 - keep) - keep * (1 - keep**steps) / (1 - keep) ** 2)


def _all_samples(sizes: Tensor) -> Tensor:
    """Estimate how many samples there are from the clients met so far, the others as large as these; at least 1."""
    met = (sizes > 0).sum().clamp(min=1)
    return (sizes.sum().to(torch.float64) * sizes.shape[0] / met).clamp(min=1)


def _corrected_loss(plain: Objective, correction: Tree) -> Objective:
    """Return an objective plus <w, c - c_i>, whose gradient has c - c_i added; nothing reads the loss itself."""

    def objective(params: Tree, batch: Batch) -> tuple[Tensor, Tree]:
        loss, buffers = plain(params, batch)
        products = tree_map(lambda w, c: (w * c).sum(), select(params, TRAINED), correction)
        return loss + torch.stack(list(leaves(products))).sum(), buffers

    return objective


def _next_control(own: Tree, common: Tree, change: Tree, reach: Tensor) -> Tree:
    """Return c_i - c + (w^t - w_i) / reach, the mean gradient without its correction; c_i if nothing moved."""
    estimate = tree_map(lambda c_i, c, step: c_i - c - step / reach.to(step.dtype), own, common, change)
    # Without a step it is 0 / 0, and is not chosen.
    return where(reach > 0, estimate, own)
