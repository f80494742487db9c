from __future__ import annotations

import torch

# Tiny tensors are split over threads at a loss, and the tests run side by side.
torch.set_num_threads(1)
