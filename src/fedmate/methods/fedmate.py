"""FedMate: clients keep a classifier of their own that listens to the federation's prototypes and classifier.

Yang, Li, Wang, Yu, Wu and He, "Choice Outweighs Effort: Facilitating Complementary Knowledge Fusion in Federated
Learning via Re-calibration and Merit-discrimination", ECAI 2025. docs/fedmate.md explains the method and the readings.

Deviations, where the paper contradicts itself, leaves something open, or cannot be computed as printed:
- the printed adversarial losses, minimised literally, are unbounded below: discriminators minimise the cross-entropy
  with global 1 and local 0, the classifier minimises -log D of its own outputs (what the paper's appendix describes);
- the sums of eq. 3 are means (`fusion_reduction`), or lambda_c would vanish beside the cross-entropy of all samples;
- the centre loss is the mean squared error of each sample's feature to its class's prototype, not of a sum of features;
- beta is a softmax over clients of the class's logit (`beta`), for logits may be negative; cosines are clipped at 0;
- eq. 7 lacks its sum: rows are averaged over the clients that hold the class; a class without a holder keeps its row;
- eq. 8 is one full-batch step over the classes that have a prototype (`integration_steps`, `reduction`);
- one classifier epoch, then the extractor's epochs, as the text says (`alternate` follows Algorithm 2 literally);
- round 0, without prototypes, trains the extractor with cross-entropy alone instead of not at all;
- clients that take part receive the broadcast, not all clients; aggregation sets are the participants;
- where clients are sampled, CFT skips uploads only: the last aggregated extractor goes down in every round;
- below q = 2 a state is left out wherever a multiple of q is passed, for floor(q) = 1 would leave out all;
- divergences compare distributions over clients, so there is one triple of shares per class, not one per client;
- both discriminators look only at classes that have a global prototype, D_pr only at those the client holds;
- Q leaves out the multiples of floor(q): x in the paper's x * q is the running integer;
- the previous global classifier that gives beta is the integrated and fine-tuned one, not a plain average.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import ClassVar, Literal, final

import torch
from torch import Tensor

from fedmate.components.classification_fusion import Fusion, Knowledge, train_classifier
from fedmate.components.classifier_integration import Reduction, Targets, fine_tune, integrate
from fedmate.components.discriminators import Kind, init_discriminator
from fedmate.components.feature_transmission import is_transmitted, parse_schedule, transmission_period
from fedmate.components.prototype_scrutiny import Beta, Similarity, scrutinise, size_view
from fedmate.components.prototypes import Centres, centred_loss, local_prototypes
from fedmate.core import (
    MODEL_PARTS,
    Adjustment,
    ClientData,
    Limits,
    LocalResult,
    Method,
    Model,
    Objective,
    Presets,
    Tree,
    Wire,
    fit,
    fold,
    frozen_batches,
    option,
    select,
    where,
)
from fedmate.core.method import preset_as_method
from fedmate.errors import UserError

NOT_NEGATIVE = Limits(at_least=0)


@final
@dataclass(frozen=True, kw_only=True)
class FedMate(Method):
    """Complementary knowledge fusion: scrutinised prototypes, integrated classifiers, discriminating training."""

    presets: ClassVar[Presets] = {
        "authors": {"method": {"classifier_learning_rate": 0.1}},
        # FedMate+ (docs/beyond.md): a personal model that serves any distribution of classes.
        "plus": {
            "method": {"classifier_start": "global", "classifier_learning_rate": 0.02},
            "objective": {"calibration": 1.0},
            "server": {"momentum": 0.5},
        },
    }

    citation: ClassVar[str] = "fedmate2025"

    classifier_epochs: int = option(1, "passes that train the classifier, the extractor frozen", NOT_NEGATIVE)
    classifier_learning_rate: float = option(0.1, "step size of those passes", NOT_NEGATIVE)
    centre_weight: float = option(0.8, "weight of the centre loss (lambda_e); 0 is off", NOT_NEGATIVE)
    fusion_weight: float = option(0.6, "weight of complementary classification fusion (lambda_c)", NOT_NEGATIVE)
    mps: bool = option(True, "multi-view prototype scrutiny; off: prototypes are averaged by class counts")
    cci: bool = option(True, "category-wise classifier integration; off: classifiers are averaged by size")
    ccf: bool = option(True, "complementary classification fusion; off: the classifier learns from its data alone")
    cft: str = option("cft", "rounds in which the extractor travels: all, cft, half, null or period:n")
    kappa: Literal["shrink", "grow", "constant"] = option("shrink", "adversarial weight: 1 - t/T, t/T or 1")
    beta: Beta = option("softmax", "the classifier's view of prototypes: softmax, probability or raw")
    similarity: Similarity = option("cosine", "closeness of prototypes: cosine (clipped at 0) or exp_cosine")
    reduction: Reduction = option("mean", "over the classes of eq. 8: mean or sum")
    fusion_reduction: Reduction = option("mean", "over the classes in eq. 3; samples are always averaged")
    classifier_start: Literal["own", "global"] = option("own", "the classifier local training starts from")
    alternate: bool = option(False, "an epoch of the classifier, one of the extractor, in turn (Algorithm 2)")
    discriminator: Kind = option("bce", "how D_cl is trained: bce, or wgan_gp as in the authors' code")
    discriminator_learning_rate: float = option(1e-3, "step size of both discriminators", NOT_NEGATIVE)
    integration_steps: int = option(1, "steps of prototype fine-tuning", NOT_NEGATIVE)
    integration_learning_rate: float = option(0.01, "their step size (eta)", NOT_NEGATIVE)
    mask_unknown: bool = option(False, "leave classes without a prototype out of the softmax of eq. 8")
    own_prototypes: bool = option(False, "classes without a global prototype are centred on the client's own")
    proto_augment: bool = option(False, "prototypes of cropped and flipped images, as in the authors' code")
    integration_on: Literal["global", "clients"] = option(
        "global", "whose prototypes eq. 8 fits: global, or all clients', weighted as MPS does"
    )
    normalised_centres: bool = option(False, "the centre loss compares directions, not lengths")
    fusion_until: float = option(
        1.0, "share of the rounds after which fusion is retired", Limits(at_least=0, at_most=1)
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        parse_schedule(self.cft)
        training = self.setup.training
        if self.alternate and (training.steps or training.epochs % 1):
            raise UserError(
                "`method.alternate` takes turns of whole epochs; set `training.epochs` to a whole number, and "
                "`training.steps` to 0."
            )

    def prepare(self, model: Model) -> Model:
        """Ask for the width of the features: a classifier that is not one linear layer is refused there."""
        self._period(model)
        return model

    def warnings(self, class_counts: Sequence[Tensor]) -> list[str]:
        """Warn if prototypes cost about as much as the extractor, so that CFT leaves most of its uploads out."""
        found, period = super().warnings(class_counts), self._period(self.setup.model)
        if self.cft not in ("cft", "half") or period >= 2:
            return found
        sent = sum(map(self._is_transmitted, range(1, self.setup.rounds + 1)))
        often = f"is sent in {sent} of {self.setup.rounds} rounds" if sent else "is never aggregated"
        return [
            *found,
            f"`method.cft` is `{self.cft}`, and an extractor costs only {float(period):.2g} times as much as the "
            f"prototypes: it {often}; `all` sends it in every round.",
        ]

    # ---- the server, Algorithm 1 ----

    def init_server(self, params: Tree, num_clients: int, key: Tensor) -> Tree:
        """The server holds the model and, once clients have sent them, prototypes."""
        classes, weight = self.setup.num_classes, params["classifier"]["weight"]
        no_weights = weight.new_zeros(num_clients, classes)
        return {
            **params,
            **self.server.init(params, ("extractor",)),
            "prototypes": weight.new_zeros(classes, weight.shape[1]),
            "known": torch.zeros(classes, dtype=torch.bool, device=weight.device),
            "round": torch.zeros((), dtype=torch.int64, device=weight.device),
            "diagnostics": {
                "size": no_weights,
                "closeness": no_weights,
                "verdict": no_weights,
                "weights": no_weights,
                "divergence": weight.new_zeros(3, classes),
                "mixing": weight.new_zeros(3, classes),
                "prototypes": weight.new_zeros(classes, weight.shape[1]),
                "known": torch.zeros(classes, dtype=torch.bool, device=weight.device),
            },
        }

    def wire(self, round_number: int) -> Wire:
        """Classifier and prototypes cross every round, the extractor in those of the schedule.

        Where clients are sampled, the schedule is for uploads: the last aggregated extractor goes down every round.
        """
        extractor = frozenset({"extractor", *self.setup.model.shared_buffers})
        down = frozenset({"classifier", "prototypes", "known", "round"})
        up = frozenset({"classifier", "prototypes", "class_counts"})
        arrives = round_number == 0 or self._is_transmitted(round_number)
        if self.setup.participation < 1:
            # Clients that missed a round would go on with an extractor older than the server's.
            arrives |= any(map(self._is_transmitted, range(1, round_number)))
        return Wire(
            down=down | (extractor if arrives else frozenset()),
            up=up | (extractor if self._is_transmitted(round_number + 1) else frozenset()),
        )

    def download(self, server: Tree, client_id: Tensor) -> Tree:
        """Send the model, the prototypes with the classes that have one, and the round, by which fusion ends."""
        return select(server, (*MODEL_PARTS, "prototypes", "known", "round"))

    def aggregate(self, server: Tree, uploads: Tree, client_ids: Tensor, valid: Tensor, key: Tensor) -> Tree:
        """Scrutinise the prototypes, integrate the classifiers, tune them to each other, average the extractors."""
        model = self.setup.model
        counts = uploads["class_counts"].masked_fill(~valid[:, None], 0)
        sent = uploads["prototypes"].masked_fill(counts[..., None] <= 0, 0)
        # beta asks the classifier of the previous round.
        logits = model.classify(server, sent.flatten(0, 1)).reshape(*sent.shape[:2], -1)
        scrutiny = scrutinise(sent, counts, logits, beta=self.beta, similarity=self.similarity)
        sizes, held = size_view(counts, sent.dtype), (counts > 0).any(0)
        weights = scrutiny.weights if self.mps else sizes
        prototypes = torch.where(held[:, None], (weights[..., None] * sent).sum(0), server["prototypes"])
        known, ones = server["known"] | held, torch.ones_like(weights[:1])

        mixed = self.server.update(server, {**uploads, "num_samples": counts.sum(1)}, valid, moving=("extractor",))
        if self.cci:
            tuned = fine_tune(
                model,
                integrate(server["classifier"], uploads["classifier"], sizes),
                self._targets(server, Targets(sent, weights, held), Targets(prototypes[None], ones, known)),
                steps=self.integration_steps,
                learning_rate=self.integration_learning_rate,
                reduction=self.reduction,
                mask_unknown=self.mask_unknown,
            )
            mixed["classifier"] = where(valid.any(), tuned, server["classifier"])
        return {
            **mixed,
            "prototypes": prototypes,
            "known": known,
            "round": server["round"] + 1,
            "diagnostics": {
                **_by_client(scrutiny._replace(weights=weights)._asdict(), server["diagnostics"], client_ids),
                "prototypes": prototypes,
                "known": known,
            },
        }

    def _targets(self, server: Tree, sent: Targets, combined: Targets) -> Targets:
        """Return what the classifier is tuned to; an unsent class keeps its earlier voice."""
        if self.integration_on == "global":
            return combined
        silent = (~sent.known & server["known"]).to(sent.weights.dtype)
        return Targets(
            torch.cat([sent.prototypes, server["prototypes"][None]]),
            torch.cat([sent.weights, silent[None]]),
            combined.known,
        )

    # ---- the client, Algorithm 2 ----

    def init_client(self, params: Tree, key: Tensor) -> Tree:
        """A client keeps its model and its two discriminators."""
        dtype, classes = params["classifier"]["weight"].dtype, self.setup.num_classes
        return {
            **params,
            "discriminators": {
                name: init_discriminator(classes, fold(key, name), dtype) for name in ("prototype", "classifier")
            },
        }

    def personal_params(self, client: Tree, download: Tree) -> Tree:
        """A client holds the last extractor it received or trained, and its own classifier."""
        model = select(client, MODEL_PARTS)
        return {**model, **select(download, ("extractor", "buffers"))}

    def local_update(self, client: Tree, download: Tree, data: ClientData, key: Tensor) -> LocalResult:
        """Train the classifier against both discriminators, then the extractor towards the prototypes."""
        model, training = self.setup.model, self.setup.training
        params, discriminators = self.personal_params(client, download), client["discriminators"]
        if self.classifier_start == "global":
            params = {**params, "classifier": download["classifier"]}
        own, counts = self._prototypes(params, data, fold(key, "own"))
        knowledge = Knowledge(download["prototypes"], download["known"], own, counts > 0, download["classifier"])
        adjustment = self.adjustment(data)
        fusion = self._fusion(download["round"], own.dtype, adjustment)
        objective = self._extractor_objective(knowledge, adjustment)

        # With `alternate` they are whole.
        turns, own_epochs = (int(training.epochs), 1) if self.alternate else (1, self.classifier_epochs)
        of_turn = replace(training, epochs=1) if self.alternate else training
        losses = own.new_zeros(3)
        for turn in range(turns):
            turn_key = fold(key, turn) if turn else key
            own_key = fold(turn_key, "classifier")
            steps = frozen_batches(model, params, data, training.batch_size, own_epochs, own_key)
            fused = train_classifier(model, params, discriminators, knowledge, fusion, steps)
            params, discriminators = {**params, "classifier": fused.classifier}, fused.discriminators
            steps = of_turn.batches(data, fold(turn_key, "extractor"))
            params = fit(objective, params, steps, self.setup.optimiser(), ("extractor",))
            losses = fused.losses

        prototypes, counts = self._prototypes(params, data, fold(key, "prototypes"))
        upload = {**params, "prototypes": prototypes, "class_counts": counts}
        kept = {**params, "discriminators": discriminators}
        return LocalResult(kept, upload, params, diagnostics={"losses": losses, "prototypes": prototypes})

    def _prototypes(self, params: Tree, data: ClientData, key: Tensor) -> tuple[Tensor, Tensor]:
        """Return the client's prototypes and class counts."""
        model, classes = self.setup.model, self.setup.num_classes
        return local_prototypes(model, params, data, classes, key if self.proto_augment else None)

    def _fusion(self, round_number: Tensor, dtype: torch.dtype, adjustment: Adjustment | None) -> Fusion:
        """Return how the classifier is trained in this round."""
        done = round_number.to(dtype) / self.setup.rounds
        weight: float | Tensor = self.fusion_weight
        if self.fusion_until < 1:
            weight = (done < self.fusion_until).to(dtype) * weight
        optimiser = self.setup.optimiser
        return Fusion(
            weight=weight if self.ccf else None,
            kappa={"shrink": 1 - done, "grow": done, "constant": torch.ones_like(done)}[self.kappa],
            kinds={"prototype": "bce", "classifier": self.discriminator},
            reduction=self.fusion_reduction,
            optimiser=optimiser(self.classifier_learning_rate),
            discriminator_optimiser=optimiser(self.discriminator_learning_rate),
            adjustment=adjustment,
        )

    def _extractor_objective(self, knowledge: Knowledge, adjustment: Adjustment | None) -> Objective:
        """Return cross-entropy with the centre loss; in round 0 there is no prototype to be drawn to."""
        centres, centred = knowledge.prototypes, knowledge.known
        if self.own_prototypes:
            centres = torch.where(centred[:, None], centres, knowledge.own)
            centred = centred | knowledge.present
        wanted = Centres(centres, centred, self.centre_weight, self.normalised_centres)
        return centred_loss(self.setup.model, wanted, adjustment)

    def _period(self, model: Model) -> Fraction:
        return transmission_period(model.extractor_size, self.setup.num_classes * model.width)

    def _is_transmitted(self, state: int) -> bool:
        return is_transmitted(state, self.cft, self._period(self.setup.model))


def _by_client(news: Tree, everyone: Tree, client_ids: Tensor) -> Tree:
    """Put the participants' rows where their ids say; the others get zeros."""
    per_client = ("size", "closeness", "verdict", "weights")
    return {
        name: torch.zeros_like(everyone[name]).index_copy(0, client_ids, value) if name in per_client else value
        for name, value in news.items()
    }


FedMatePlus = preset_as_method(
    FedMate,
    "plus",
    "FedMate with prior calibration and server momentum: a personal model that serves any distribution of classes.",
)
