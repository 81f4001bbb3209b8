"""A scripted demonstrator for LIBERO's pick-and-place tasks: waypoints from the poses of objects, followed in closed loop.

It sees the simulator's state. All ``libero_spatial`` and ``libero_object`` tasks, and those tasks of other suites whose goal
is one object on or in another.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from configs.errors import EnvError

from .libero_env import LiberoDecisionEnv
from .libero_grasp import Grasp, choose_grasp
from .libero_shapes import Shapes
from .libero_sim import LiberoSim

Vector = NDArray[np.float64]
MOVE_SCALE, TURN_SCALE = 0.05, 0.5
"""Metres and radians that an action of 1 asks for."""
EAGER = 2.0
"""How far beyond a waypoint is asked for: where the arm is stretched it stops short by nearly 2 cm."""
OPEN, CLOSE = -1.0, 1.0
UP = np.array([0.0, 0.0, 1.0])
HOVER = 0.09
"""Above the grasp, where the hand arrives before it comes down."""
CARRY = 0.07
"""Free space between the lowest point of what is carried and the highest of where it goes."""
NEAR, NEAR_HIGH = 0.012, 0.025
"""How near a waypoint counts as reached: where it matters, and on the way."""
ALIGNED = 0.12
"""Radians to the wanted orientation."""
GRIP_STEPS, DROP_STEPS = 8, 6
"""Env steps that the fingers get to close and to open."""
SLIPPED = 0.05
"""Metres that a held object may move in the hand before it counts as lost."""
INTO, ONTO = -0.02, 0.012
"""Height of an object's bottom when it is let go: against the rim of what it goes in, or the top of what it goes on."""


def libero_goal(simulator: LiberoSim) -> tuple[str, str]:
    """Names of what is moved and of the object or region it goes to.

    Raises:
        EnvError: the goal is another one, for which there is no demonstrator.
    """
    goals = simulator.robosuite.parsed_problem["goal_state"]
    if len(goals) != 1 or len(goals[0]) != 3 or goals[0][0].lower() not in ("on", "in"):
        raise EnvError(
            f"there is no scripted expert for the goal of {simulator.task.name}", where=simulator.task.suite,
            remedy="use env=libero_object or env=libero_spatial, or choose env.tasks",
        )  # fmt: skip
    return str(goals[0][1]), str(goals[0][2])


class PickAndPlace:
    """One episode's demonstrator. What it remembers is its phase, the grasp, and how the object lies in the hand."""

    def __init__(self, simulator: LiberoSim) -> None:
        self._sim = simulator
        self._shapes = Shapes(simulator.model)
        moved, goal = libero_goal(simulator)
        env = simulator.robosuite
        self._object = int(env.obj_body_id[moved])
        self._target, self._contains = self._target_of(env, goal)
        hand = mujoco.mj_name2id(simulator.model, mujoco.mjtObj.mjOBJ_BODY, "robot0_right_hand")
        self._robot = {self._shapes.root(hand)}
        self._phase = self._approach
        self._grasp: Grasp | None = None
        self._missed: list[Vector] = []
        self._seen, self._held_at = np.zeros(3), np.zeros(3)
        self._waited = 0

    def _target_of(self, env: Any, goal: str) -> tuple[int, bool]:
        if goal in env.obj_body_id:
            return int(env.obj_body_id[goal]), False
        region = env.object_sites_dict.get(goal)
        if region is None or region.parent_name not in env.obj_body_id:
            raise EnvError(
                f"there is no scripted expert for the region {goal}", where=self._sim.task.suite,
                remedy="use env=libero_object or env=libero_spatial, or choose env.tasks",
            )  # fmt: skip
        return int(env.obj_body_id[region.parent_name]), True

    def action(self) -> Vector:
        """``[7]`` for the next env step."""
        return self._phase()

    def _approach(self) -> Vector:
        """Over the object, turned as the grasp needs it."""
        self._grasp = self._choose()
        above = self._grasp.point + HOVER * UP
        position, rotation = self._sim.gripper()
        ready = np.linalg.norm((position - above)[:2]) < NEAR and _angle(self._turn(rotation)) < ALIGNED
        if ready and position[2] - above[2] < NEAR_HIGH:
            self._phase = self._descend
        if position[2] < above[2] - NEAR_HIGH and np.linalg.norm((position - above)[:2]) > 2 * NEAR:
            above = np.array([position[0], position[1], above[2] + NEAR_HIGH])
        return self._towards(above, OPEN)

    def _descend(self) -> Vector:
        assert self._grasp is not None
        position, _ = self._sim.gripper()
        self._waited += 1
        if np.linalg.norm(position - self._grasp.point) < NEAR or self._waited > 25:
            self._phase, self._waited = self._close, 0
        return self._towards(self._grasp.point, OPEN)

    def _close(self) -> Vector:
        assert self._grasp is not None
        self._waited += 1
        if self._waited >= GRIP_STEPS:
            self._held_at = self._offset()
            self._phase, self._waited = self._lift, 0
        return self._towards(self._grasp.point, CLOSE)

    def _lift(self) -> Vector:
        position, _ = self._sim.gripper()
        high = self._carry_height()
        if position[2] > high - NEAR_HIGH:
            self._phase = self._carry
        return self._holding(np.array([position[0], position[1], high + 0.01]))

    def _carry(self) -> Vector:
        position, _ = self._sim.gripper()
        over = self._over_target(self._carry_height())
        if np.linalg.norm((position - over)[:2]) < NEAR:
            self._phase = self._lower
        return self._holding(over)

    def _lower(self) -> Vector:
        position, _ = self._sim.gripper()
        bottom = self._shapes.of(self._sim.data, self._object)[:, 2].min()
        target = self._shapes.of(self._sim.data, self._target)
        wanted = target[:, 2].max() + INTO if self._contains else self._middle_height(target) + ONTO
        below = self._over_target(position[2] + wanted - bottom)
        self._waited += 1
        if bottom - wanted < 0.006 or self._waited > 30:
            self._phase, self._waited = self._release, 0
        return self._holding(below)

    def _release(self) -> Vector:
        position, _ = self._sim.gripper()
        self._waited += 1
        if self._waited >= DROP_STEPS:
            self._phase, self._waited = self._retreat, 0
        return self._towards(position, OPEN)

    def _retreat(self) -> Vector:
        """Up and away; an object that does not lie where it should is taken again."""
        position, _ = self._sim.gripper()
        self._waited += 1
        if self._waited > 15:
            self._phase, self._waited = self._approach, 0
        return self._towards(position + 0.08 * UP, OPEN)

    def _holding(self, goal: Vector) -> Vector:
        """Towards ``goal`` with closed fingers; from the start when the object has slipped out of them."""
        if np.linalg.norm(self._offset() - self._held_at) > SLIPPED:
            self._missed.append(self._relative[0])
            self._grasp = None
            self._phase, self._waited = self._approach, 0
            return self._towards(self._sim.gripper()[0] + 0.03 * UP, OPEN)
        return self._towards(goal, CLOSE)

    def _choose(self) -> Grasp:
        data = self._sim.data
        points = self._shapes.of(data, self._object)
        if self._grasp is None or np.linalg.norm(self._centre(points) - self._seen) > NEAR:
            around = self._shapes.others(data, besides={*self._robot, self._object})
            _, rotation = self._sim.gripper()
            chosen = choose_grasp(points, around, rotation[:, 0], missed=self._missed)
            self._relative = chosen.point - self._centre(points), chosen.fingers
        self._seen = self._centre(points)
        offset, fingers = self._relative
        return Grasp(self._seen + offset, fingers)

    def _centre(self, points: Vector) -> Vector:
        centre: Vector = (points.min(axis=0) + points.max(axis=0)) / 2
        return centre

    def _offset(self) -> Vector:
        """From the hand to the object."""
        centre: Vector = self._sim.data.xpos[self._object] - self._sim.gripper()[0]
        return centre

    def _over_target(self, height: float) -> Vector:
        """Where the hand is when the object is over the middle of the target: its own middle, which LIBERO judges by, and not
        that of the room it takes while it hangs askew.
        """
        data = self._sim.data
        inside = self._centre(self._shapes.of(data, self._target))
        target = inside if self._contains else data.xpos[self._target]
        position, _ = self._sim.gripper()
        shift = (target - data.xpos[self._object])[:2]
        return np.array([position[0] + shift[0], position[1] + shift[1], height])

    def _carry_height(self) -> float:
        """Of the hand: what it holds clears the target and what stands around."""
        points = self._shapes.of(self._sim.data, self._object)
        target = self._shapes.of(self._sim.data, self._target)
        position, _ = self._sim.gripper()
        highest = max(target[:, 2].max(), self._start_height)
        return float(highest + CARRY + position[2] - points[:, 2].min())

    @property
    def _start_height(self) -> float:
        """Bottom of the object where it was taken: what it stood on is no higher than this."""
        assert self._grasp is not None
        return float(self._seen[2] - 0.03)

    def _middle_height(self, points: Vector) -> float:
        """Top of the inner half of a flat thing: a plate's rim is higher than where things come to lie."""
        centre = self._centre(points)
        inner = np.linalg.norm((points - centre)[:, :2], axis=1) < 0.5 * np.ptp(points[:, 0]) / 2
        return float(points[inner, 2].max() if inner.any() else points[:, 2].max())

    def _turn(self, rotation: Vector) -> Vector:
        """``[3]`` axis times angle, in the world, to the orientation that the grasp needs."""
        assert self._grasp is not None
        fingers = self._grasp.fingers * (1 if self._grasp.fingers @ rotation[:, 0] >= 0 else -1)
        down = np.array([0.0, 0.0, -1.0])
        wanted = np.stack([fingers, np.cross(down, fingers), down], axis=1)
        return _rotation_vector(wanted @ rotation.T)

    def _towards(self, goal: Vector, grip: float) -> Vector:
        position, rotation = self._sim.gripper()
        move = np.clip(EAGER * (goal - position) / MOVE_SCALE, -1, 1)
        turn = np.clip(self._turn(rotation) / TURN_SCALE, -1, 1) if self._grasp is not None else np.zeros(3)
        return np.concatenate([move, turn, [grip]])


def _angle(vector: Vector) -> float:
    return float(np.linalg.norm(vector))


def _rotation_vector(matrix: Vector) -> Vector:
    """Axis times angle of a rotation matrix."""
    quaternion = np.zeros(4)
    mujoco.mju_mat2Quat(quaternion, np.ascontiguousarray(matrix).reshape(9))
    vector = np.zeros(3)
    mujoco.mju_quat2Vel(vector, quaternion, 1.0)
    return vector


class LiberoExpert:
    """Chunks of the demonstrator for the slots of an environment in this process."""

    noise: NDArray[np.float32] = np.array([1, 1, 1, 0.5, 0.5, 0.5, 1], np.float32)
    """Turning by chance throws off a grasp more than moving by chance."""

    def __init__(self, env: LiberoDecisionEnv, *, chunk: int, replan: int) -> None:
        self._env, self._chunk, self._replan = env, chunk, replan
        self._episodes: dict[int, PickAndPlace] = {}

    def begin(self, slots: NDArray[np.int64]) -> None:
        """Episodes have started in ``slots``."""
        for slot in slots:
            self._episodes[int(slot)] = PickAndPlace(self._env.simulator(int(slot)))

    def chunks(
        self, slots: NDArray[np.int64], behave: Callable[[int, NDArray[np.float32]], NDArray[np.float32]]
    ) -> NDArray[np.float32]:
        """``[n, K, 7]``: in closed loop on the simulators, which are put back afterwards.

        ``behave(step, actions [n, 7])`` may disturb or quantise actions before they are executed.
        """
        env = self._env
        simulators = [env.simulator(int(slot)) for slot in slots]
        episodes = [self._episodes[int(slot)] for slot in slots]
        actions = np.zeros((len(slots), self._chunk, env.spec.action_dim), np.float32)
        with ExitStack() as stack:
            for simulator in simulators:
                stack.enter_context(simulator.undone())
            for step in range(self._chunk):
                wanted = np.stack([episode.action() for episode in episodes]).astype(np.float32)
                actions[:, step] = np.clip(behave(step, wanted), -1, 1)
                if step < self._replan:
                    for simulator, action in zip(simulators, actions[:, step], strict=True):
                        simulator.step(action)
        return actions
