"""Everything that only a GPU can show, in at most eight minutes on one: a VLA of OpenVLA-7B's true shape (random weights,
bfloat16) with the whole output layer and with the action tokens' rows alone: memory, inference step, training step with
LoRA; batches of the inference service launched kernel by kernel and as CUDA graphs; the observation model's training step
and sampling in float32, bfloat16 and FP8, eager and compiled.

Each part runs in a process of its own, which is ended when its time is over; what it measured until then is kept, and the
table says what could not be run, and why. ``--rehearse`` runs the same code with tiny shapes on the CPU, in seconds, and
says nothing about speed. ``--only``: names of parts. Needs ``pip install 'reverie-rl[vla]'``, for FP8 ``[fp8]`` too.
Writes results/gpu.json (not in a rehearsal); the last line is one JSON object. Exit code 1 where a part broke.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from gpu_machine import Machine, Row
from gpu_parts import PARTS

from configs.errors import ResourceError, ReverieError

RESULTS = Path(__file__).parent / "results"


def measured(name: str, machine: Machine) -> Iterator[Row]:
    """A part's rows; what the machine lacks becomes a row, and so does what CUDA or torch refused."""
    try:
        yield from PARTS[name].measure(name, machine)
    except torch.cuda.OutOfMemoryError:
        there = torch.cuda.get_device_properties(0).total_memory
        yield Row(name, "the rest", note=f"not run: {there / 1e9:.0f} GB of memory are too little")
    except ReverieError as error:
        yield Row(name, "the rest", note=f"not run: {error}")
    except RuntimeError as error:
        yield Row(name, "the rest", note=f"failed: {type(error).__name__}: {str(error).splitlines()[0]}")


def in_child(name: str) -> list[Row]:
    """A part in a process of its own: neither memory nor a broken CUDA context goes on to the next."""
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, __file__, "--part", name]
    limit = PARTS[name].seconds
    try:
        done = subprocess.run(
            command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=limit, check=False,
        )  # fmt: skip
        printed, ending = done.stdout, f"failed: it ended with {done.returncode}: {last_line(done.stderr)}"
        broke = done.returncode != 0
    except subprocess.TimeoutExpired as expired:
        printed, broke = text_of(expired.stdout), True
        ending = f"not run: {limit:.0f} s were over"
    rows = [Row(**json.loads(line)) for line in printed.splitlines() if line.startswith('{"part"')]
    return [*rows, Row(name, "the rest", note=ending)] if broke else rows


def text_of(output: Any) -> str:
    """What a child that was ended had printed: bytes, whatever was asked for; a torn last line is left out."""
    text = output.decode() if isinstance(output, bytes) else output or ""
    return text[: text.rfind("\n") + 1]


def last_line(text: str) -> str:
    """Of what a child wrote to its standard error."""
    lines = text.strip().splitlines()
    return lines[-1] if lines else "nothing was said"


def print_table(rows: list[Row]) -> None:
    """For people."""
    print(f"{'part':<12}{'what':<46}{'batch':>6}{'ms':>11}{'peak GB':>9}  note")
    for row in rows:
        numbers = (
            f"{row.batch or '':>6}",
            f"{row.milliseconds:>11.2f}" if row.milliseconds is not None else f"{'':>11}",
            f"{row.gigabytes:>9.2f}" if row.gigabytes is not None else f"{'':>9}",
        )
        print(f"{row.part:<12}{row.what:<46}{''.join(numbers)}  {row.note}".rstrip())


def described(machine: Machine) -> dict[str, Any]:
    """What was measured on."""
    if machine.device == "cpu":
        return {"device": "cpu", "torch": torch.__version__}
    properties = torch.cuda.get_device_properties(0)
    return {
        "device": properties.name, "memory_gb": properties.total_memory / 1e9, "torch": torch.__version__,
        "cuda": torch.version.cuda, "capability": "{}.{}".format(*torch.cuda.get_device_capability()),
    }  # fmt: skip


def require_gpu() -> None:
    """Raise ResourceError where there is none."""
    if not torch.cuda.is_available():
        built = "this torch is built for CPUs" if torch.version.cuda is None else "torch finds no GPU"
        raise ResourceError(
            f"no CUDA device on this machine ({built})", where="benchmarks/gpu.py",
            remedy="run it on a machine with a GPU, or try it out with --rehearse",
        )  # fmt: skip


def arguments(argv: list[str] | None) -> argparse.Namespace:
    """Of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rehearse", action="store_true", help="tiny shapes on the CPU")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS), metavar="PART")
    parser.add_argument("--part", choices=list(PARTS), help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Measure, print, save; the exit code."""
    given = arguments(argv)
    machine = Machine("cpu", True) if given.rehearse else Machine("cuda", False)
    try:
        if not given.rehearse:
            require_gpu()
    except ResourceError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    if given.part:
        for row in measured(given.part, machine):
            print(json.dumps(asdict(row)), flush=True)
        return 0
    rows = []
    for name in given.only:
        rows += list(measured(name, machine)) if given.rehearse else in_child(name)
    print_table(rows)
    result = {**described(machine), "rehearsal": given.rehearse, "rows": [asdict(row) for row in rows]}
    if not given.rehearse:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "gpu.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))
    return int(any(row.note.startswith("failed") for row in rows))


if __name__ == "__main__":
    sys.exit(main())
