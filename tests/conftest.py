from __future__ import annotations

import os
from pathlib import Path

import hypothesis
import pytest
import torch

from fedmate.data.sources import VARIABLE

# Triton asks once, when it is imported, which any test may be the first to do.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

# How long an example takes says more about the machine than about the code.
hypothesis.settings.register_profile("fedmate", deadline=None)
hypothesis.settings.load_profile("fedmate")

# Tiny tensors are split over threads at a loss, and the tests run side by side.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _folders_of_its_own(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep tests away from the data sets and caches of whoever runs them."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(_cache(tmp_path_factory)))
    monkeypatch.delenv(VARIABLE, raising=False)
    # What tests start in processes of their own is as tiny.
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def _cache(factory: pytest.TempPathFactory) -> Path:
    folder = factory.getbasetemp() / "cache"
    folder.mkdir(exist_ok=True)
    return folder
