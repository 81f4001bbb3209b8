"""Draws a simulation's cameras, with or without the effects that double the time of a frame."""

from __future__ import annotations

import weakref
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from .gymnasium_env import resize_area
from .libero_detail import coarser, in_view

CAMERAS = {"agentview": "agentview", "wrist": "robot0_eye_in_hand"}
"""Our name of a camera to MuJoCo's."""
COLLISION, VISUAL, OUT_OF_VIEW = 0, 1, 5
"""robosuite's groups of shapes, and one that nobody uses."""
MOST_SHAPES = 1000
LEAST_PIXELS = 64
"""Smaller frames are drawn at this size and resized: at 32 px OSMesa left the last rows unwritten."""


class Drawing:
    """An off-screen picture of one model. Frames are MuJoCo's turned by 180°, as LIBERO's users expect them.

    Everything that belongs to the graphics library is freed by ``close``, or before the interpreter ends.
    """

    def __init__(self, model: Any, cameras: list[str], size: int, drawn_at: int, *, effects: bool) -> None:
        drawn_at = max(drawn_at, LEAST_PIXELS)
        self._model, self._size, self._drawn_at, self._effects = model, size, drawn_at, effects
        self._cameras = {
            name: mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_CAMERA, CAMERAS[name]) for name in cameras
        }
        model.vis.global_.offwidth = model.vis.global_.offheight = drawn_at
        self._gl = mujoco.GLContext(drawn_at, drawn_at)
        self._gl.make_current()
        self._scene = mujoco.MjvScene(model, maxgeom=MOST_SHAPES)
        for flag in (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION):
            self._scene.flags[flag] = int(effects)
        self._options = mujoco.MjvOption()
        for group, shown in ((COLLISION, 0), (VISUAL, 1), (OUT_OF_VIEW, 0)):
            self._options.geomgroup[group] = shown
        self._untouched = mujoco.MjvPerturb()
        self._view = mujoco.MjvCamera()
        self._view.type = mujoco.mjtCamera.mjCAMERA_FIXED
        shapes = model if effects else coarser(model, drawn_at)
        self._context = mujoco.MjrContext(shapes, mujoco.mjtFontScale.mjFONTSCALE_150)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._context)
        self._place = mujoco.MjrRect(0, 0, drawn_at, drawn_at)
        self.close = weakref.finalize(self, _free, self._gl, self._context)

    def draw(self, data: Any) -> dict[str, NDArray[np.uint8]]:
        """camera: ``[size, size, 3]``."""
        self._gl.make_current()
        return {name: self._draw(data, number) for name, number in self._cameras.items()}

    def _draw(self, data: Any, camera: int) -> NDArray[np.uint8]:
        self._view.fixedcamid = camera
        groups = self._model.geom_group
        if not self._effects:
            held = groups.copy()
            groups[~in_view(self._model, data, camera)] = OUT_OF_VIEW
        everything = mujoco.mjtCatBit.mjCAT_ALL
        mujoco.mjv_updateScene(
            self._model, data, self._options, self._untouched, self._view, everything, self._scene
        )
        if not self._effects:
            groups[:] = held
        mujoco.mjr_render(self._place, self._scene, self._context)
        frame = np.empty((self._drawn_at, self._drawn_at, 3), np.uint8)
        mujoco.mjr_readPixels(frame, None, self._place, self._context)
        return resize_area(frame[::-1, ::-1], self._size)


def _free(gl: Any, context: Any) -> None:
    gl.make_current()
    context.free()
    gl.free()
