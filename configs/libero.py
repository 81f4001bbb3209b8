"""Config of the LIBERO environments."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Literal

from pydantic import Field

from configs.fields import NaturalInt, PositiveInt, component

LiberoCamera = Literal["agentview", "wrist"]


@component
class LiberoConfig:
    """A suite of LIBERO, simulated with MuJoCo; needs ``pip install 'reverie-rl[libero]'`` and OSMesa or EGL."""

    kind: Literal["libero"] = "libero"
    suite: str = "libero_spatial"
    """Any suite that the installed LIBERO has with its files: ``libero_spatial``, ``libero_object``, ``libero_goal``,
    ``libero_10``, ``libero_90``, and LIBERO-PRO's perturbed ones, such as ``libero_spatial_swap``."""
    tasks: list[NaturalInt] = field(default_factory=list)
    """Tasks of the suite by index; empty takes all. Each episode draws one of them."""
    cameras: Annotated[list[LiberoCamera], Field(min_length=1)] = field(default_factory=lambda: ["agentview"])
    """Each costs a drawing per decision; LIBERO's own protocol has both."""
    camera_size: PositiveInt = 64
    """Height and width of a frame as the policy sees it."""
    render_size: PositiveInt | None = None
    """Height and width at which frames are drawn before they are resized; none draws at ``camera_size``. LIBERO's own
    protocol draws at 256."""
    effects: bool = False
    """Draw shadows, reflections and every triangle, as LIBERO does. Without, corners of a shape that lie within a third of a
    pixel (at the objects' distance) are one: a frame takes a third to a half of the time."""
    starts: Literal["sampled", "init_states"] = "sampled"
    """``sampled``: objects and arm are placed anew for each seed, as LIBERO placed them for its own init states. ``init_states``:
    seed k starts from init state k of the suite's file, modulo their number. ``platform.evaluate`` always takes these, so
    that training and demonstrations on sampled starts never see what is judged."""
    settle_steps: NaturalInt = 10
    """Env steps without motion after each reset, outside of the budget."""
    max_episode_steps: PositiveInt | None = None
    """Env steps until truncation; none takes the suite's own budget (220, 280, 300, 520, 400)."""
    processes: PositiveInt = 2
    """Slots are dealt out to this many processes; the slots of one process step one after the other."""
    kept_tasks: PositiveInt = 1
    """Simulators that a slot keeps, one per task that it had last: making one takes seconds, keeping one a GB or more."""
    renderer: Literal["auto", "egl", "osmesa"] = "auto"
    """What draws: EGL on a GPU, OSMesa on the CPU; ``auto`` tries both in this order. ``MUJOCO_GL`` in the environment wins."""
