"""Writes the schema down: ``--help`` of the commands, and ``docs/configuration.md`` by ``python -m configs.document``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from configs import introspect
from configs.introspect import REQUIRED, Field
from configs.loader import COMMANDS, config_to_dict, groups

PAGE = Path(__file__).parent.parent / "docs" / "configuration.md"
HEAD = """# Configuration

<!-- Written by `python -m configs.document`; edit the docstrings in `configs/` instead. -->

Every command reads its configuration from `configs/<command>.yaml`, the groups that it names, and the arguments:

```
python -m platform.train real+imagined env=tabletop_push algorithm=ppo algorithm.clip_low=0.1 run.seed=3
```

`group=choice` takes a file from `configs/<group>/`; `a.b=value` sets one key. A list is `[a,b]`, nothing is `null`. A
mistake ends the command before anything starts, in one line that names the key and the remedy. `--dry-run`, where a
command has it, shows the whole configuration and stops.
"""


def help_text(kind: type) -> str:
    """Groups and keys of root config ``kind`` with defaults and docstrings, for a terminal."""
    choices = groups(COMMANDS[kind].base)
    lines = ["groups (group=choice):"] if choices else []
    lines += [f"  {name}: {', '.join(words)}" for name, words in choices.items()]
    lines.append("keys (key=value):")
    for path, note, item in _keys(kind):
        lines.append(f"  {path}={_default(item)}  ({introspect.describe(item.annotation)}){note}")
        if item.doc:
            lines.append(f"      {item.doc}")
    return "\n".join(lines) + "\n"


def page() -> str:
    """``docs/configuration.md``."""
    parts = [HEAD]
    for kind, command in COMMANDS.items():
        parts.append(f"\n## `python -m platform.{command.base}`\n")
        if command.word is not None:
            allowed = introspect.choices(introspect.fields_of(kind)[command.word].annotation)
            parts.append(
                f"\nThe first argument is the {command.word}: {', '.join(f'`{word}`' for word in allowed)}.\n"
            )
        choices = groups(command.base)
        if choices:
            parts.append("\n| group | choices |\n|---|---|\n")
        for name, words in choices.items():
            parts.append(f"| `{name}` | {', '.join(f'`{word}`' for word in words)} |\n")
        parts.append("\n| key | default | allowed | meaning |\n|---|---|---|---|\n")
        for path, note, item in _keys(kind):
            cells = [
                f"`{path}`",
                f"`{_default(item)}`" if item.default is not REQUIRED else "required",
                introspect.describe(item.annotation),
                f"{item.doc.replace('``', '`')}{note}".strip(),
            ]
            parts.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n")
    return "".join(parts)


def _keys(kind: type) -> list[tuple[str, str, Field]]:
    """Keys that hold values, as (dotted path, note, field); a key that several choices of a group share is listed once.

    The note names the choices that have the key, where not all have it.
    """
    owners: dict[tuple[str, str, str], list[str]] = {}
    fields: dict[tuple[str, str, str], Field] = {}
    rivals: dict[str, int] = {}
    for path, owner, item in introspect.walk(kind):
        alternatives = introspect.components(item.annotation)
        rivals[path] = len(alternatives)
        chosen = introspect.tag(owner)
        if alternatives or (chosen is not None and chosen[0] == item.name):
            continue
        key = (path, _default(item), item.doc)
        fields.setdefault(key, item)
        owners.setdefault(key, []).extend([chosen[1]] if chosen is not None else [])
    notes = {
        key: f" [{', '.join(owners[key])}]"
        if len(owners[key]) < rivals.get(key[0].rpartition(".")[0], 0)
        else ""
        for key in fields
    }
    return [(key[0], notes[key] if owners[key] else "", item) for key, item in fields.items()]


def _default(item: Field) -> str:
    if item.default is REQUIRED:
        return "<required>"
    return json.dumps(item.default, default=config_to_dict)


def main() -> int:
    """Write the page; with ``--check`` only compare it."""
    if "--check" in sys.argv[1:]:
        return int(PAGE.read_text() != page())
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
