"""M_obs: a diffusion model of the next decision's observation, after DIAMOND (arXiv:2405.12399) on EDM's arithmetic.

Frames live inside as *pixels*: float in [-1, 1], ``fold x fold`` patches and cameras in channels, ``[B, C, h, w]``.
A window of L + S frames has its present at index L - 1; frame L + s is what decision s led to.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from configs.obs_model import ObsModelConfig
from world_models.base import (
    Frames,
    ModelSpec,
    fold_frames,
    frames_to_torch,
    normalized_actions,
    quantize,
    unfold_frames,
)
from world_models.consistency import ConsistencyAim
from world_models.denoiser import Conditions, Denoiser, ProprioHead
from world_models.edm import draw_noise, draw_offset, draw_sigmas, karras_sigmas, precondition
from world_models.env_steps import FinePast, fine_frames
from world_models.samplers import SAMPLERS

PROPRIO_WIDTH = 64
PROPRIO_SCALE = 50.0
"""Proprio of unit range moves by hundredths in a decision; its loss is taken in these units to weigh like the frame's."""
VALIDATION_QUANTILES = (-1.2, -0.4, 0.4, 1.2)
"""Fixed grid over the training noise, in deviations of ln sigma: random sigmas move the loss more than learning does."""


class ObservationModel(nn.Module):
    """Predicts the frame and proprio after a decision.

    Raises ConfigError where the cameras do not fit the fold and the levels of the U-Net.
    """

    def __init__(self, spec: ModelSpec, config: ObsModelConfig) -> None:
        super().__init__()
        self.spec = spec
        self.config = config
        self.denoiser = Denoiser(spec, config)
        self.proprio_head = ProprioHead(spec, PROPRIO_WIDTH)
        self._cameras = tuple(spec.cameras)

    def pixels(self, frames: Frames) -> Float[Tensor, "*batch C h w"]:
        """uint8 frames ``[..., H, W, 3]`` as pixels."""
        return fold_frames(frames, self._cameras, self.config.fold)

    def frames(self, pixels: Float[Tensor, "B C h w"]) -> Frames:
        """Pixels as uint8 frames ``[B, H, W, 3]``, rounded."""
        return unfold_frames(pixels, self._cameras, self.config.fold)

    def _evaluate(
        self, noisy: Float[Tensor, "B C h w"], sigma: Float[Tensor, " B"], conditions: Conditions
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Network output F, and c_skip and c_out ``[B, 1, 1, 1]`` that make the denoised target from it."""
        c = precondition(sigma, self.config.sigma_data, offset_noise=self.config.offset_noise)
        c_in, c_skip, c_out = (value.view(-1, 1, 1, 1) for value in (c.c_in, c.c_skip, c.c_out))
        output = self.denoiser(
            c_in * noisy, c.c_noise, conditions.past, conditions.vector, conditions.instruction
        )
        return output, c_skip, c_out

    def denoise(
        self, noisy: Float[Tensor, "B C h w"], sigma: Float[Tensor, " B"], conditions: Conditions
    ) -> Float[Tensor, "B C h w"]:
        """D: the target (the change, or the frame) without its noise."""
        output, c_skip, c_out = self._evaluate(noisy, sigma, conditions)
        return c_skip * noisy + c_out * output

    def _target_base(self, history: Float[Tensor, "B L C h w"]) -> Float[Tensor, "B C h w"] | float:
        """What the diffused target is measured from."""
        return history[:, -1] if self.config.target == "residual" else 0.0

    def imagine(
        self,
        history: Float[Tensor, "B L C h w"],
        proprio: Float[Tensor, "B P"],
        actions: Float[Tensor, "B K D"],
        instruction: Int[Tensor, "B W"],
        *,
        generator: torch.Generator,
        steps: int | None = None,
    ) -> tuple[Float[Tensor, "B C h w"], Float[Tensor, "B P"]]:
        """Next pixels (on the grid of grey levels) and proprio; ``steps`` denoising steps, else the config's."""
        config = self.config
        executed = actions[:, : self.spec.actions_per_step]
        next_proprio = self.proprio_head(proprio, executed)
        vector = self.denoiser.conditioner.vector(proprio, next_proprio, executed)
        conditions = Conditions(history.flatten(1, 2), vector, instruction)
        rows = proprio.shape[0]
        sigmas = karras_sigmas(
            steps or config.sampling_steps, sigma_min=config.sigma_min, sigma_max=config.sampling_sigma_max
        )
        x = draw_noise((rows, self.denoiser.channels, *self.denoiser.size), generator)
        if not config.unit_start or config.sampler == "consistency":
            x = x * sigmas[0]

        def denoise(x: Tensor, sigma: float) -> Tensor:
            return self.denoise(x, torch.full((rows,), sigma, device=x.device), conditions)

        x = SAMPLERS[config.sampler](denoise, x, sigmas, generator)
        return quantize(self._target_base(history) + x), next_proprio

    def unroll(
        self,
        history: Float[Tensor, "B L C h w"],
        proprio: Float[Tensor, "B P"],
        tokens: Int[Tensor, "B K D"],
        instruction: Int[Tensor, "B W"],
        *,
        generator: torch.Generator,
        valid: Bool[Tensor, "B K"] | None = None,
    ) -> Iterator[tuple[Float[Tensor, "B L C h w"], Float[Tensor, "B P"]]]:
        """History and proprio after each step of the model in a decision, the whole decision last. ``valid`` tells which
        actions were executed where that is known: rows without a step's action stay as they are.
        """
        for step, actions in enumerate(self.step_actions(tokens)):
            pixels, after = self.imagine(history, proprio, actions, instruction, generator=generator)
            moved = torch.cat([history[:, 1:], pixels[:, None]], dim=1)
            if self.spec.model_steps > 1 and valid is not None:
                on = valid[:, step]
                moved = torch.where(on.view(-1, 1, 1, 1, 1), moved, history)
                after = torch.where(on[:, None], after, proprio)
            history, proprio = moved, after
            yield history, proprio

    def step_actions(self, tokens: Int[Tensor, "B K D"]) -> list[Float[Tensor, "B A D"]]:
        """What each step of the model in a decision sees of its actions."""
        actions = normalized_actions(tokens, self.spec.parts)
        size = self.spec.actions_per_step
        return (
            [actions]
            if self.spec.model_steps == 1
            else [actions[:, step : step + size] for step in range(0, self.spec.replan, size)]
        )

    @property
    def lookback(self) -> int:
        """Observations of decisions that hold the frames of ``history``."""
        return -(-self.config.history // self.spec.model_steps)

    def start(
        self, seen: FinePast, device: torch.device
    ) -> tuple[Float[Tensor, "B L C h w"], Float[Tensor, "B P"]]:
        """History and proprio to imagine from, of observations in a row whose last one is the present."""
        frames, proprio = (seen.frames, seen.proprio) if self.spec.model_steps == 1 else fine_frames(seen)
        length = self.config.history
        last = {name: frame[:, -length:] for name, frame in frames.items()}
        return self.pixels(frames_to_torch(last, device)), torch.from_numpy(proprio[:, -1].copy()).to(device)

    @torch.no_grad()
    def predict(
        self,
        frames: Frames,
        proprio: Float[Tensor, "B P"],
        actions: Float[Tensor, "B K D"],
        instruction: Int[Tensor, "B W"],
        *,
        generator: torch.Generator,
        steps: int | None = None,
    ) -> tuple[Frames, Float[Tensor, "B P"]]:
        """Observation after a decision.

        ``frames`` is {camera: uint8 ``[B, L, H, W, 3]``}, ``actions`` normalised to [-1, 1], ``instruction`` word ids.
        Returns {camera: uint8 ``[B, H, W, 3]``} and proprio. The generator decides everything that is random.
        """
        pixels, next_proprio = self.imagine(
            self.pixels(frames), proprio, actions, instruction, generator=generator, steps=steps
        )
        return self.frames(pixels), next_proprio

    @torch.no_grad()
    def open_loop(
        self,
        history: Float[Tensor, "B L C h w"],
        proprio: Float[Tensor, "B P"],
        actions: Float[Tensor, "B S K D"],
        instruction: Int[Tensor, "B W"],
        *,
        generator: torch.Generator,
    ) -> tuple[Float[Tensor, "B L C h w"], Float[Tensor, "B P"]]:
        """History and proprio after S decisions on own predictions."""
        for step in range(actions.shape[1]):
            pixels, proprio = self.imagine(
                history, proprio, actions[:, step], instruction, generator=generator
            )
            history = torch.cat([history[:, 1:], pixels[:, None]], dim=1)
        return history, proprio

    def loss(
        self,
        frames: Frames,
        proprio: Float[Tensor, "B T P"],
        actions: Float[Tensor, "B S K D"],
        mask: Bool[Tensor, "B S"],
        instruction: Int[Tensor, "B W"],
        *,
        generator: torch.Generator,
        rollout_model: ObservationModel | None,
        aim: ConsistencyAim | None = None,
    ) -> tuple[Tensor, dict[str, float], Float[Tensor, " B"]]:
        """Denoising loss of one transition that is reached on own predictions (multi-step training); its parts; and that of
        each window, NaN for those that the drawn transition left out.

        ``frames`` is {camera: uint8 ``[B, L+S, H, W, 3]``}, ``proprio`` ``[B, L+S, P]``. Draws how many decisions n in
        0..S-1 ``rollout_model`` first goes without gradient; then the loss of decision n, over the rows where ``mask``
        has it. Without a rollout model n is 0. Loss: MSE in F's output space plus the proprio's smooth L1 error.
        With ``aim`` the frame to learn is that of consistency training instead of the real one.
        """
        longest = actions.shape[1] if rollout_model is not None else 1
        chain = int(torch.randint(longest, (1,), generator=generator, device=generator.device))
        while not bool(mask[:, chain].any()):
            chain -= 1
            assert chain >= 0, "a window without a first decision"
        rows = mask[:, chain].nonzero()[:, 0]
        window = self.pixels({name: frame[rows] for name, frame in frames.items()})
        length = self.config.history
        history, present = window[:, :length], proprio[rows, length - 1]
        words = instruction[rows]
        if chain:
            assert rollout_model is not None
            history, present = rollout_model.open_loop(
                history, present, actions[rows, :chain], words, generator=generator
            )
        count = rows.shape[0]
        levels = (
            (self._draw_sigmas(count, generator), None) if aim is None else aim.draw_sigmas(count, generator)
        )
        image, position = self._transition_loss(
            self._disturb(history, generator),
            present,
            actions[rows, chain],
            words,
            target=window[:, length + chain] - self._target_base(history),
            target_proprio=proprio[rows, length + chain],
            sigma=levels[0],
            generator=generator,
            aim=aim,
            sigma_next=levels[1],
        )
        loss = image.mean() + position.mean()
        by_window = torch.full(mask.shape[:1], torch.nan, device=mask.device)
        by_window[rows] = (image + position).detach().float()
        stats = {
            "loss": float(loss.detach()),
            "image_loss": float(image.detach().mean()),
            "proprio_loss": float(position.detach().mean()),
            "chain": float(chain),
        }
        return loss, stats, by_window

    def _draw_sigmas(self, rows: int, generator: torch.Generator) -> Float[Tensor, " B"]:
        config = self.config
        return draw_sigmas(
            rows,
            mean=config.noise_mean,
            std=config.noise_std,
            low=config.sigma_min,
            high=config.sigma_max,
            generator=generator,
        )

    def _disturb(self, history: Float[Tensor, "B L C h w"], generator: torch.Generator) -> Tensor:
        """Noise on the conditioning frames: the model must not trust its own last picture to the pixel."""
        if self.config.conditioning_noise == 0:
            return history
        noise = torch.randn(history.shape, generator=generator, device=history.device)
        return history + self.config.conditioning_noise * noise

    def _transition_loss(
        self,
        history: Float[Tensor, "B L C h w"],
        proprio: Float[Tensor, "B P"],
        actions: Float[Tensor, "B K D"],
        instruction: Int[Tensor, "B W"],
        *,
        target: Float[Tensor, "B C h w"],
        target_proprio: Float[Tensor, "B P"],
        sigma: Float[Tensor, " B"],
        generator: torch.Generator,
        aim: ConsistencyAim | None = None,
        sigma_next: Float[Tensor, " B"] | None = None,
    ) -> tuple[Float[Tensor, " B"], Float[Tensor, " B"]]:
        """Loss of frame and proprio per row; ``sigma_next`` comes with ``aim``."""
        executed = actions[:, : self.spec.actions_per_step]
        next_proprio = self.proprio_head(proprio, executed)
        # Smooth L1: where an episode ended inside a chunk the arm stopped early; the head cannot know and must
        # learn the full motion, not the mean of both.
        error = F.smooth_l1_loss(
            PROPRIO_SCALE * next_proprio, PROPRIO_SCALE * target_proprio, reduction="none", beta=0.1
        )
        proprio_loss = error.mean(1) / PROPRIO_SCALE if error.shape[1] else error.sum(1)
        vector = self.denoiser.conditioner.vector(proprio, next_proprio.detach(), executed)
        noise = draw_noise((target.shape[0], target.shape[1], target.shape[2], target.shape[3]), generator)
        noisy = target + sigma.view(-1, 1, 1, 1) * noise
        if self.config.offset_noise:
            noisy = noisy + draw_offset(
                target.shape[0], target.shape[1], offset_noise=self.config.offset_noise, generator=generator
            )
        conditions = Conditions(history.flatten(1, 2), vector, instruction)
        if aim is not None and sigma_next is not None:
            target = aim.target(noisy, target, sigma, sigma_next, conditions)
        output, c_skip, c_out = self._evaluate(noisy, sigma, conditions)
        wanted = (target - c_skip * noisy) / c_out
        return F.mse_loss(output, wanted, reduction="none").mean((1, 2, 3)), proprio_loss

    @torch.no_grad()
    def validation_loss(
        self,
        frames: Frames,
        proprio: Float[Tensor, "B T P"],
        actions: Float[Tensor, "B S K D"],
        mask: Bool[Tensor, "B S"],
        instruction: Int[Tensor, "B W"],
        *,
        seed: int = 0,
    ) -> list[float]:
        """Loss by decision of the windows, each on own predictions up to it, at a fixed grid of sigmas and fixed noise.

        The first entry is the one-step loss. Decisions that no window has are left out.
        """
        window = self.pixels(frames)
        length = self.config.history
        history, present = window[:, :length], proprio[:, length - 1]
        generator = torch.Generator(window.device).manual_seed(seed)
        losses = []
        for step in range(actions.shape[1]):
            weight = mask[:, step].float()
            if not bool(weight.any()):
                break
            target = window[:, length + step] - self._target_base(history)
            total = torch.zeros((), device=window.device)
            for quantile in VALIDATION_QUANTILES:
                level = math.exp(self.config.noise_mean + quantile * self.config.noise_std)
                image, position = self._transition_loss(
                    history,
                    present,
                    actions[:, step],
                    instruction,
                    target=target,
                    target_proprio=proprio[:, length + step],
                    sigma=torch.full_like(weight, level),
                    generator=generator,
                )
                total = total + ((image + position) * weight).sum() / weight.sum()
            losses.append(float(total) / len(VALIDATION_QUANTILES))
            history, present = self.open_loop(
                history, present, actions[:, step : step + 1], instruction, generator=generator
            )
        return losses
