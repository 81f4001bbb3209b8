"""The demonstrations command: what it writes is what the environment did."""

from __future__ import annotations

from pathlib import Path
from platform.context import Context
from platform.demos import run, summarise, write_demos
from platform.envs import make_env

import numpy as np
import pytest

from buffers.dataset import DatasetWriter, read_dataset
from configs.env import GymnasiumConfig, TabletopConfig
from configs.errors import DataError, EnvError
from configs.policy import SmallVLAConfig
from configs.schema import DemosConfig, NoiseLevel
from configs.world_model import WorldModelConfig

MIXED = TabletopConfig(tasks=["reach", "push", "pick_place"])


def demos(folder: Path, **fields: object) -> DemosConfig:
    return DemosConfig(**{"out": str(folder), "episodes": 24, "seed": 5, "env": MIXED, **fields})


def test_replaying_the_tokens_gives_the_recorded_episodes(tmp_path):
    config = demos(tmp_path / "d", policy=SmallVLAConfig(chunk=4, replan=3))
    write_demos(config)
    dataset = read_dataset(tmp_path / "d")
    tokenizer = Context(config.env, config.policy, WorldModelConfig(), 0, "cpu").tokenizer
    env = make_env(config.env, 1, chunk=4, replan=3)
    slot = np.zeros(1, np.int64)
    assert {record.task for record in dataset.records} == set(MIXED.tasks)
    for record in dataset.records:
        observation = env.reset(slot, np.array([record.seed]))
        assert record.instruction == observation.instructions[0]
        for step in range(record.length):
            np.testing.assert_array_equal(record.images["top"][step], observation.images["top"][0])
            np.testing.assert_array_equal(record.proprio[step], observation.proprio[0])
            result = env.step(slot, tokenizer.decode(record.tokens[step])[None])
            np.testing.assert_array_equal(record.valid[step], result.valid[0])
            assert record.rewards[step] == result.chunk_rewards(config.gamma)[0]
            observation = result.observation
        np.testing.assert_array_equal(record.images["top"][-1], observation.images["top"][0])
        assert record.terminated == record.success == bool(result.terminated[0])
        assert record.truncated == bool(result.truncated[0])
        assert record.source == "demonstration"
        assert not record.valid[:, 3:].any()


def test_an_episode_depends_on_its_seed_and_not_on_the_slots(tmp_path):
    write_demos(demos(tmp_path / "wide", envs=24))
    write_demos(demos(tmp_path / "narrow", envs=5))
    wide, narrow = (
        {r.episode_id: r for r in read_dataset(tmp_path / name).records} for name in ("wide", "narrow")
    )
    assert sorted(wide) == sorted(narrow) == list(range(24))
    for number, record in wide.items():
        assert record.seed == 5 + number
        np.testing.assert_array_equal(record.tokens, narrow[number].tokens)
        np.testing.assert_array_equal(record.images["top"], narrow[number].images["top"])


def test_noise_levels_have_their_shares_and_their_effect(tmp_path):
    levels = [
        NoiseLevel(share=3.0, action_noise=0.05),
        NoiseLevel(share=1.0, action_noise=0.2, random_decisions=1.0),
    ]
    config = demos(tmp_path / "d", episodes=400, noise=levels, env=TabletopConfig(tasks=["pick_place"]))
    summary = write_demos(config)
    calm, wild = summary.levels
    assert abs(calm.episodes / 400 - 0.75) < 0.07
    assert calm.successes / calm.episodes > 0.95
    assert wild.successes / wild.episodes < 0.2
    dataset = read_dataset(tmp_path / "d")
    assert sum(r.extra["noise_level"] == 1.0 for r in dataset.records) == wild.episodes
    assert summary.env_steps == sum(r.env_steps for r in dataset.records)
    assert dataset.info["instructions"] == list(
        Context(config.env, config.policy, WorldModelConfig(), 0, "cpu").env_spec.instructions
    )
    text = summarise(config, summary)
    assert f"{calm.successes / calm.episodes:.0%}" in text
    assert str(summary.env_steps) in text


def test_only_the_tabletop_has_an_expert(tmp_path):
    with pytest.raises(EnvError, match="no scripted expert"):
        write_demos(demos(tmp_path / "d", env=GymnasiumConfig(id="Pendulum-v1")))
    assert not list(tmp_path.iterdir())


def test_an_existing_folder_is_kept(tmp_path):
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "mine.txt").write_text("keep")
    with pytest.raises(DataError, match="exists"):
        write_demos(demos(tmp_path / "d"))
    assert [p.name for p in tmp_path.rglob("*")] == ["d", "mine.txt"]


def test_an_error_half_way_leaves_nothing(tmp_path, monkeypatch):
    def full(self, record):
        raise DataError("it broke")

    monkeypatch.setattr(DatasetWriter, "add", full)
    with pytest.raises(DataError, match="it broke"):
        write_demos(demos(tmp_path / "d"))
    assert not list(tmp_path.iterdir())


def test_the_command_prints_a_summary(tmp_path, capsys):
    assert run([f"out={tmp_path / 'd'}", "episodes=8", "env.tasks=[reach]"]) == 0
    assert "8 episodes" in capsys.readouterr().out
    assert len(read_dataset(tmp_path / "d").records) == 8
