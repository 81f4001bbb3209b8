"""Coarser shapes are drawn, and nothing but drawn."""

import numpy as np
import pytest

from platform.envs.libero_detail import coarser, in_view, one_per_cell  # isort: skip
from hypothesis import given, settings
from hypothesis import strategies as st

mujoco = pytest.importorskip("mujoco")

NAMES = ("mesh_face", "mesh_facenormal", "mesh_facetexcoord", "mesh_facenum", "mesh_vert", "body_mass")


def ball_and_tetrahedron() -> object:
    """A ball of radius 1 m with 5,120 triangles, and one large tetrahedron."""
    specification = mujoco.MjSpec()
    ball = specification.add_mesh(name="ball")
    ball.make_sphere(4)
    specification.add_mesh(
        name="tetrahedron", uservert=[0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1], userface=[0, 2, 1, 0, 1, 3, 0, 3, 2, 1, 2, 3]
    )  # fmt: skip
    for mesh in ("ball", "tetrahedron"):
        specification.worldbody.add_geom(type=mujoco.mjtGeom.mjGEOM_MESH, meshname=mesh)
    return specification.compile()


def test_a_ball_loses_triangles_and_keeps_its_surface() -> None:
    """Cells of 0.25 m on a sphere of 4 pi square metres: some 300 of them, and two triangles for each, by Euler."""
    model = ball_and_tetrahedron()
    before = {name: np.array(getattr(model, name)) for name in NAMES}
    drawn = coarser(model, pixels=1)
    assert all(np.array_equal(before[name], getattr(model, name)) for name in NAMES)
    assert drawn.mesh_facenum[0] < 0.3 * model.mesh_facenum[0]
    vertices = model.mesh_vert[: model.mesh_vertnum[0]]
    corners = vertices[drawn.mesh_face[: drawn.mesh_facenum[0]]]
    volume = np.einsum("fi,fi->f", corners[:, 0], np.cross(corners[:, 1], corners[:, 2])).sum() / 6
    assert volume == pytest.approx(4 / 3 * np.pi, rel=0.1)
    start = model.mesh_faceadr[1]
    assert drawn.mesh_facenum[1] == 4
    assert np.array_equal(drawn.mesh_face[start : start + 4], model.mesh_face[start : start + 4])


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 200), cell=st.floats(0.01, 3.0))
def test_vertices_of_a_cell_are_its_first(seed: int, count: int, cell: float) -> None:
    vertices = np.random.default_rng(seed).uniform(-1, 1, (count, 3))
    chosen = one_per_cell(vertices, cell)
    cubes = [tuple(row) for row in np.floor((vertices - vertices.min(0)) / cell).astype(int)]
    assert chosen.tolist() == [cubes.index(cube) for cube in cubes]


def test_only_what_reaches_into_the_frame_is_in_view() -> None:
    """A camera at the origin looks along -z over 90 degrees: the frame's right edge is the plane x = -z. A ball of radius 1
    at (5, 0, -4) lies sqrt(1/2) beyond it, one at (6, 0, -4) lies sqrt(2).
    """
    places = {
        "ahead": (0, 0, -5),
        "touches": (5, 0, -4),
        "right": (6, 0, -4),
        "above": (0, 6, -4),
        "behind": (0, 0, 2),
    }
    balls = "".join(
        f'<geom name="{name}" type="sphere" size="1" pos="{x} {y} {z}"/>'
        for name, (x, y, z) in places.items()
    )
    floor = '<geom name="floor" type="plane" size="1 1 1" pos="0 0 9"/>'
    model = mujoco.MjModel.from_xml_string(
        f'<mujoco><worldbody><camera name="eye" fovy="90"/>{balls}{floor}</worldbody></mujoco>'
    )
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    shown = in_view(model, data, 0)
    names = [mujoco.mj_id2name(model, mujoco.mjtObj.mjOBJ_GEOM, number) for number in range(model.ngeom)]
    assert {name for name, inside in zip(names, shown, strict=True) if inside} == {
        "ahead",
        "touches",
        "floor",
    }
