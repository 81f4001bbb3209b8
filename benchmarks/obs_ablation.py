"""What each ingredient of the observation model buys: outcome agreement on pick-and-place, one ingredient away at a time.

    python benchmarks/obs_ablation.py [--quick] [--data FOLDER] [--out FOLDER] [--updates N] [--arms a,b,…]

Every arm pretrains an observation model and the reward model that goes with it on the same demonstrations, as many arms at
once as there are cores, one thread each. Judged on the same held-out windows: from one real start, under the same actions,
does success happen in both worlds? ``--quick``: three arms of models that learn nothing, in a minute. What is in ``--out`` is
not done again. Prints a table and one JSON object as its last line; writes results/obs_ablation.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from platform.context import make_context
from platform.models import read_model
from platform.pretrain_jobs import dataset_buffer
from platform.weights import load_arrays
from typing import Any

import numpy as np

RESULTS = Path(__file__).parent / "results"
ENV = "env=tabletop_pick_place"
HORIZONS = (1, 3, 5, 10)
MODEL = "world_model.obs_model."
RECIPE = ["world_model/obs_model=long", "world_model.reward_model.imagined_steps=10"]
"""What the arms are compared with."""
ARMS: dict[str, tuple[str, ...]] = {
    "recipe": (),
    "no training on own predictions": (f"{MODEL}rollout_start=1000000",),
    "whole frame as target": (f"{MODEL}target=frame", f"{MODEL}sigma_data=0.5"),
    "no noise on past frames": (f"{MODEL}conditioning_noise=0",),
    "one frame of history": (f"{MODEL}history=1",),
    "a third of the channels": (f"{MODEL}channels=[24,32]",),
    "three denoising steps": (f"{MODEL}sampling_steps=3",),
}
QUARTER = "a quarter of the data"
AS_TRAINED = {"three denoising steps": "recipe"}
"""Arms that differ in how frames are sampled alone, and whose models they use."""


def run(*arguments: str) -> None:
    """One of Reverie's commands; its own words go to stderr."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-m", *arguments], check=True, stdout=sys.stderr, env=environment)


def overrides(arm: str, updates: int, quick: bool) -> list[str]:
    """Settings of one arm."""
    tiny = [f"{MODEL}channels=[8,16]", "world_model.reward_model.channels=[8,16]"] if quick else []
    return [
        ENV, *RECIPE, f"{MODEL}rollout_start={updates // 2}", *ARMS.get(arm, ()), *tiny,
        f"obs_model_budget.updates={updates}", "obs_model_budget.patience=1000",
        f"reward_model_budget.updates={max(10, updates // 2)}",
    ]  # fmt: skip


def pretrain(arm: str, data: Path, out: Path, updates: int, quick: bool) -> float:
    """Both models of one arm; seconds of the observation model's training."""
    for name in ("obs_model", "reward_model"):
        if not (out / name).is_dir():
            run(
                "platform.pretrain", name, *overrides(arm, updates, quick), f"data={data}", f"out={out}", "parallel=false"
            )  # fmt: skip
    return float(json.loads((out / "obs_model" / "card.json").read_text())["wall_s"])


def judge(arm: str, judged_on: Path, out: Path, updates: int, quick: bool) -> dict[str, Any]:
    """Agreement by horizon, frames by step."""
    import torch

    from buffers.dataset import read_dataset
    from configs.loader import load_config
    from configs.schema import PretrainConfig
    from world_models.quality import outcome_agreement

    torch.set_num_threads(1)
    config = load_config(PretrainConfig, ["obs_model", *overrides(arm, updates, quick), f"data={judged_on}"])
    context = make_context(config, seed=0, device="cpu")
    data = dataset_buffer(context, read_dataset(judged_on), config.held_out)
    obs_model, reward_model = context.make_obs_model().eval(), context.make_reward_model().eval()
    for name, model in (("obs_model", obs_model), ("reward_model", reward_model)):
        load_arrays(model, read_model(out / name, name, context))
    windows = data.windows(
        32 if quick else 768, config.world_model.obs_model.history, max(HORIZONS), split="held_out",
        generator=np.random.default_rng(0),
    )  # fmt: skip
    report = outcome_agreement(
        obs_model, reward_model, windows, encode=context.vocabulary.encode, threshold=reward_model.threshold
    )
    rows = {row.horizon: row for row in report.by_horizon}
    return {
        "agreement": {h: rows[h].agreement for h in HORIZONS},
        "false_success": {h: rows[h].false_success for h in HORIZONS},
        "missed_success": {h: rows[h].missed_success for h in HORIZONS},
        "real_success": {h: rows[h].real_success for h in HORIZONS},
        "psnr_db": {h: report.psnr_by_step[h - 1] for h in HORIZONS},
        "psnr_first_frame_db": {h: report.psnr_copy_by_step[h - 1] for h in HORIZONS},
        "windows": rows[1].windows,
    }


def write_data(folder: Path, episodes: int) -> Path:
    """Demonstrations, made once."""
    if not folder.is_dir():
        run("platform.demos", ENV, f"out={folder}", f"episodes={episodes}")
    return folder


def table(found: dict[str, dict[str, Any]]) -> str:
    """Markdown."""
    lines = [
        "| arm | " + " | ".join(f"agreement at {h}" for h in HORIZONS[1:])
        + " | false success at 5 | at 10 | PSNR dB at 5 | at 10 | training s |",
        "|---" * 9 + "|",
    ]  # fmt: skip
    for arm, row in found.items():
        agreement = " | ".join(f"{row['agreement'][h]:.3f}" for h in HORIZONS[1:])
        false = " | ".join(f"{row['false_success'][h]:.3f}" for h in (5, 10))
        frames = " | ".join(f"{row['psnr_db'][h]:.1f}" for h in (5, 10))
        lines.append(f"| {arm} | {agreement} | {false} | {frames} | {row['wall_s']:.0f} |")
    return "\n".join(lines)


def main() -> None:
    """Pretrain, judge, print, save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument(
        "--data", type=Path, help="dataset folder of pick-and-place, written where there is none"
    )
    parser.add_argument("--out", type=Path, help="folder of the models")
    parser.add_argument("--updates", type=int, default=600)
    parser.add_argument("--episodes", type=int, default=5000)
    parser.add_argument("--arms", help="comma-separated; default all")
    given = parser.parse_args()
    updates, episodes = (10, 80) if given.quick else (given.updates, given.episodes)
    stamp = time.strftime("%Y-%m-%d_%H-%M-%S")
    out = given.out or Path("outputs") / "obs_ablation" / stamp
    whole = write_data(given.data or out / "demos", episodes)
    everything = ["recipe", *AS_TRAINED, QUARTER] if given.quick else [*ARMS, QUARTER]
    arms = given.arms.split(",") if given.arms else everything
    trained = [arm for arm in arms if arm not in AS_TRAINED]
    data = dict.fromkeys(trained, whole)
    if QUARTER in trained:
        data[QUARTER] = write_data(out / "quarter", episodes // 4)

    def one(arm: str) -> dict[str, Any]:
        folder = out / arm.replace(" ", "_")
        return {"wall_s": pretrain(arm, data[arm], folder, updates, given.quick)}

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = dict(zip(trained, pool.map(one, trained), strict=True))
    for arm in arms:
        models = AS_TRAINED.get(arm, arm)
        seen = judge(arm, whole, out / models.replace(" ", "_"), updates, given.quick)
        found[arm] = {"wall_s": found[models]["wall_s"], **seen}
    print(table(found))
    card = json.loads((out / arms[0].replace(" ", "_") / "obs_model" / "card.json").read_text())
    report = {"benchmark": "obs_ablation", "updates": updates, "data": card["data"], "arms": found}
    RESULTS.mkdir(exist_ok=True)
    name = "obs_ablation_quick" if given.quick else "obs_ablation"
    (RESULTS / f"{name}.json").write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report))


if __name__ == "__main__":
    main()
