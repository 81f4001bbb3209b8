"""Model cards: what a model was trained on, for how long, and how good it is, as JSON and as a page for people."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from buffers.dataset import INDEX, Dataset
from buffers.index import is_held_out
from configs.world_model import WorldModelConfig

from .context import OBS_MODEL, POLICY
from .storage import read_json

CARD = "card.json"
PAGE = "README.md"
ABOUT = {
    "policy": "A vision-language-action policy, cloned from demonstrations, with a critic of their returns.",
    "obs_model": "A diffusion model of the next observation, given the last ones and the actions of a decision.",
    "reward_model": "The probability that a frame shows success, given the instruction.",
}


def data_facts(dataset: Dataset, folder: str, held_out: float) -> dict[str, Any]:
    """What was learned from: counts, and the hash of the dataset's own list of hashes where it has one."""
    records = dataset.records
    index = Path(folder) / INDEX
    return {
        "folder": folder,
        "sha256": hashlib.sha256(index.read_bytes()).hexdigest() if index.is_file() else None,
        "episodes": len(records),
        "held_out_episodes": sum(is_held_out(record.episode_id, held_out) for record in records),
        "decisions": sum(record.length for record in records),
        "env_steps": sum(record.env_steps for record in records),
        "success_share": round(sum(record.success for record in records) / max(1, len(records)), 4),
    }


def card_page(description: dict[str, Any], card: dict[str, Any]) -> str:
    """The card as Markdown, with the front matter that model hubs read."""
    name, env = description["model"], description["env"]
    lines = [
        "---", "library_name: reverie-rl", f"tags: [{name.replace('_', '-')}, robotics]", "---", "",
        f"# {name} for {env}", "", ABOUT[name], "",
        "Weights are in `model.safetensors`, what they fit in `config.json`, the numbers below in `card.json`.", "",
    ]  # fmt: skip
    for title, part in card.items():
        if title != "history" and part != {}:
            lines += [f"## {title.replace('_', ' ').capitalize()}", "", *_shown(part), ""]
    history = card.get("history")
    if history:
        lines += ["## Held-out loss", "", "| updates | loss |", "|---|---|"]
        lines += [f"| {step} | {loss:.5f} |" for step, loss in history]
        lines += [""]
    lines += ["## Config", "", "```json", json.dumps(description["config"], indent=1), "```", ""]
    return "\n".join(lines)


def _shown(part: Any) -> list[str]:
    if not isinstance(part, dict):
        return [_value(part)]
    return ["| | |", "|---|---|", *(f"| {key} | {value} |" for key, value in _flat(part))]


def _flat(part: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in part.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}, ")
        else:
            yield f"{prefix}{key}", _value(value)


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return ", ".join(_value(item) for item in value)
    return "–" if value is None else str(value)


def together_page(facts: dict[str, Any], table: str) -> str:
    """The page of a folder of models that were pretrained together: the data, each model in a line, their quality."""
    lines = ["# Pretrained models", "", "## Data", "", *_shown(facts["data"]), "", "## Models", ""]
    lines += ["| model | updates | held-out loss before | best | seconds |", "|---|---|---|---|---|"]
    for name, card in facts["models"].items():
        lines.append(
            f"| [{name}]({name}/{PAGE}) | {card['updates']} | {card['first_val_loss']:.4f} | "
            f"{card['best_val_loss']:.4f} | {card['wall_s']:.0f} |"
        )
    success = facts["models"][POLICY]["success"]
    if success:
        lines += ["", "## The cloned policy", "", "| choice | real, held-out starts | imagined, whole episodes |", "|---|---|---|"]  # fmt: skip
        for name, rate in success.items():
            both = (rate, facts["imagined_success"][name])
            lines.append(f"| {name} | " + " | ".join(f"{100 * r['rate']:.1f} % of {r['trials']}" for r in both) + " |")  # fmt: skip
        lines += [
            "",
            "Models that see no difference where the real rates differ have nothing to teach there.",
        ]
    lines += ["", "## Quality on held-out real episodes", "", table]
    return "\n".join(lines)


def untrained_loss(models: WorldModelConfig) -> float | None:
    """Held-out loss of M_obs before it was trained at all, on the scale of the loss beside the policy, from the card of the
    model that a run starts from; None where that does not tell.
    """
    folder = Path(str(models.path)) / OBS_MODEL
    if models.path is None or not (folder / CARD).is_file():
        return None
    card, stored = read_json(folder / CARD), read_json(folder / "config.json")
    consistent = models.obs_model.sampler == "consistency"
    if (stored["config"].get("sampler") == "consistency") != consistent:
        return None
    # A consistency model's first loss is its distance from the teacher; beside the policy there is none.
    # A checkpoint's card knows of no pretraining.
    known = card.get("quality", {}).get("untrained_loss", None if consistent else card.get("first_val_loss"))
    return None if known is None else float(known)
