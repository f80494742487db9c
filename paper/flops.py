"""Counts the floating-point operations of clients' local updates, which depend on shapes alone."""

from __future__ import annotations

import json

from fedmate import storage
from fedmate.core.shapes import count_flops, trace_update
from fedmate.experiment.build import Built, build
from fedmate.experiment.inputs import UserInputs
from fedmate.experiment.run import initial_server, sample_participants
from fedmate.studies.records import Records, name_of
from fedmate.studies.statistics import Results


def count_missing(results: Results, records: Records) -> None:
    """Count the operations of the runs of a study that lack them, and write them into their records."""
    experiments = {run.name: run.experiment for run in results.runs if run.name in results.found}
    for path in sorted(records.path.parent.glob("*.jsonl")):
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        missing = [one for one in lines if "flops_per_round" not in one and name_of(one["config"]) in experiments]
        for one in missing:
            experiment = experiments[name_of(one["config"])].with_general(device="cpu", backend="sequential")
            one["flops_per_round"] = flops_per_round(build(experiment, UserInputs()))
        if missing:
            storage.replace(path, "".join(f"{json.dumps(one)}\n" for one in lines).encode())


def flops_per_round(built: Built) -> int:
    """Return the operations of all participants' local updates in a round; on average, where some do not take part."""
    general, clients, server = built.experiment.general, built.federation.clients, initial_server(built)
    # Clients with equally many samples compute the same.
    by_size = {len(data.y): data for data in clients}
    updates = {
        size: count_flops(lambda data=data: trace_update(built.method, server, data))  # type: ignore[misc]
        for size, data in by_size.items()
    }
    present = [
        client
        for number in range(general.rounds)
        for client in sample_participants(general.seed, number, len(clients), general.participation)
    ]
    return round(sum(updates[len(clients[one].y)] for one in present) / general.rounds)
