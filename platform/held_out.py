"""What pretraining holds out for the models, and what it measures on that when they are done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from buffers.memory import MemoryBuffer

from .context import Context

if TYPE_CHECKING:
    from buffers.batches import WindowBatch
    from world_models.base import InstructionEncoder
    from world_models.obs_model import ObservationModel
    from world_models.outcomes import OutcomeFrames
    from world_models.reward_model import SuccessModel
    from world_models.training import LabelledFrames

ROWS = 512
WINDOWS = 128
FRAMES = 2048
"""Real frames as they come: successes are rare among them."""


def held_out_outcomes(
    context: Context, data: MemoryBuffer, obs_model: ObservationModel | None
) -> dict[str, LabelledFrames]:
    """``real`` frames in equal shares of success and failure and, with ``obs_model``, ``imagined`` ones."""
    config, fixed = context.world_model_config, np.random.default_rng(0)
    parts: dict[str, LabelledFrames] = {
        "real": data.outcomes(ROWS, split="held_out", balance=True, generator=fixed)
    }
    if obs_model is not None:
        import torch

        from world_models.outcomes import imagine_outcomes

        windows = data.windows(
            WINDOWS, context.history, config.reward_model.imagined_steps, split="held_out",
            generator=fixed,
        )  # fmt: skip
        generator = torch.Generator(context.torch_device).manual_seed(0)
        parts["imagined"] = imagine_outcomes(
            obs_model, windows, encode=context.vocabulary.encode, generator=generator
        )
    return parts


def measure_reward(
    model: SuccessModel, data: MemoryBuffer, imagined: LabelledFrames | None, *, encode: InstructionEncoder
) -> dict[str, Any]:
    """Calibrate the model where its config says so, then judge it on real frames as they come and on imagined ones."""
    from world_models.calibration import calibrate
    from world_models.quality import reward_quality

    half = {"split": "held_out", "balance": False}
    quality: dict[str, Any] = {}
    if model.config.calibrated:
        fitted_to = data.outcomes(FRAMES, generator=np.random.default_rng(1), **half)  # type: ignore[arg-type]
        quality["calibration"] = calibrate(model, fitted_to, imagined, encode=encode).to_json()
    real = data.outcomes(FRAMES, generator=np.random.default_rng(2), **half)  # type: ignore[arg-type]
    judged: dict[str, LabelledFrames | OutcomeFrames | None] = {"real": real, "imagined": imagined}
    for name, frames in judged.items():
        if frames is not None:
            report = reward_quality(model, frames, encode=encode, threshold=model.threshold)
            quality[name] = report.to_json()
    quality["threshold"] = model.threshold
    return quality


def open_loop_psnr(
    model: ObservationModel, windows: WindowBatch, *, encode: InstructionEncoder
) -> dict[str, list[float]]:
    """DB of own predictions against real frames after 1, 2, … decisions, and of the first frame repeated."""
    import torch

    from world_models.base import array_to_torch, frames_to_torch
    from world_models.env_steps import past_of
    from world_models.pictures import psnr

    device = next(model.parameters()).device
    steps = windows.mask.shape[1]
    length = windows.proprio.shape[1] - steps
    real = model.pixels(frames_to_torch(windows.frames, device))
    words = torch.from_numpy(encode(windows.instructions)).to(device)
    tokens, valid = array_to_torch(windows.tokens, device), array_to_torch(windows.valid, device)
    generator = torch.Generator(device).manual_seed(0)
    history, proprio = model.start(past_of(windows, np.arange(len(windows.mask))), device)
    still = model.frames(real[:, length - 1])
    result: dict[str, list[float]] = {"psnr_db": [], "psnr_copy_db": []}
    for step in range(steps):
        on = torch.from_numpy(windows.mask[:, step])
        if not bool(on.any()):
            break
        *_, (history, proprio) = model.unroll(
            history, proprio, tokens[:, step], words, generator=generator, valid=valid[:, step]
        )
        truth = model.frames(real[:, length + step])
        for name, seen in (("psnr_db", model.frames(history[:, -1])), ("psnr_copy_db", still)):
            decibels = [psnr(seen[c][on].cpu().numpy(), truth[c][on].cpu().numpy()) for c in truth]
            result[name].append(round(float(np.mean(decibels)), 3))
    return result
