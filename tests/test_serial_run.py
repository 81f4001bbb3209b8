"""The running system on the serial host: deterministic, resumable, right in every mode."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.run_helper import assert_same_training, config, write_demos


def run(folder: Path, mode: str, *overrides: str, resume: bool = False) -> dict[str, Any]:
    """Run in this process on the serial host; the states of its last checkpoint."""
    from platform.checkpoint import read_checkpoint
    from platform.report import summary
    from platform.runner import Runner

    folder.mkdir(exist_ok=True)
    settings = config(mode, "host=serial", *overrides)
    resumed = read_checkpoint(folder / "checkpoints") if resume else None
    result = Runner(settings, folder, resumed).run(lambda outcome: summary(settings, outcome))
    return {**read_checkpoint(folder / "checkpoints")[1], "summary": result}


def assert_equal(a: Any, b: Any, path: str = "") -> None:
    """The same tree, bit for bit."""
    import torch

    assert type(a) is type(b), path
    if isinstance(a, dict):
        assert list(a) == list(b), path
        for key in a:
            assert_equal(a[key], b[key], f"{path}/{key}")
    elif isinstance(a, list):
        assert len(a) == len(b), path
        for index, (x, y) in enumerate(zip(a, b, strict=True)):
            assert_equal(x, y, f"{path}/{index}")
    elif isinstance(a, np.ndarray):
        assert np.array_equal(a, b), path
    elif isinstance(a, torch.Tensor):
        assert torch.equal(a, b), path
    else:
        assert a == b, path


ROLES = (
    "store", "b_real", "b_img", "inference_0", "rollout_0", "imagination", "policy_learner", "obs_model_learner",
    "reward_model_learner", "evaluator",
)  # fmt: skip


@pytest.fixture(scope="module")
def demos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_demos(tmp_path_factory.mktemp("data") / "demos")


def test_one_seed_gives_one_run_and_a_resumed_run_is_the_same_run(demos: Path, tmp_path: Path) -> None:
    both = ("real+imagined", f"data={demos}", "evaluation.every=3", "evaluation.quality_every=2")
    whole = run(tmp_path / "a", *both, "run.stop.updates=6")
    again = run(tmp_path / "b", *both, "run.stop.updates=6")
    run(tmp_path / "c", *both, "run.stop.updates=3")
    resumed = run(tmp_path / "c", *both, "run.stop.updates=6", resume=True)
    other = run(tmp_path / "d", *both, "run.stop.updates=6", "run.seed=1")
    for name in ROLES:
        assert_equal(whole[name], again[name], f"again/{name}")
        assert_equal(whole[name], resumed[name], f"resumed/{name}")
    assert not np.array_equal(
        whole["policy_learner"]["policy"]["actor.queries"], other["policy_learner"]["policy"]["actor.queries"]
    )
    assert whole["policy_learner"]["turns"] == resumed["policy_learner"]["turns"] == 6


def test_a_run_resumed_while_episodes_end_under_the_old_version_is_the_same_run(tmp_path: Path) -> None:
    paced = ("real", "sync=async", "staleness.on_violation=wait", "staleness.bound=1", "rollout.group=2")
    whole = run(tmp_path / "a", *paced, "run.stop.updates=9")
    run(tmp_path / "b", *paced, "run.stop.updates=4")
    resumed = run(tmp_path / "b", *paced, "run.stop.updates=9", resume=True)
    for name in ("store", "b_real", "inference_0", "rollout_0", "policy_learner"):
        assert_equal(whole[name], resumed[name], name)


@pytest.mark.parametrize("mode", ["real", "imagined", "real+imagined"])
def test_each_mode_trains_on_what_it_names(demos: Path, tmp_path: Path, mode: str) -> None:
    states = run(tmp_path / "run", mode, f"data={demos}", "run.stop.updates=4", "algorithm.critic_warm_up=0")
    real = states["b_real"]["lifecycle"]
    assert states["policy_learner"]["turns"] == 4
    assert ("imagination" in states) == (mode != "real")
    assert ("obs_model_learner" in states) == (mode != "real")
    assert states["summary"]["real_steps"]["online"] > 0
    assert (states["summary"]["imagined_steps"] > 0) == (mode != "real")
    assert real["ended"] or real["samples"]
    assert states["summary"]["real_steps"]["demonstrations"] > 0


def test_shut_imagination_trains_the_models_until_it_opens(demos: Path, tmp_path: Path) -> None:
    from platform.metrics import read_rows

    # Untrained models never agree this well: the gate stays shut, and only the models learn.
    states = run(
        tmp_path / "run", "imagined", f"data={demos}", "imagination.gate.enabled=true",
        "imagination.gate.min_agreement=1.0", "imagination.gate.max_false_success=0.0",
        "evaluation.quality_every=2", "run.stop.wall_s=8", "run.log_every_s=0.5", "run.stop.updates=100000",
    )  # fmt: skip
    assert states["summary"]["imagined_steps"] == 0
    assert states["summary"]["updates"]["obs_model"] > 3
    assert states["summary"]["updates"]["reward_model"] > 3
    rows = [row for row in read_rows(tmp_path / "run" / "metrics.jsonl") if "quality/by_horizon" in row]
    assert rows[-1]["quality/by_horizon"][0]["windows"] > rows[0]["quality/by_horizon"][0]["windows"]


def test_frozen_models_need_no_environment(demos: Path, tmp_path: Path) -> None:
    states = run(
        tmp_path / "run", "imagined", f"data={demos}", "world_model.frozen=true", "run.stop.updates=3"
    )
    assert "rollout_0" not in states
    assert "obs_model_learner" not in states
    assert states["summary"]["real_steps"]["online"] == 0
    assert states["summary"]["imagined_steps"] > 0


def test_learning_rate_zero_without_lag_changes_nothing(tmp_path: Path) -> None:
    from platform.metrics import read_rows

    states = run(
        tmp_path / "run", "real", "run.stop.updates=3", "algorithm.learning_rate=0.0", "sync=on_policy",
        "algorithm.critic_warm_up=0", "buffers.real.reuse_limit=1", "algorithm.kl_anchor=0.0", "algorithm.entropy=0.0",
        "run.log_every_s=0.001",
    )  # fmt: skip
    rows = [row for row in read_rows(tmp_path / "run" / "metrics.jsonl") if "policy/ratio_mean" in row]
    assert rows
    for row in rows:
        assert abs(row["policy/ratio_mean"] - 1) < 1e-5
        assert abs(row["policy/gipo_weight_mean"] - 1) < 1e-5
        assert row["policy/behav_approx_kl"] < 1e-8
        assert row["staleness/lag_max"] == 0
    first, last = states["store"]["weights"]["anchor"]["arrays"], states["policy_learner"]["policy"]
    for name, array in first.items():
        if name.startswith("actor."):
            assert np.array_equal(array, last[name]), name


def test_lag_never_exceeds_the_bound_and_is_never_negative(tmp_path: Path) -> None:
    from platform.metrics import read_rows

    run(tmp_path / "run", "real", "run.stop.updates=8", "staleness.bound=1", "run.log_every_s=0.001")
    rows = [row for row in read_rows(tmp_path / "run" / "metrics.jsonl") if "staleness/lag_max" in row]
    assert rows
    assert all(0 <= row["staleness/lag_mean"] <= row["staleness/lag_max"] for row in rows)


@pytest.mark.parametrize("sync", ["on_policy", "stream", "async", "async_partial"])
def test_an_episode_has_one_version_unless_it_goes_on_under_new_ones(tmp_path: Path, sync: str) -> None:
    from platform.metrics import read_rows

    states = run(
        tmp_path / "run", "real", f"sync={sync}", "run.stop.updates=12", "algorithm.critic_warm_up=0",
        "run.log_every_s=0.001",
    )  # fmt: skip
    rows = [row for row in read_rows(tmp_path / "run" / "metrics.jsonl") if "staleness/lag_max" in row]
    ratios = [row["staleness/partial_ratio"] for row in rows]
    assert all(0 <= ratio <= 1 for ratio in ratios)
    assert (max(ratios) > 0) == (sync == "async_partial")
    assert (max(row["staleness/max_partial_span"] for row in rows) > 0) == (sync == "async_partial")
    if sync == "on_policy":
        assert max(row["staleness/lag_max"] for row in rows) == 0
    items = states["b_real"]["shelf"]["items"]
    assert sync == "async_partial" or all(i["oldest_version"] == i["newest_version"] for i in items)
    assert max(item["newest_version"] for item in items) > 0


@pytest.mark.parametrize("on_violation", ["mask", "cut", "drop", "wait"])
def test_no_decision_beyond_the_bound_trains(tmp_path: Path, on_violation: str) -> None:
    from platform.metrics import read_rows

    run(
        tmp_path / "run", "real", "run.stop.updates=12", "algorithm.critic_warm_up=0", "staleness.bound=1",
        f"staleness.on_violation={on_violation}", "staleness.budget=3.0", "run.log_every_s=0.001",
    )  # fmt: skip
    rows = [row for row in read_rows(tmp_path / "run" / "metrics.jsonl") if "staleness/lag_max" in row]
    assert len(rows) > 3
    if on_violation != "mask":
        assert max(row["staleness/lag_max"] for row in rows) <= 1
    dropped = max(row["staleness/dropped"] for row in rows)
    assert (dropped > 0) == (on_violation != "wait")
    assert (max(row["staleness/publish_waits"] for row in rows) > 0) == (on_violation == "wait")


def test_a_turn_has_its_on_policy_share(tmp_path: Path) -> None:
    from platform.metrics import read_rows

    run(
        tmp_path / "run", "real", "run.stop.updates=8", "staleness.on_policy_min_ratio=0.5", "staleness.budget=2.0",
        "sync.store_size=64", "run.log_every_s=0.0001",
    )  # fmt: skip
    rows = [row for row in read_rows(tmp_path / "run" / "metrics.jsonl") if "staleness/lag_max" in row]
    for row in rows:
        assert row["staleness/stale_samples_processed"] <= 0.5 * row["policy/batch_decisions"]


def test_groups_start_alike_and_are_trained_together(tmp_path: Path) -> None:
    states = run(tmp_path / "run", "real", "run.stop.updates=6", "rollout.group=4", "rollout.envs=6")
    facts = [item["facts"] for item in states["b_real"]["shelf"]["items"]]
    seeds = Counter(fact["seed"] for fact in facts)
    assert max(seeds.values()) == 4
    assert all(len({f["task"] for f in facts if f["seed"] == seed}) == 1 for seed in seeds)
    samples = states["b_real"]["lifecycle"]["samples"]
    for group in {sample["group"] for sample in samples}:
        uses = {s["uses"] for s in samples if s["group"] == group}
        assert len(uses) == 1, "a group is consumed together"


def test_on_policy_training_does_not_depend_on_who_collects_when(tmp_path: Path) -> None:
    paced = ("real", "sync=on_policy", "run.stop.updates=3", "algorithm.critic_warm_up=0")
    one = run(tmp_path / "a", *paced, "rollout.envs=8")
    two = run(tmp_path / "b", *paced, "rollout.workers=3", "rollout.envs=1")
    assert_same_training(one, two, 3)


def test_segments_of_an_episode_follow_each_other_and_train_before_it_ends(tmp_path: Path) -> None:
    from platform.metrics import read_rows

    paced = ("real", "rollout.segment=5", "env.max_episode_steps=48", "run.log_every_s=0.001")
    states = run(tmp_path / "a", *paced, "run.stop.updates=8")
    run(tmp_path / "b", *paced, "run.stop.updates=3")
    resumed = run(tmp_path / "b", *paced, "run.stop.updates=8", resume=True)
    for name in ("b_real", "rollout_0", "policy_learner"):
        assert_equal(states[name], resumed[name], name)
    shelf, row = states["b_real"]["shelf"], 0
    frames = shelf["columns"]["proprio"]
    ends: dict[int, Any] = {}
    lengths: dict[int, list[int]] = {}
    for item in shelf["items"]:
        facts = item["facts"]
        episode = facts["episode_id"]
        assert facts["is_first"] == (episode == item["id"])
        if not facts["is_first"]:
            assert np.array_equal(frames[row], ends[episode]), "it goes on where it was cut"
        assert facts["is_last"] == (facts["terminated"] or facts["truncated"])
        row += item["length"] + 1
        ends[episode] = frames[row - 1]
        lengths.setdefault(episode, []).append(item["length"])
    assert [5, 5, 2] in lengths.values(), "twelve decisions in segments of five"
    assert all(length == 5 for parts in lengths.values() for length in parts[:-1])
    rows = read_rows(tmp_path / "a" / "metrics.jsonl")
    assert max(row["env/length"] for row in rows if "env/length" in row) > 5 * 4, (
        "env steps of whole episodes"
    )
    first = next(row for row in rows if row.get("policy/turns", 0) >= 1)
    assert first["real_steps"] < 8 * 48, "it trained before any episode could end"


def test_versions_start_at_zero_and_count_publishes(tmp_path: Path) -> None:
    states = run(tmp_path / "run", "real", "run.stop.updates=4", "sync.updates_per_publish=2")
    assert states["policy_learner"]["version"] == 2
    assert states["store"]["weights"]["policy"]["version"] == 2


def test_a_torn_newest_checkpoint_is_skipped_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from platform.checkpoint import complete, read_checkpoint

    folder = tmp_path / "run"
    run(folder, "real", "run.stop.updates=4", "run.checkpoint_every=2")
    newest = complete(folder / "checkpoints")[-1]
    weights = newest / "policy" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    step, _ = read_checkpoint(folder / "checkpoints")
    assert step == 2
    assert "torn" in caplog.text


def test_slots_that_overlap_give_the_run_of_slots_in_turn(tmp_path: Path) -> None:
    env = (
        "env=gymnasium", "env.id=platform.envs.tabletop:reverie/Tabletop-v0", "env.image=observation",
        "env.image_key=image", "env.proprio_key=proprio", "env.camera_size=32", "rollout.envs=4",
        "run.stop.updates=2", "evaluation.trials=2", "evaluation.envs=2",
    )  # fmt: skip
    turns = run(tmp_path / "turns", "real", *env, "env.overlap=none")
    threads = run(tmp_path / "threads", "real", *env, "env.overlap=threads")
    assert_equal(turns["policy_learner"], threads["policy_learner"])
    assert_equal(turns["b_real"], threads["b_real"])


def test_task_sampling_by_failures_resumes_bit_for_bit(tmp_path: Path) -> None:
    tasks = ("env.tasks=[reach,push]", "rollout.task_sampling=failures", "evaluation.trials=2")
    whole = run(tmp_path / "a", "real", *tasks, "run.stop.updates=4")
    run(tmp_path / "b", "real", *tasks, "run.stop.updates=2")
    resumed = run(tmp_path / "b", "real", *tasks, "run.stop.updates=4", resume=True)
    for name in ("b_real", "rollout_0", "policy_learner"):
        assert_equal(whole[name], resumed[name], name)
    assert any(whole["rollout_0"]["outcomes"].values())
