"""Prototypes are class means of features; the centre loss draws features to those of their class."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.testing import assert_close

from fedmate.components.prototypes import Centres, centre_loss, local_prototypes, mix_prototypes
from fedmate.core import ClientData, Instances, Model, client_data, make_key, normal

CLASSES = 4


def model(dropout: float = 0.0) -> Model:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        layers = [nn.Linear(5, 3), nn.BatchNorm1d(3), nn.Dropout(dropout), nn.Tanh(), nn.Linear(3, CLASSES)]
        return Model(nn.Sequential(*layers).double(), classifier="4")


def client(labels: tuple[int, ...] = (0, 2, 2, 0, 2)) -> ClientData:
    return client_data(normal(make_key(3), (len(labels), 5), torch.float64), torch.tensor(labels))


def test_prototypes_are_means_of_features_in_evaluation_mode() -> None:
    network, data = model(dropout=0.5), client()
    params = network.init_params()
    z, _ = network.features(params, data.x)
    prototypes, counts = local_prototypes(network, params, data, CLASSES)
    assert counts.tolist() == [2, 0, 3, 0]
    assert_close(prototypes[0], (z[0] + z[3]) / 2)
    assert_close(prototypes[2], (z[1] + z[2] + z[4]) / 3)
    assert (prototypes[[1, 3]] == 0).all()


# -------------------- global prototypes


def mixture(counts: list[list[int]], valid: list[bool]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return what clients send and what is made of it, class 3 being known from before."""
    sent = normal(make_key(5), (len(counts), CLASSES, 3), torch.float64)
    previous, known = normal(make_key(6), (CLASSES, 3), torch.float64), torch.tensor([False, False, False, True])
    sent[~torch.tensor(valid)] = torch.nan
    return previous, sent, *mix_prototypes(previous, known, sent, torch.tensor(counts), torch.tensor(valid))


def test_prototypes_are_averaged_by_class_counts_over_valid_holders() -> None:
    """The last client is not valid: neither its NaN nor its absurd counts, positive or negative, reach the average."""
    absurd = 2**62
    counts = [[3, 0, 5, 0], [1, 2, 0, 0], [absurd, -absurd, absurd, absurd]]
    previous, sent, mixed, known = mixture(counts, [True, True, False])
    assert_close(mixed[0], (3 * sent[0, 0] + sent[1, 0]) / 4)
    assert_close(mixed[1:3], torch.stack([sent[1, 1], sent[0, 2]]))
    assert torch.equal(mixed[3], previous[3])
    assert known.tolist() == [True, True, True, True]


def test_a_class_nobody_holds_keeps_its_prototype_known_or_not() -> None:
    previous, _, mixed, known = mixture([[0, 0, 1, 0], [0, 4, 0, 0]], [True, True])
    assert torch.equal(mixed[[0, 3]], previous[[0, 3]])
    assert known.tolist() == [False, True, True, True]
    nobody = mixture([[1, 1, 1, 1], [2, 2, 2, 2]], [False, False])
    assert torch.equal(nobody[2], nobody[0])
    assert nobody[3].tolist() == [False, False, False, True]


# -------------------- centre loss


def features() -> Tensor:
    return normal(make_key(8), (5, 3), torch.float64)


def centres() -> Tensor:
    return normal(make_key(9), (CLASSES, 3), torch.float64)


def test_samples_without_a_centre_add_nothing_but_still_count() -> None:
    """Class 2 has no centre; two of five samples are of class 0, and the mean is over five."""
    data = client()
    centred = torch.tensor([True, True, False, True])
    expected = ((features()[data.y == 0] - centres()[0]) ** 2).sum() / (5 * 3)
    assert_close(centre_loss(Instances(features(), data.y, data.mask), Centres(centres(), centred, 1)), expected)
    assert centre_loss(Instances(features(), data.y, data.mask), Centres(centres(), torch.zeros_like(centred), 1)) == 0


def test_normalised_features_are_drawn_to_the_direction_of_their_centre_alone() -> None:
    """Twice one minus the cosine, whatever the lengths; a feature of zeros is finite."""
    data, everyone = client(), torch.ones(CLASSES, dtype=torch.bool)
    cosines = functional.cosine_similarity(features(), centres()[data.y])
    for scale in (1.0, 7.0):
        wanted = Centres(scale * centres(), everyone, 1, normalised=True)
        assert_close(centre_loss(Instances(features() / scale, data.y, data.mask), wanted), (2 - 2 * cosines).mean())
    assert torch.isfinite(centre_loss(Instances(torch.zeros_like(features()), data.y, data.mask), wanted))
