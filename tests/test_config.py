"""Reading configs: what is composed, and that every mistake is one line that names the key and the remedy."""

import dataclasses
import json
import math
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs import introspect
from configs.algorithm import PPOConfig
from configs.document import PAGE, help_text, page
from configs.env import GymnasiumConfig, TabletopConfig
from configs.errors import ConfigError
from configs.loader import (
    COMMANDS,
    config_from_dict,
    config_from_yaml,
    config_to_dict,
    groups,
    load_config,
    to_yaml,
)
from configs.mistakes import FOREIGN
from configs.schema import DemosConfig, EvaluateConfig, Mode, PretrainConfig, TrainConfig
from configs.system import SerialHostConfig
from configs.world_model import LinearHorizonConfig


def test_without_arguments_the_schema_defaults_hold() -> None:
    assert load_config(DemosConfig, []) == DemosConfig()
    assert load_config(EvaluateConfig, []) == EvaluateConfig()
    assert load_config(PretrainConfig, ["all", "data=d"]) == PretrainConfig(what="all", data="d")


@pytest.mark.parametrize("mode", get_args(Mode))
def test_first_word_is_the_mode(mode: Mode) -> None:
    config = load_config(TrainConfig, [mode])
    assert config == TrainConfig(mode=mode)
    assert load_config(TrainConfig, [f"mode={mode}"]) == config


def test_groups_and_keys_compose() -> None:
    config = load_config(
        TrainConfig,
        [
            "real+imagined",
            "env=tabletop_push",
            "algorithm=ppo",
            "host=serial",
            "imagination/schedule=linear",
            "algorithm.clip_low=1e-1",
            "algorithm.dual_clip=null",
            "imagination.schedule.end=20",
            "run.dir=/tmp/a-b/c_d",
            "policy.stem_channels=[8,16]",
        ],
    )
    assert config.env == TabletopConfig(tasks=["push"])
    assert config.algorithm == PPOConfig(clip_low=0.1, dual_clip=None)
    assert config.host == SerialHostConfig()
    assert config.imagination.schedule == LinearHorizonConfig(end=20)
    assert config.run.dir == "/tmp/a-b/c_d"
    assert config.policy.stem_channels == [8, 16]


@pytest.mark.parametrize(
    ("sync", "publish", "ahead", "partial"),
    [
        ("on_policy", 1, 0.0, False),
        ("stream", 4, 0.0, False),
        ("async", 1, 1.0, False),
        ("async_partial", 1, 1.0, True),
    ],
)
def test_sync_presets_pace_both_sections(sync: str, publish: int, ahead: float, partial: bool) -> None:
    config = load_config(TrainConfig, ["real", f"sync={sync}"])
    assert (config.sync.updates_per_publish, config.staleness.budget) == (publish, ahead)
    assert config.sync.partial == partial


def test_a_partial_section_keeps_the_rest_of_its_own_default() -> None:
    """``buffers.imagined`` has defaults other than its class's; setting one key must not bring back the class's."""
    config = load_config(TrainConfig, ["real", "buffers.imagined.max_bytes=5"])
    default = TrainConfig(mode="real").buffers.imagined
    assert config.buffers.imagined == dataclasses.replace(default, max_bytes=5)
    assert default.reuse_limit != type(default)().reuse_limit
    assert (
        load_config(PretrainConfig, ["all", "data=d", "policy_budget.updates=3"]).policy_budget.batch == 128
    )


def test_a_section_of_another_kind_takes_nothing_from_the_default() -> None:
    config = load_config(TrainConfig, ["real", "env=gymnasium", "env.id=CartPole-v1"])
    assert config.env == GymnasiumConfig(id="CartPole-v1")


@pytest.mark.parametrize("kind", COMMANDS)
def test_every_choice_of_every_group_is_valid(kind: type) -> None:
    command = COMMANDS[kind]
    required = {"train": ["real"], "pretrain": ["all", "data=d"], "import": ["data=d"]}
    first = required.get(command.base, [])
    for group, words in groups(command.base).items():
        assert words
        for word in words:
            assert isinstance(load_config(kind, [*first, f"{group}={word}"]), kind)


MISTAKES = [
    ("", "mode is missing: put one of real, imagined, real+imagined first"),
    ("rael", "mode=rael does not fit: did you mean real? allowed: one of real, imagined, real+imagined"),
    ("real env.blokcs=3", "env.blokcs is no known key: did you mean env.blocks?"),
    ("real enw.blocks=3", "enw is no known key: did you mean env?"),
    ("real hydra.run.dir=x", "hydra is no known key: known here: mode, data, env"),
    ("real env@x=tabletop", "env@x is no known key"),
    ("real sync.zzz=1", "sync.zzz is no known key: known here: batches_per_update, updates_per_publish"),
    (
        "real env=tabletopp",
        "env=tabletopp is no choice: did you mean tabletop? choices: gymnasium, libero_10",
    ),
    ("real preset=fast", "preset=fast is no choice: choices: "),
    (
        "real imagination.schedule=linear",
        "imagination.schedule is a group: write imagination/schedule=<drift|fixed|linear",
    ),
    ("real algorithm.dual_clip=2.0", "algorithm.dual_clip belongs to algorithm=ppo: choose algorithm=ppo"),
    ("real algorithm.gamma=2", "algorithm.gamma=2 does not fit: allowed: number above 0 and at most 1"),
    ("real algorithm.gamma=fast", "algorithm.gamma=fast does not fit: allowed: number above 0 and at most 1"),
    (
        "real algorithm.learning_rate=nan",
        "algorithm.learning_rate=NaN does not fit: allowed: number at least 0",
    ),
    (
        "real algorithm.learning_rate=inf",
        "algorithm.learning_rate=Infinity does not fit: allowed: number at least 0",
    ),
    ("real env.blocks=2.5", "env.blocks=2.5 does not fit: allowed: whole number at least 1 and at most 5"),
    ("real env.blocks=true", "env.blocks=true does not fit: allowed: whole number at least 1 and at most 5"),
    ("real env.blocks=null", "env.blocks=null does not fit: allowed: whole number at least 1 and at most 5"),
    ("real env.camera_size=48", "env.camera_size=48 does not fit: "),
    ("real env.camera_size.x=48", 'env.camera_size={"x": 48} does not fit: allowed: one of 32, 64'),
    (
        "real env.tasks=[]",
        "env.tasks=[] does not fit: allowed: list (at least 1) of one of reach, push, pick_place",
    ),
    ("real env.tasks=[push,pus]", "env.tasks[1]=pus does not fit: did you mean push?"),
    ("real env.kind=foo", "env.kind=foo does not fit: allowed: one of tabletop, gymnasium"),
    ("real run.name=12", "run.name=12 does not fit: allowed: text, written run.name='\"12\"'"),
    ("real run.stop=3", "run.stop=3 does not fit: allowed: a section, for example run.stop.updates=<value>"),
    ("real run=null", "run=null does not fit: allowed: a section"),
    (
        "real run.stop.success=1.5",
        "run.stop.success=1.5 does not fit: allowed: number at least 0 and at most 1 or null",
    ),
    ("real track.wandb=offf", "track.wandb=offf does not fit: did you mean off?"),
    ("real algorithm.batch=100", "algorithm.batch=100 does not divide by algorithm.micro_batch=512"),
    ("real algorithm.batch=1,2", "algorithm.batch=1,2 gives several values: give one"),
    ("real batch", "cannot read the argument 'batch': write key=value or group=choice"),
    ("real =3", "cannot read the argument '=3': write key=value or group=choice"),
    ("real ~env", "~env deletes a key: leave it out"),
    ("real env.instruction=a(b", "cannot read 'env.instruction=a(b', "),
    ("real run.device=${nowhere}", "cannot compose the config, "),
    ("real world_model.frozen=true", "world_model.frozen=true has no real environment"),
    ("real imagination.schedule.start=60", "imagination.schedule.start=60 is above end=50"),
    ("real policy.replan=9", "policy.replan=9 is larger than policy.chunk=4"),
]


@pytest.mark.parametrize(("line", "expected"), MISTAKES, ids=[line for line, _ in MISTAKES])
def test_a_mistake_is_one_line_with_key_and_remedy(line: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(TrainConfig, line.split())
    assert str(caught.value).startswith(expected)
    assert "\n" not in str(caught.value)
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        (
            "noise=[{share: 1, action_noise: -2}]",
            "noise[0].action_noise=-2 does not fit: allowed: number at least 0",
        ),
        (
            "noise=[{share: 1, action_noise: 2, x: 1}]",
            "noise[0].x is no known key: known here: share, action_noise",
        ),
        (
            "noise=[{share: 1.0}]",
            "noise[0].action_noise is missing: give noise[0].action_noise=<number at least 0>",
        ),
        ("algorithm=ppo", "algorithm is no known key: known here: out, episodes"),
        ("preset=quickstart", "preset is no known key"),
    ],
)
def test_mistakes_inside_lists_and_of_another_command(argument: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(DemosConfig, [argument])
    assert str(caught.value).startswith(expected)


def test_required_key_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^data is missing: give data=<text>$"):
        load_config(PretrainConfig, ["all"])


@pytest.mark.parametrize(
    "safe",
    [
        ["staleness.bound=0", "sync=on_policy"],
        ["algorithm.anchor=behaviour"],
    ],
)
def test_behave_weight_is_optional_where_nothing_is_stale(safe: list[str]) -> None:
    arguments = ["real", "algorithm=decoupled_ppo", "algorithm.behave_weight=false"]
    load_config(TrainConfig, [*arguments, *safe])
    with pytest.raises(ConfigError, match="stale data uncorrected"):
        load_config(TrainConfig, [*arguments, "staleness.bound=0", "sync=stream"])


@pytest.mark.parametrize("word", FOREIGN)
def test_keys_of_other_systems_name_ours(word: str) -> None:
    with pytest.raises(ConfigError, match="another system's name") as caught:
        load_config(TrainConfig, ["real", f"staleness.{word}=1"])
    known = {path for path, _, _ in introspect.walk(TrainConfig)}
    for ours in FOREIGN[word]:
        assert ours.key in known
        assert ours.key in str(caught.value)


def test_page_for_newcomers_names_every_key_of_other_systems() -> None:
    text = (PAGE.parent / "coming-from.md").read_text()
    for word, counterparts in FOREIGN.items():
        assert f"`{word}`" in text
        for ours in counterparts:
            assert f"`{ours.key}`" in text


def test_yaml_restores_every_command(tmp_path: Any) -> None:
    for kind, config in [
        (
            TrainConfig,
            load_config(TrainConfig, ["imagined", "algorithm=ppo", "track.wandb=off", "run.name='\"1e-5\"'"]),
        ),
        (DemosConfig, DemosConfig()),
        (PretrainConfig, PretrainConfig(what="all", data="d")),
        (EvaluateConfig, EvaluateConfig()),
    ]:
        path = tmp_path / "config.yaml"
        path.write_text(to_yaml(config))
        assert config_from_yaml(kind, path) == config


@settings(max_examples=20, deadline=None)
@given(
    rate=st.floats(0, 1e6, allow_nan=False),
    name=st.text(st.characters(codec="utf-8", exclude_categories=["C"]), max_size=20),
    kwargs=st.dictionaries(
        st.text(st.characters(codec="ascii"), max_size=5), st.integers() | st.booleans() | st.none()
    ),
)
def test_dictionary_and_yaml_keep_any_value(rate: float, name: str, kwargs: dict[str, Any]) -> None:
    import yaml

    config = TrainConfig(
        mode="real", env=GymnasiumConfig(kwargs=kwargs), algorithm=PPOConfig(learning_rate=rate)
    )
    config.run.name = name
    assert config_from_dict(TrainConfig, config_to_dict(config)) == config
    assert config_from_dict(TrainConfig, yaml.safe_load(to_yaml(config))) == config
    assert json.loads(json.dumps(config_to_dict(config))) == config_to_dict(config)


def test_a_broken_config_file_is_one_line(tmp_path: Any) -> None:
    path = tmp_path / "config.yaml"
    with pytest.raises(ConfigError, match="no config file"):
        config_from_yaml(TrainConfig, path)
    for text, expected in [
        ("a: [", "not YAML"),
        ("- 1", "not a mapping"),
        ("mode: real\nx: 1", "x is no known key"),
    ]:
        path.write_text(text)
        with pytest.raises(ConfigError, match=expected) as caught:
            config_from_yaml(TrainConfig, path)
        assert "\n" not in str(caught.value)


def test_every_key_is_documented_and_its_default_is_allowed() -> None:
    for kind in COMMANDS:
        for path, owner, item in introspect.walk(kind):
            chosen = introspect.tag(owner)
            is_tag = chosen is not None and chosen[0] == item.name
            is_word = path == COMMANDS[kind].word
            assert item.doc or is_tag or is_word or introspect.components(item.annotation), (
                f"{path} has no docstring"
            )
            assert introspect.describe(item.annotation)
            if isinstance(item.default, float):
                assert math.isfinite(item.default)


def test_configuration_page_is_current() -> None:
    assert PAGE.read_text() == page(), "run python -m configs.document"


def test_help_lists_groups_and_keys_with_defaults() -> None:
    text = help_text(TrainConfig)
    assert "imagination/schedule: drift, fixed, linear, uncertain, validated" in text
    assert "buffers.imagined.reuse_limit=1  (whole number above 0)" in text
    assert "buffers.real.reuse_limit=2  (whole number above 0)" in text
