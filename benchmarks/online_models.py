"""What training beside the policy does to the observation model, where the policy goes.

    python benchmarks/online_models.py RUN [--decisions 10]

RUN is the directory of a ``real+imagined`` run. Two models are run open loop, from the same real starts under the same actions:
the one that the run started from and the one in its newest checkpoint. The episodes are the run's own held-out ones, the newest
half: neither model has trained on them. Prints dB of the imagined against the real frame by decision, and one JSON object
as its last line; writes results/online_models.json.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from platform.context import OBS_MODEL
from platform.datasets import run_episodes
from platform.held_out import open_loop_psnr
from platform.models import read_model
from platform.pretrain_jobs import dataset_buffer
from platform.weights import load_arrays

import numpy as np
import torch

from buffers.dataset import Dataset
from buffers.index import is_held_out
from configs.loader import config_from_yaml
from configs.schema import TrainConfig

RESULTS = Path(__file__).parent / "results"
WINDOWS = 512


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--decisions", type=int, default=10)
    given = parser.parse_args()
    torch.set_num_threads(1)
    config = config_from_yaml(TrainConfig, given.run / "config.yaml")
    share = config.buffers.real.held_out
    context, records = run_episodes(given.run)
    own = [record for record in records if record.source == "real" and is_held_out(record.episode_id, share)]
    newest = own[len(own) // 2 :]
    data = dataset_buffer(context, Dataset(context.record_spec, {}, newest), share)
    windows = data.windows(
        WINDOWS, context.history, given.decisions, split="held_out", generator=np.random.default_rng(0)
    )
    assert config.world_model.path is not None, "the run started from no models"
    folders = {
        "pretrained": Path(config.world_model.path) / OBS_MODEL,
        "after the run": given.run / "checkpoints" / "last" / OBS_MODEL,
    }
    found = {}
    for name, folder in folders.items():
        model = context.make_obs_model().eval()
        load_arrays(model, read_model(folder, OBS_MODEL, context))
        with torch.no_grad():
            found[name] = open_loop_psnr(model, windows, encode=context.vocabulary.encode)
    steps = len(found["pretrained"]["psnr_db"])
    counts = windows.mask[:, :steps].sum(0).tolist()
    print(f"{len(newest)} held-out episodes of the run, dB by decision")
    print(f"{'':<22}" + "".join(f"{step + 1:>7}" for step in range(steps)))
    print(f"{'windows':<22}" + "".join(f"{count:>7}" for count in counts))
    still = {"first frame repeated": found["pretrained"]["psnr_copy_db"]}
    for name, row in {**{name: each["psnr_db"] for name, each in found.items()}, **still}.items():
        print(f"{name:<22}" + "".join(f"{value:>7.1f}" for value in row))
    report = {
        "benchmark": "online_models", "run": given.run.name, "episodes": len(newest), "windows": counts, "psnr_db": found,
    }  # fmt: skip
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "online_models.json").write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report))


if __name__ == "__main__":
    main()
