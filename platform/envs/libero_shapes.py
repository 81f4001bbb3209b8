"""Where things are and how large: points on the collision shapes of a body, and what stands around it."""

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

Points = NDArray[np.float64]
SPACING, MOST_PER_EDGE = 0.02, 16
"""Metres between points on a box, as far as this many on an edge reach: a finger must not fit between them unseen."""
RIM = 12
"""Points around a round shape."""
MESH_POINTS = 300
"""Vertices taken of a mesh: its extreme ones and some between."""
COLLISION = 0
"""Group of the shapes that touch; the other ones are only drawn."""


class Shapes:
    """Points ``[n, 3]`` of a model's bodies in their bodies' frames, gathered once; asked for in world coordinates."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._local: dict[int, tuple[int, Points]] = {}
        for geom in range(model.ngeom):
            points = _points(model, geom)
            if model.geom_group[geom] == COLLISION and points is not None:
                self._local[geom] = (int(model.geom_bodyid[geom]), points)
        self._root = _roots(model)

    def of(self, data: Any, body: int) -> Points:
        """Of ``body`` and all that hangs on it."""
        return self._world(data, [g for g, (owner, _) in self._local.items() if self._hangs_on(owner, body)])

    def others(self, data: Any, *, besides: set[int]) -> Points:
        """Of every body that hangs neither on one of ``besides`` nor on the world itself."""
        chosen = [
            geom for geom, (owner, _) in self._local.items()
            if owner and not any(self._hangs_on(owner, body) for body in besides)
        ]  # fmt: skip
        return self._world(data, chosen)

    def root(self, body: int) -> int:
        """The body below the world that ``body`` belongs to."""
        return self._root[body]

    def _hangs_on(self, body: int, ancestor: int) -> bool:
        while body and body != ancestor:
            body = int(self._model.body_parentid[body])
        return body == ancestor

    def _world(self, data: Any, geoms: list[int]) -> Points:
        if not geoms:
            return np.zeros((0, 3))
        parts = []
        for geom in geoms:
            rotation = data.geom_xmat[geom].reshape(3, 3)
            parts.append(self._local[geom][1] @ rotation.T + data.geom_xpos[geom])
        return np.concatenate(parts)


def _roots(model: Any) -> list[int]:
    return [int(root) for root in model.body_rootid]


def _points(model: Any, geom: int) -> Points | None:
    """In the shape's own frame; None for planes and height fields, which have no end."""
    kind, size = int(model.geom_type[geom]), model.geom_size[geom]
    types = mujoco.mjtGeom
    if kind == types.mjGEOM_MESH:
        mesh = model.geom_dataid[geom]
        begin, count = model.mesh_vertadr[mesh], model.mesh_vertnum[mesh]
        vertices: Points = np.array(model.mesh_vert[begin : begin + count], np.float64)
        return vertices[:: max(1, count // MESH_POINTS)]
    if kind == types.mjGEOM_BOX:
        return _box(size)
    if kind in (types.mjGEOM_CYLINDER, types.mjGEOM_CAPSULE):
        return _round(size[0], size[1] + (size[0] if kind == types.mjGEOM_CAPSULE else 0.0))
    if kind == types.mjGEOM_SPHERE:
        return _round(size[0], size[0])
    if kind == types.mjGEOM_ELLIPSOID:
        return _box(0.6 * size)
    return None


def _box(half: Points) -> Points:
    """On the surface of a box of these half lengths."""
    counts = np.clip(np.ceil(2 * half / SPACING).astype(int) + 1, 2, MOST_PER_EDGE)
    axes = [np.linspace(-length, length, count) for length, count in zip(half, counts, strict=True)]
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 3)
    outside = (np.abs(grid) >= half * (1 - 1e-9)).any(axis=1)
    surface: Points = grid[outside]
    return surface


def _round(radius: float, half_height: float) -> Points:
    angles = np.arange(RIM) * 2 * np.pi / RIM
    circle = np.stack([radius * np.cos(angles), radius * np.sin(angles), np.full(RIM, half_height)], axis=1)
    return np.concatenate([circle, circle * [1, 1, -1]])
