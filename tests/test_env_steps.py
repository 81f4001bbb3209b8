"""Models that step by env steps: what lies between decisions from the environment to imagination and back."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from platform.command import main  # isort: skip
from platform.envs import make_env  # isort: skip
from platform.envs.between import FramesBetween
from platform.envs.decision import TabletopDecisionEnv, tabletop_spec
from platform.envs.lanes import OverlappedEnv

from buffers.dataset import DatasetWriter, read_dataset
from buffers.memory import MemoryBuffer
from buffers.records import Record
from configs.env import TabletopConfig
from configs.errors import DataError
from configs.replay import ReverbConfig
from configs.system import BufferConfig
from tests.model_parts import SPEC, encode, make_windows, obs_config
from tests.records_helper import make_record, make_spec
from tests.run_helper import FAST, MODELS, POLICY
from tests.test_imagined_env import Brightening, Brightness, Levels
from world_models.env_steps import past_of, step_windows
from world_models.imagined_env import ImaginedWorlds
from world_models.obs_model import ObservationModel
from world_models.training import ObsModelTrainer

TABLE = TabletopConfig(max_episode_steps=10)
FINE = replace(SPEC, model_steps=2)
NAMES = ("policy", "obs_model", "reward_model")


def overlapped() -> FramesBetween:
    """Lanes that step beside each other."""
    build = partial(TabletopDecisionEnv, TABLE, 1, chunk=1, replan=1)
    return FramesBetween(OverlappedEnv(build, tabletop_spec(TABLE), 3, chunk=1), chunk=5, replan=4)


@pytest.mark.parametrize("lanes", [False, True])
def test_every_env_step_is_seen(lanes: bool) -> None:
    """Against one environment that takes whole chunks and one that takes single actions. Ten env steps are two chunks of
    four and half of a third: there the last frame is repeated.
    """
    env = overlapped() if lanes else make_env(TABLE, 3, chunk=5, replan=4, between=True)
    whole, single = (make_env(TABLE, 3, chunk=chunk, replan=n) for chunk, n in ((5, 4), (1, 1)))
    slots, seeds = np.arange(3), np.array([3, 4, 5])
    first = env.reset(slots, seeds)
    assert first.between is not None
    for other in (whole, single):
        other.reset(slots, seeds)
    np.testing.assert_array_equal(first.between["top"], np.repeat(first.images["top"][:, None], 3, 1))
    rng = np.random.default_rng(0)
    for decision in range(3):
        actions = rng.uniform(-0.3, 0.3, (3, 5, 3)).astype(np.float32)
        result, wanted = env.step(slots, actions), whole.step(slots, actions)
        for name in ("rewards", "valid", "terminated", "truncated", "success"):
            np.testing.assert_array_equal(getattr(result, name), getattr(wanted, name))
        np.testing.assert_array_equal(result.observation.images["top"], wanted.observation.images["top"])
        np.testing.assert_array_equal(result.observation.proprio, wanted.observation.proprio)
        seen = [
            single.step(slots, actions[:, step : step + 1]).observation
            for step in range(4 if decision < 2 else 2)
        ]
        between, proprio = result.observation.between, result.observation.proprio_between
        assert between is not None
        assert proprio is not None
        for step in range(3):
            there = seen[min(step, len(seen) - 1)]
            np.testing.assert_array_equal(between["top"][:, step], there.images["top"])
            np.testing.assert_array_equal(proprio[:, step], there.proprio)
    assert result.truncated.all()
    assert result.valid.sum(1).tolist() == [2, 2, 2]
    for each in (env, whole, single):
        each.close()


def test_slots_land_one_by_one_and_are_told_once() -> None:
    env = overlapped()
    env.begin_reset(np.arange(3), np.array([1, 2, 3]))
    (started,) = env.ready(None)
    assert started.slots.tolist() == [0, 1, 2]
    env.begin(np.array([2, 0]), np.zeros((2, 5, 3), np.float32))
    landed: list[int] = []
    while len(landed) < 2:
        for part in env.ready(0.5):
            assert part.result is not None
            assert part.result.valid.sum(1).tolist() == [4] * len(part.slots)
            landed += part.slots.tolist()
    assert sorted(landed) == [0, 2]
    assert env.ready(0.0) == []
    env.close()


def between_record(number: int, length: int, **changes: Any) -> Record:
    """Env step n of the episode shows n; a decision takes two."""
    spec = replace(make_spec(), between=True)
    record = make_record(make_spec(), number, length, **changes)
    camera, size = next(iter(spec.cameras.items()))
    steps = spec.replan * np.arange(length + 1)[:, None] + np.arange(1 - spec.replan, 1)
    fine = np.broadcast_to(
        np.clip(steps, 0, None)[..., None, None, None], (length + 1, spec.replan, *size, 3)
    ).astype(np.uint8)
    numbers = np.broadcast_to(np.clip(steps, 0, None)[..., None], (*steps.shape, spec.proprio_dim))
    return replace(
        record, images={camera: fine[:, -1]}, between={camera: fine[:, :-1]},
        proprio=numbers[:, -1].astype(np.float32), proprio_between=numbers[:, :-1].astype(np.float32),
    )  # fmt: skip


def test_what_lies_between_is_stored_and_drawn(tmp_path: Path) -> None:
    """Dataset and buffer; a record without it, or one that has what nobody asked for, is refused."""
    plain, spec = make_spec(), replace(make_spec(), between=True)
    record = between_record(0, 4)
    with DatasetWriter(tmp_path / "data", spec, {}) as writer:
        writer.add(record)
    read = read_dataset(tmp_path / "data", between=True)
    assert read.spec == spec
    camera = next(iter(spec.cameras))
    np.testing.assert_array_equal(read.records[0].between[camera], record.between[camera])
    buffer = MemoryBuffer(spec, BufferConfig(max_bytes=10**6, held_out=0.0), seed=0, name="real")
    buffer.append(read.records[0])
    drawn = buffer.windows(32, 2, 2)
    seen = drawn.proprio_between
    assert seen is not None
    # The observation of decision n stands at env step n * R, what is before it one step earlier each.
    present = drawn.proprio[..., 0]
    np.testing.assert_array_equal(seen[..., -1, 0], np.clip(present - 1, 0, None))
    np.testing.assert_array_equal(drawn.between[camera][..., 0, 0, 0], seen[..., 0].astype(np.uint8))
    starts = buffer.starts(8, 2, horizon=1)
    assert starts.proprio_between is not None
    lease = buffer.lease(4)
    assert lease is not None
    np.testing.assert_array_equal(buffer.get(0).proprio_between, record.proprio_between)
    with pytest.raises(DataError, match="between"):
        buffer.append(make_record(plain, 1, 3))
    with pytest.raises(DataError, match="frames between decisions"):
        record.check(plain)
    record.without_between().check(plain)


def test_a_reverb_server_keeps_what_lies_between(tmp_path: Path) -> None:
    """Windows as the server stores them, and longer ones cut from whole records."""
    pytest.importorskip("reverb")
    from buffers.reverb_buffer import ReverbBuffer

    spec, reach = (
        replace(make_spec(), between=True),
        ReverbConfig(history=3, steps=4, chunk=2, timeout_s=20.0),
    )
    settings = BufferConfig(max_bytes=10**6, held_out=0.0)
    buffer = ReverbBuffer(spec, settings, reach, seed=0, name="real", folder=tmp_path)
    try:
        for number in range(2):
            buffer.append(between_record(number, 4))
        for history, steps in ((2, 2), (3, 8)):
            drawn = buffer.windows(32, history, steps)
            assert drawn.proprio_between is not None
            before = np.clip(drawn.proprio[..., 0] - 1, 0, None)
            np.testing.assert_array_equal(drawn.proprio_between[..., -1, 0], before)
            np.testing.assert_array_equal(
                drawn.between["camera0"][..., 0, 0, 0], drawn.proprio_between[..., 0]
            )
        np.testing.assert_array_equal(
            buffer.get(1).between["camera0"], between_record(1, 4).between["camera0"]
        )
    finally:
        buffer.close()


def windows(rows: int = 2, history: int = 1, steps: int = 2) -> Any:
    """Proprio and grey level are the env step, counted from the start of the window."""
    made = make_windows(rows, history, steps, spec=FINE)
    count = (history + steps) * 2
    level = np.arange(count).reshape(1, -1, 2)
    wide = np.broadcast_to(level[..., None, None, None], (rows, history + steps, 2, 16, 16, 3)).astype(
        np.uint8
    )
    numbers = np.broadcast_to(level[..., None], (rows, history + steps, 2, 2)).astype(np.float32)
    return replace(
        made, frames={"top": wide[:, :, 1]}, between={"top": wide[:, :, :1]}, proprio=numbers[:, :, 1],
        proprio_between=numbers[:, :, :1],
    )  # fmt: skip


def test_windows_in_env_steps_by_hand() -> None:
    """One decision of history and two to come, two env steps each: the present is env step 1."""
    made = windows()
    made.valid[1, 1, 1:] = False
    fine = step_windows(made, model_steps=2, history=2)
    assert fine.proprio[0, :, 0].tolist() == [0, 1, 2, 3, 4, 5]
    assert fine.frames["top"][1, :, 0, 0, 0].tolist() == [0, 1, 2, 3, 4, 5]
    np.testing.assert_array_equal(fine.tokens[:, 2, 0], made.tokens[:, 1, 0])
    np.testing.assert_array_equal(fine.tokens[:, 3, 0], made.tokens[:, 1, 1])
    assert fine.mask.tolist() == [[True] * 4, [True, True, True, False]]
    late = step_windows(made, model_steps=2, history=2, skip=1)
    assert late.proprio[0, :, 0].tolist() == [1, 2, 3, 4, 5]
    assert late.mask.shape == (2, 3)
    np.testing.assert_array_equal(late.tokens, fine.tokens[:, 1:])
    with pytest.raises(AssertionError, match="as far back"):
        step_windows(made, model_steps=2, history=3)


def test_a_decision_is_one_step_after_the_other() -> None:
    """Own predictions feed the next step; an action that was not executed changes nothing."""
    torch.manual_seed(0)
    model = ObservationModel(FINE, obs_config(history=2)).eval()
    made, device = windows(), torch.device("cpu")
    history, proprio = model.start(past_of(made, np.arange(2)), device)
    assert history.shape[:2] == (2, 2)
    assert proprio[:, 0].tolist() == [1, 1]
    words, tokens = torch.from_numpy(encode(made.instructions)), torch.from_numpy(made.tokens[:, 0])
    valid = torch.tensor([[True, True, False], [True, False, False]])
    actions = model.step_actions(tokens)
    assert [part.shape for part in actions] == [(2, 1, 2), (2, 1, 2)]
    with torch.no_grad():
        one = torch.Generator().manual_seed(3)
        *_, (moved, after) = model.unroll(history, proprio, tokens, words, generator=one, valid=valid)
        two = torch.Generator().manual_seed(3)
        first, middle = model.imagine(history, proprio, actions[0], words, generator=two)
        halfway = torch.cat([history[:, 1:], first[:, None]], 1)
        second, last = model.imagine(halfway, middle, actions[1], words, generator=two)
    torch.testing.assert_close(moved[0], torch.stack([first[0], second[0]]))
    torch.testing.assert_close(after[0], last[0])
    torch.testing.assert_close(moved[1], halfway[1])
    torch.testing.assert_close(after[1], middle[1])


def test_training_starts_at_every_step_of_a_decision() -> None:
    """Windows of whole decisions, of which some skip the first env step; the chain is as long as asked for."""
    torch.manual_seed(0)
    config = obs_config(history=2, rollout_steps=3)
    trainer = ObsModelTrainer(ObservationModel(FINE, config), config, encode=encode, seed=0)
    assert trainer.window_steps == 2
    skips = {trainer._tensors(windows(), skip=trainer._skip())[2].shape[1] for _ in range(20)}
    assert skips == {3, 4}
    losses = [trainer.update(windows(4))["loss"] for _ in range(30)]
    assert losses[-1] < losses[0]
    assert len(trainer.validation_loss(windows())) == 4


class FineBrightening(Brightening):
    """The same, an action at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.spec = FINE


def test_success_inside_a_decision_ends_the_world_there() -> None:
    """Levels 70 and 0, each action adds 20 times its token, success is at 100: the first world needs two of three steps."""
    obs = FineBrightening()
    env = ImaginedWorlds(obs, Brightness(), encode=encode, threshold=0.5, reward="success", seed=0)
    frames = np.zeros((2, 1, 16, 16, 3), np.uint8)
    frames[0] = 70
    zero = np.zeros((2, 1, 1, 2), np.float32)
    env.reset(
        Levels({"top": frames}, np.zeros((2, 1, 2), np.float32), ["1", "1"], {"top": frames[:, None]}, zero)
    )
    chunk: NDArray[np.int16] = np.zeros((2, 3, 2), np.int16)
    chunk[:, :2, 0] = [[2, 1], [1, 2]]
    one = env.step(chunk)
    assert one.executed.tolist() == [1, 2]
    assert one.terminated.tolist() == [True, False]
    assert one.rewards.tolist() == [1, 0]
    assert one.observation.images["top"][:, 0, 0, 0].tolist() == [110, 60]
    assert one.observation.proprio[:, 0].tolist() == [1, 2]
    assert obs.rows == [2, 1]
    two = env.step(chunk)
    assert two.stepped.tolist() == [False, True]
    assert two.observation.images["top"][1, 0, 0, 0] == 120
    with pytest.raises(DataError, match="frames between decisions"):
        env.reset(Levels({"top": frames}, np.zeros((2, 1, 2), np.float32), ["1", "1"]))


def test_pretraining_and_a_run_in_env_steps(tmp_path: Path) -> None:
    """Demonstrations with all frames, a pretrained pair, two turns in both worlds, a report; and other models read the same
    dataset without them.
    """
    from platform.demos import write_demos
    from platform.pretrain import run
    from platform.report import write_report
    from platform.runner import Runner

    from configs.loader import load_config
    from configs.schema import DemosConfig, TrainConfig

    demos, models = tmp_path / "demos", tmp_path / "models"
    write_demos(load_config(DemosConfig, [f"out={demos}", "episodes=60", "frames_between=true"]))
    fine = ["world_model.obs_model.step=env_step", "world_model.obs_model.history=3"]
    budgets = [
        f"{name}_budget.{key}" for name in NAMES for key in ("updates=4", "validate_every=2", "batch=8")
    ]
    shared = [*POLICY, *MODELS, *fine]
    argv = [
        *shared, *budgets, "run.precision=no", "evaluation.online_trials=8", "evaluation.envs=8", f"data={demos}",
        f"out={models}",
    ]  # fmt: skip
    for name in ("obs_model", "reward_model", "policy"):
        assert main(run, "usage", argv=[name, *argv]) == 0
    settings = load_config(
        TrainConfig,
        ["real+imagined", *FAST, *shared, "host=serial", "run.stop.updates=2", f"data={demos}",
         f"policy.path={models / 'policy'}", f"world_model.path={models}"],
    )  # fmt: skip
    folder = tmp_path / "run"
    folder.mkdir()
    result = Runner(settings, folder).run(lambda outcome: write_report(settings, outcome, folder))
    assert result["updates"]["policy"] > 0
    assert result["imagined_steps"] > 0
    assert (folder / "media" / "film.png").is_file()
    plain = [text for text in argv if text not in fine and not text.startswith("out=")]
    assert main(run, "usage", argv=["obs_model", *plain, f"out={tmp_path / 'plain'}"]) == 0
