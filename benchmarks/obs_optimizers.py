"""Optimizers of the observation model on one dataset: held-out loss by update and by processor second.

``--data <folder>`` of ``platform.demos`` for the tabletop's reach (written first where none is given); ``--quick``: a
few updates. Optimizers that are not installed are left out and named. Prints a table and one JSON object as its last
line; writes results/obs_optimizers.json.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from platform.context import make_context
from platform.demos import write_demos
from platform.pretrain_jobs import dataset_buffer, obs_model_job
from typing import Any, get_args

import torch

from buffers.dataset import read_dataset
from configs.loader import load_config
from configs.obs_model import Optimizer
from configs.schema import DemosConfig, PretrainConfig

RESULTS = Path(__file__).parent / "results"
RATES: dict[Optimizer, float] = {"adamw": 1.5e-3, "soap": 1e-2}
"""The default's; SOAP's steps are shorter at an equal rate."""


def measure(config: PretrainConfig, name: Optimizer, dataset: Any, updates: int) -> dict[str, Any]:
    """Held-out loss of the averaged weights at five places of one run."""
    models = config.world_model
    obs_model = replace(models.obs_model, optimizer=name, rollout_start=10**9, rollout_steps=1)
    config = replace(config, world_model=replace(models, obs_model=obs_model))
    context = make_context(config, seed=0, device="cpu")
    data = dataset_buffer(context, dataset, config.held_out)
    budget = replace(config.obs_model_budget, updates=updates, learning_rate=RATES[name])
    job = obs_model_job(context, data, budget)
    curve, spent = [(0, 0.0, job.held_out_loss())], 0.0
    for part in range(5):
        began = time.process_time()
        for _ in range(updates // 5):
            job.update()
        spent += time.process_time() - began
        curve.append(((part + 1) * (updates // 5), round(spent, 1), job.held_out_loss()))
    return {"rate": RATES[name], "ms_per_update": round(1000 * spent / curve[-1][0], 1), "curve": curve}


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="ten updates each")
    parser.add_argument("--data", help="dataset folder")
    parser.add_argument("--updates", type=int, default=500)
    given = parser.parse_args()
    torch.set_num_threads(1)
    updates = 10 if given.quick else given.updates
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.data or f"{scratch}/demos"
        if given.data is None:
            episodes = 100 if given.quick else 1000
            write_demos(
                load_config(DemosConfig, [f"out={folder}", f"episodes={episodes}", "env=tabletop_reach"])
            )
        config = load_config(PretrainConfig, ["obs_model", "env=tabletop_reach", f"data={folder}"])
        dataset = read_dataset(folder)
    names = [
        name for name in get_args(Optimizer) if name == "adamw" or find_spec("pytorch_optimizer") is not None
    ]
    found = {name: measure(config, name, dataset, updates) for name in names}
    places = [step for step, _, _ in found["adamw"]["curve"]]
    print(
        f"{'held-out loss after':<20}"
        + "".join(f"{step:>9}" for step in places)
        + f"{'ms/update':>12}{'rate':>9}"
    )
    for name, row in found.items():
        losses = "".join(f"{loss:>9.4f}" for _, _, loss in row["curve"])
        print(f"{name:<20}{losses}{row['ms_per_update']:>12.0f}{row['rate']:>9.0e}")
    missing = sorted(set(get_args(Optimizer)) - set(found))
    if missing:
        print(f"not installed: {', '.join(missing)} (pip install 'reverie-rl[kronecker]')")
    report = {"benchmark": "obs_optimizers", "updates": updates, "optimizers": found, "missing": missing}
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "obs_optimizers.json").write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report))


if __name__ == "__main__":
    main()
