"""What fedmate computes, case by case, through surfaces that stay: the command, `fedmate.run`, files of a run's record.

    python tests/pinned/cases.py --out FOLDER CASE ...

A case returns figures (anything of JSON) and tensors by group. Tensors count as a multiset, for names may change.
This file runs under two commits, so it imports none of fedmate's inner modules.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

METHODS = (
    *("ditto", "fedavg", "fedbabu", "fedfa", "fedmate", "fedmate_plus", "fedpac", "fedper", "fedproto", "fedprox"),
    *("fedrep", "fedrod", "lg_fedavg", "local", "moon", "scaffold"),
)
BACKENDS = ("sequential", "vectorised")
OPTIONS = {
    "fedmate": (
        *(
            "cft=all",
            "cft=half",
            "cft=period:2",
            "kappa=grow",
            "kappa=constant",
            "beta=raw",
            "reduction=sum",
            "discriminator=wgan_gp",
        ),
        *(
            "similarity=exp_cosine",
            "beta=probability",
            "classifier_start=global",
            "alternate=true",
            "integration_steps=3",
        ),
        *("integration_on=clients", "normalised_centres=true", "fusion_until=0.5", "mask_unknown=true"),
        *("own_prototypes=true", "proto_augment=true", "mps=false", "cci=false", "ccf=false"),
    ),
    "fedavg": ("server.momentum=0.5", "objective.own_prior=true"),
    "fedbabu": ("tuning_learning_rate=0.05",),
    "fedfa": ("calibration_learning_rate=0", "divide_by=all"),
    "fedpac": ("server.momentum=0.5",),
    "fedper": ("personal_layers=2",),
    "fedproto": ("weighting=equal",),
    "fedrod": ("balanced=false",),
    "moon": ("projection=official",),
    "scaffold": ("server_learning_rate=0.5", "momentum=0.5"),
}
"""Options of methods, one at a time; two more are set together with `calibration`."""

PAPER = (
    *("generalization", "ablation", "components", "adaptability", "classwise", "prototypes", "redundancy"),
    *("distributions", "transmission", "convergence", "cost", "lambda_e", "lambda_c", "time_to_accuracy"),
    *("harmony", "beyond"),
)
"""Experiments whose tables are made again from the stored records."""

FEW = ("dtype=float64", "rounds=3", "eval_every=2", "checkpoint_every=1", "device=cpu", "training.epochs=2")
RAGGED = (*FEW, "training.batch_size=10", "participation=0.7", "model.name=digits_cnn")
DIGITS = (*FEW, "partition.name=dirichlet", "partition.clients=5", "participation=0.6")
IMAGES = (*DIGITS, "partition.examples=20", "rounds=1", "training.batch_size=10", "dataset.crop=2")


@dataclass
class Result:
    """What came of a case, or why it cannot be tried here."""

    figures: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, list[NDArray[Any]]] = field(default_factory=dict)
    skipped: str = ""


@dataclass(frozen=True)
class Case:
    """A function of a new folder and the arguments it is called with; `in_ci` are those that CI repeats."""

    function: Callable[..., Result]
    arguments: tuple[Any, ...]
    in_ci: bool = False


class RefusedError(Exception):
    """The command ended with an error that it explained."""


def command(*arguments: object) -> str:
    """Run `fedmate ...` in this process and return what it printed."""
    from fedmate.cli import main

    printed, before = io.StringIO(), sys.argv
    sys.argv = ["fedmate", *map(str, arguments)]
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            main()
    except SystemExit as end:
        if end.code:
            raise RefusedError(f"fedmate {' '.join(sys.argv[1:])}: {printed.getvalue()[-500:]}") from None
    finally:
        sys.argv = before
    return printed.getvalue()


MOVED = {"objective.": "method.", "server.momentum": "method.server_momentum"}
"""By option of today, or how it begins: the same in the old commit."""


def setting(values: Sequence[str]) -> list[str]:
    """Return options of the command, as this tree calls them."""
    if find_spec("fedmate.core.objective") is None:
        for new, old in MOVED.items():
            values = [value.replace(new, old) if value.startswith(new) else value for value in values]
    return [word for value in values for word in ("--set", value)]


def tensors(path: Path) -> list[NDArray[Any]]:
    """Return the tensors of a file, or of all files in a folder."""
    from safetensors.numpy import load_file

    files = [path] if path.is_file() else sorted(path.rglob("*.safetensors"))
    return [np.asarray(array) for file in files for array in load_file(file).values()]


def number(text: str) -> float | int | str:
    """Return what a cell of a table holds."""
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text


def columns(text: str) -> dict[str, list[Any]]:
    """Return a table by its columns, whatever their order."""
    rows = list(csv.DictReader(io.StringIO(text)))
    return {name: [number(row[name]) for row in rows] for name in rows[0]} if rows else {}


def lasting(values: dict[str, Any]) -> dict[str, Any]:
    """Leave out times, and the name of a method, which may be a preset of another."""
    return {key: value for key, value in values.items() if key not in ("seconds", "method")}


def record(folder: Path) -> Result:
    """Return what a run recorded."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    figures: dict[str, Any] = {"metrics.jsonl": [lasting(json.loads(line)) for line in lines]}
    figures["summary.json"] = lasting(json.loads((folder / "summary.json").read_text()))
    for name in ("rounds.csv", "clients.csv"):
        figures[name] = columns((folder / name).read_text())
    return Result(figures, {name: tensors(folder / name) for name in ("checkpoint", "diagnostics")})


def digits() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return images of 8 x 8 bytes and their labels."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    return (images.reshape(-1, 8, 8) * 15).astype(np.uint8), labels.astype(np.int64)


def ragged(folder: Path) -> Path:
    """Write digits of six classes: six clients of 8 to 52 samples and three classes each; return the file."""
    x, y = digits()
    free, chosen, owners = np.flatnonzero(y < 6), list[int](), list[int]()
    test, free = free[:120], free[120:]
    for client, samples in enumerate((8, 19, 30, 41, 52, 25)):
        held = [client, (client + 1) % 6, (client + 3) % 6]
        mine = [int(i) for i in free if y[i] in held and int(i) not in chosen][:samples]
        chosen += mine
        owners += [client] * samples
    train = {"train_x": x[chosen], "train_y": y[chosen], "train_client": np.array(owners)}
    np.savez(folder / "ragged.npz", **train, test_x=x[test], test_y=y[test])  # type: ignore[arg-type]
    left = [int(i) for i in free if int(i) not in chosen][:60]
    np.savez(
        folder / "newcomer.npz", train_x=x[left[:40]], train_y=y[left[:40]], test_x=x[left[40:]], test_y=y[left[40:]]
    )
    np.save(folder / "unseen.npy", x[left[:10]])
    return folder / "ragged.npz"


def images(folder: Path, train: int = 600, test: int = 100) -> list[str]:
    """Write random images as CIFAR-10's prepared file; return options of the command."""
    draw = np.random.RandomState(0)
    parts: dict[str, NDArray[Any]] = {}
    for part, samples in (("train", train), ("test", test)):
        parts[f"{part}_x"] = draw.randint(0, 256, (samples, 32, 32, 3)).astype(np.uint8)
        parts[f"{part}_y"] = np.arange(samples) % 10
    np.savez(folder / "cifar10.npz", **parts)  # type: ignore[arg-type]
    return ["--dataset", "cifar10", "--data-dir", str(folder)]


def ragged_run(folder: Path, method: str, *values: str) -> Result:
    """Run a method on clients of unequal size that lack classes, some of them in each round."""
    data = ragged(folder)
    chosen = setting([f"dataset.path={data}", "partition.name=natural", *RAGGED, *values])
    command("run", "--method", method, "--dataset", "npz", *chosen, "--out", folder / "run")
    return record(folder / "run")


def with_models(folder: Path, method: str, *values: str) -> Result:
    """Take models out of such a run, predict with them, and let a new client adapt."""
    result = ragged_run(folder, method, *values)
    calibrated = method == "fedmate_plus" or "objective.calibration=1" in values
    models = {"client": ["--client", "1"], "global": ["--global"], "adapted": []}
    newcomer = folder / "newcomer.npz"
    for name, options in models.items():
        model, answers = folder / f"{name}.safetensors", folder / f"{name}.csv"
        start = ["export", folder / "run", *options] if options else ["adapt", folder / "run", "--data", newcomer]
        try:
            command(*start, "--to", model)
        except RefusedError:
            result.figures[name] = "refused"
            continue
        result.tensors[name] = tensors(model)
        command("predict", model, folder / "unseen.npy", "--to", answers)
        result.figures[name] = columns(answers.read_text())
        for prior in ("uniform", "estimated") if calibrated else ():
            answers.unlink()
            command("predict", model, folder / "unseen.npy", "--prior", prior, "--to", answers)
            result.figures[f"{name}, {prior}"] = columns(answers.read_text())
    return result


def adapted(folder: Path, method: str) -> Result:
    """Let a new client adapt, through Python, and keep its accuracy."""
    import fedmate

    ragged_run(folder, method)
    found = fedmate.adapt(folder / "run", data=folder / "newcomer.npz")
    return Result({"accuracy": {view: dict(tests) for view, tests in found.accuracy.items()}})


def pt2(folder: Path, method: str) -> Result:
    """Export a model that PyTorch alone can run."""
    import torch

    ragged_run(folder, method)
    command("export", folder / "run", "--client", 2, "--to", folder / "model.pt2")
    program = torch.export.load(folder / "model.pt2").module()
    raw = torch.from_numpy(np.load(folder / "unseen.npy"))[:, None]
    with torch.no_grad():
        answers = program(raw)
    return Result(
        {}, {"answers": [answer.numpy() for answer in (answers if isinstance(answers, tuple) else [answers])]}
    )


def digits_run(folder: Path, method: str, *values: str) -> Result:
    """Run a method on digits."""
    chosen = setting([*DIGITS, *values])
    command("run", "--method", method, "--dataset", "digits", *chosen, "--out", folder / "run")
    return record(folder / "run")


def images_run(folder: Path, method: str, *values: str) -> Result:
    """Run a method on small CIFAR images, cropped and mirrored, with the data set's own settings."""
    command("run", "--method", method, *images(folder), *setting([*IMAGES, *values]), "--out", folder / "run")
    return record(folder / "run")


def batchnorm(folder: Path, method: str, *values: str) -> Result:
    """Run a method on a network of one's own with BatchNorm and samples that lie with their clients."""
    import torch
    from torch import nn

    import fedmate

    torch.manual_seed(0)
    layers: dict[str, nn.Module] = {"first": nn.Conv2d(1, 4, 3), "norm": nn.BatchNorm2d(4), "bend": nn.ReLU()}
    layers |= {"flat": nn.Flatten(), "second": nn.Linear(144, 12), "again": nn.BatchNorm1d(12), "kink": nn.ReLU()}
    network = nn.Sequential()
    for name, layer in {**layers, "head": nn.Linear(12, 6)}.items():
        network.add_module(name, layer)
    with np.load(ragged(folder)) as file:
        held = dict(file)
    x, test_x = (held[part][:, None] / 255.0 for part in ("train_x", "test_x"))
    mine = [held["train_client"] == client for client in range(1, 6)]
    sites = fedmate.Sites([(x[own], held["train_y"][own]) for own in mine], test=(test_x, held["test_y"]))
    options = dict(value.split("=") for value in (*RAGGED[:-1], *values))
    chosen = {key: number(value) for key, value in options.items()}
    fedmate.run(method=method, data=sites, model=network, classifier="head", set=chosen, out=folder / "run")
    return record(folder / "run")


def pooled(folder: Path, method: str) -> Result:
    """Run a method on samples pooled in Python, dealt out by a partition."""
    import fedmate

    x, y = digits()
    pool = fedmate.Pool(x[:600, None] / 255.0, y[:600], x[600:800, None] / 255.0, y[600:800])
    chosen = {"dtype": "float64", "rounds": 2, "partition.clients": 4, "training.epochs": 1, "device": "cpu"}
    fedmate.run(method=method, data=pool, set=chosen, out=folder / "run")
    return record(folder / "run")


def resumed(folder: Path, method: str, ending: int, rounds: int = 12) -> Result:
    """Stop a run after its first checkpoint, resume it, and see that it equals one that was never stopped."""
    settings = setting([*DIGITS[:1], *DIGITS[2:], f"rounds={rounds}"])
    start = ["run", "--method", method, "--dataset", "digits", *settings, "--out"]
    with subprocess.Popen(
        [sys.executable, __file__, "--command", *start, str(folder / "stopped")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        # One file is the start, the second the server after a round.
        while len(list((folder / "stopped" / "checkpoint").glob("*.safetensors"))) < 2 and process.poll() is None:
            time.sleep(0.005)
        process.send_signal(ending)
    if (folder / "stopped" / "summary.json").exists():
        raise RuntimeError("the run ended before it could be stopped; give it more rounds")
    command("run", "--resume", folder / "stopped")
    command(*start, folder / "whole")
    result, whole = record(folder / "stopped"), record(folder / "whole")
    same = json.dumps(result.figures) == json.dumps(whole.figures)
    for mine, other in zip(result.tensors["checkpoint"], whole.tensors["checkpoint"], strict=True):
        same = same and np.array_equal(mine, other)
    if not same:
        raise RuntimeError("a resumed run differs from one that was never stopped")
    return result


def simulated(folder: Path, method: str) -> Result:
    """Run a method on Flower's simulation."""
    if not (find_spec("flwr") and find_spec("ray")):
        return Result(skipped="Flower is not installed (extra `flower`)")
    return digits_run(folder, method, "backend=flower", "rounds=2", "partition.clients=3", "training.epochs=1")


def captured(folder: Path, method: str, augment: str) -> Result:
    """Run a method on a GPU, where rounds that come back are replayed."""
    import torch

    if not torch.cuda.is_available():
        return Result(skipped="there is no GPU")
    values = ["device=cuda", "backend=vectorised", "rounds=6", "eval_every=3", "partition.clients=8"]
    values += ["partition.examples=100", f"dataset.crop={4 if augment else 0}", "training.epochs=2"]
    options = [*images(folder, 2000, 500), *setting(values), "--out", folder / "run"]
    command("run", "--method", method, *options)
    return record(folder / "run")


def seconds(folder: Path, method: str) -> Result:
    """Return the time of a round in the paper's setting: 20 clients x 600 images; `--gpu-timing` asks for it."""
    values = ["device=cuda", "backend=vectorised", "dataset.crop=4", "dataset.flip=true", "partition.examples=600"]
    values += ["partition.clients=20", "rounds=240", "eval_every=80", "checkpoint_every=240", "training.epochs=5"]
    command("run", "--method", method, *images(folder, 50_000, 1000), *setting(values), "--out", folder / "run")
    rows = [json.loads(line)["seconds"] for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    # The first two evaluated rounds are run and captured, the third is replayed.
    return Result({"milliseconds": 1e3 * (rows[2] - rows[1]) / 80})


def tables(folder: Path, name: str) -> Result:
    """Make an experiment's tables from the stored records, in each way they can be asked for; return their figures."""
    import fedmate

    tree = Path(fedmate.__file__).parents[2]
    if (tree / "results" / "cells").is_dir():
        (folder / "cells").symlink_to(tree / "results" / "cells")
        start, tuned = ["reproduce", name], ["--settings", "tuned"]
        wanted = ["column", "row", "method", "paper"]
    elif (tree / "paper" / "records").is_dir():
        (folder / "records").symlink_to(tree / "paper" / "records")
        start, tuned = ["compare", str(tree / "paper" / f"{name}.toml")], ["--tuned"]
        wanted = ["setting", "method", "algorithm", "published"]
    else:
        return Result(skipped=f"{tree} holds no records")
    wanted += ["view", "test", "mean", "std", "seeds", "difference"]
    figures: dict[str, Any] = {}
    for way, options in {"paper": ["--seeds", "3"], "tuned": tuned, "quick": ["--quick"]}.items():
        try:
            command(*start, *options, "--show", "--out", folder)
        except RefusedError:
            figures[way] = "refused"
            continue
        (file,) = folder.rglob("figures.csv")
        rows = columns(file.read_text())
        file.unlink()
        figures[way] = sorted(zip(*(map(str, rows[key]) for key in wanted), strict=True))
    return Result(figures)


SAMPLED = "sampled clients receive the last aggregated extractor in every round; they trained an older one"
INTENDED = {
    "option/fedmate/cft=half": SAMPLED,
    "option/fedmate/cft=period:2": SAMPLED,
    "tables/harmony": "the study has four post-hoc rows more",
}
"""Cases whose results were changed on purpose since the pinned commit, and why."""
MASKED = "on its own test no model answers with a class that the client lacks; before, only calibrated models did so"


def is_calibrated(name: str) -> bool:
    """Tell whether models of a case are calibrated, so that figures on clients' own tests have to be the same."""
    return name.startswith("calibration/") or "fedmate_plus" in name


def all_cases() -> dict[str, Case]:
    """Return every case by name."""
    found: dict[str, Case] = {}
    for method in METHODS:
        found[f"method/{method}/sequential"] = Case(ragged_run, (method, "backend=sequential"), in_ci=True)
        found[f"method/{method}/vectorised"] = Case(with_models, (method, "backend=vectorised"), in_ci=True)
        found[f"holdout/{method}"] = Case(digits_run, (method, "holdout_clients=0.2", "backend=vectorised"))
        for backend in BACKENDS:
            found[f"batchnorm/{method}/{backend}"] = Case(
                batchnorm, (method, f"backend={backend}"), method in ("fedavg", "fedmate", "scaffold")
            )
        if method not in ("fedfa", "fedmate_plus", "fedproto"):
            calibrated = ("objective.calibration=1", "objective.absent_share=0.1", "backend=vectorised")
            found[f"calibration/{method}"] = Case(with_models, (method, *calibrated), method == "fedpac")
        found[f"preset/{method}/tuned"] = Case(images_run, (method, "method.preset=tuned"))
    for method, options in OPTIONS.items():
        for option in options:
            extra = ("dataset.crop=1",) if option == "proto_augment=true" else ()
            found[f"option/{method}/{option}"] = Case(
                ragged_run, (method, option if "." in option.partition("=")[0] else f"method.{option}", *extra)
            )
    for partition in ("iid", "dirichlet", "pathological", "share", "redundant_clients=0.5"):
        value = f"partition.{partition}" if "=" in partition else f"partition.name={partition}"
        found[f"partition/{partition}"] = Case(digits_run, ("fedmate", value, "rounds=2"))
    for policy in ("private", "dropped"):
        found[f"buffers/{policy}"] = Case(batchnorm, ("fedavg", f"model.buffers={policy}", "holdout_clients=0.2"))
    for model in ("cifar_cnn", "cifar100_cnn", "emnist_cnn", "mlp", "resnet18"):
        norm = ("model.norm=batch", "partition.clients=2", "participation=1") if model == "resnet18" else ()
        found[f"model/{model}"] = Case(images_run, ("fedavg", f"model.name={model}", "training.epochs=1", *norm))
    for method in ("fedavg", "fedmate"):
        found[f"validation/{method}"] = Case(images_run, (method, "evaluate_on=validation", "validation_per_class=9"))
        found[f"chunk/{method}"] = Case(ragged_run, (method, "chunk_size=2", "backend=vectorised"))
        found[f"adapt/{method}"] = Case(adapted, (method,), in_ci=True)
        found[f"pt2/{method}"] = Case(pt2, (method,))
        found[f"pool/{method}"] = Case(pooled, (method,))
        found[f"flower/{method}"] = Case(simulated, (method,))
    # The faster a round, the more of them, or the run ends before it is stopped.
    for method, ending, rounds in (
        ("fedavg", signal.SIGINT, 60),
        ("fedmate", signal.SIGKILL, 12),
        ("scaffold", signal.SIGKILL, 12),
    ):
        found[f"resume/{method}"] = Case(resumed, (method, ending, rounds), method == "fedmate")
    for method in ("fedavg", "fedmate", "scaffold"):
        for augment in ("", "augmented"):
            found[f"gpu/{method}{'/' * bool(augment)}{augment}"] = Case(captured, (method, augment))
    return found | {f"tables/{name}": Case(tables, (name,)) for name in PAPER}


CASES = all_cases()


@contextlib.contextmanager
def quiet_folder() -> Iterator[Path]:
    """Work in a new folder."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="pinned-") as name:
        os.chdir(name)
        try:
            yield Path(name)
        finally:
            os.chdir(before)


def run_case(name: str, out: Path) -> None:
    """Run a case and write what came of it."""
    start = time.perf_counter()
    case = CASES.get(name) or Case(seconds, (name.removeprefix("timing/"),))
    error = ""
    with quiet_folder() as folder:
        try:
            result = case.function(folder, *case.arguments)
        except Exception:
            result, error = Result(), traceback.format_exc()
    arrays = {f"{group}/{i}": array for group, held in result.tensors.items() for i, array in enumerate(held)}
    place = out / name.replace("/", "~")
    np.savez(f"{place}.npz", **arrays)  # type: ignore[arg-type]
    taken = time.perf_counter() - start
    content = {"figures": result.figures, "skipped": result.skipped, "error": error, "seconds": taken}
    Path(f"{place}.json").write_text(json.dumps(content))


def main() -> None:
    """Run the cases that are named, one after the other."""
    if sys.argv[1:2] == ["--command"]:
        from fedmate.cli import main as run_command

        del sys.argv[1]
        return run_command()
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("cases", nargs="+")
    asked = parser.parse_args()
    for name in asked.cases:
        run_case(name, asked.out.absolute())
    return None


if __name__ == "__main__":
    main()
