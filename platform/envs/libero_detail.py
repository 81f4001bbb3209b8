"""Shapes without what no pixel shows: LIBERO's scanned objects have more triangles than a frame has pixels."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

VIEW = 1.0
"""Metres across a frame of LIBERO's agentview at the objects' distance."""
SHARE_OF_PIXEL = 0.3


def coarser(model: Any, pixels: int) -> Any:
    """A copy of MuJoCo's ``model`` to draw frames of ``pixels`` a side from: vertices of a mesh that lie in one cell of a
    third of a pixel are one, and triangles that thereby have no area are gone (vertex clustering, Rossignac and Borrel
    1993). Vertices keep their places and numbers, so whatever refers to them still fits.
    """
    drawn = copy.copy(model)
    cell = SHARE_OF_PIXEL * VIEW / pixels
    for mesh in range(model.nmesh):
        vertices = _rows(model.mesh_vertadr[mesh], model.mesh_vertnum[mesh])
        faces = _rows(model.mesh_faceadr[mesh], model.mesh_facenum[mesh])
        corners = one_per_cell(model.mesh_vert[vertices], cell)[model.mesh_face[faces]]
        kept = _with_area(corners)
        target = slice(faces.start, faces.start + len(kept))
        drawn.mesh_face[target] = corners[kept]
        for name in ("mesh_facenormal", "mesh_facetexcoord"):
            getattr(drawn, name)[target] = getattr(model, name)[faces][kept]
        drawn.mesh_facenum[mesh] = len(kept)
    return drawn


def in_view(model: Any, data: Any, camera: int) -> NDArray[np.bool_]:
    """Whether the ball around each shape of ``model`` reaches into what a square frame of ``camera`` shows; shapes without an
    end always do.
    """
    half = np.deg2rad(model.cam_fovy[camera]) / 2
    seen = (data.geom_xpos - data.cam_xpos[camera]) @ data.cam_xmat[camera].reshape(3, 3)
    sideways, ahead = np.abs(seen[:, :2]), -seen[:, 2:]
    # Distance beyond the planes that bound the frame, which go through the camera.
    beyond = (sideways * np.cos(half) - ahead * np.sin(half)).max(axis=1)
    radius = model.geom_rbound
    inside: NDArray[np.bool_] = (radius == 0) | ((beyond < radius) & (ahead[:, 0] > -radius))
    return inside


def one_per_cell(vertices: NDArray[np.floating[Any]], cell: float) -> NDArray[np.int64]:
    """For each of ``vertices`` ``[V, 3]`` the first one in the same cube of side ``cell``."""
    cubes = np.floor((vertices - vertices.min(axis=0)) / cell).astype(np.int64)
    sides = cubes.max(axis=0) + 1
    keys = (cubes[:, 0] * sides[1] + cubes[:, 1]) * sides[2] + cubes[:, 2]
    _, first, which = np.unique(keys, return_index=True, return_inverse=True)
    chosen: NDArray[np.int64] = first[which]
    return chosen


def _with_area(corners: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    """Rows of ``corners`` ``[F, 3]`` with three different vertices."""
    a, b, c = corners.T
    return np.flatnonzero((a != b) & (b != c) & (a != c))


def _rows(start: int, count: int) -> slice:
    return slice(int(start), int(start) + int(count))
