"""robosuite's arm control without what it computes twice: the same numbers, bit for bit, in a fraction of the time.

robosuite runs MuJoCo's forward dynamics three times per physics step (its loop, its controller, the step itself) and asks
for the same Jacobian four times. Positions and velocities are needed once, before the controller; forces once, after it.
"""

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

_HELD = (
    "ee_pos", "ee_ori_mat", "ee_pos_vel", "ee_ori_vel", "joint_pos", "joint_vel", "J_pos", "J_ori", "J_full",
    "mass_matrix", "goal_pos", "goal_ori", "initial_joint",
)  # fmt: skip
"""What a controller keeps from one physics step to the next."""


class Arm:
    """One robot's controller and gripper. Made anew after each reset, since robosuite makes new controllers then."""

    def __init__(self, robot: Any, model: Any, data: Any) -> None:
        self._robot, self._model, self._data = robot, model, data
        self.controller = robot.controller
        self.gripper = robot.gripper
        self._site = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_SITE, self.controller.eef_name)
        self._columns = self.controller.qvel_index
        self._actuators = robot._ref_joint_actuator_indexes
        self._fingers = robot._ref_joint_gripper_actuator_indexes
        limits = model.actuator_ctrlrange[self._fingers]
        self._bias = 0.5 * (limits[:, 1] + limits[:, 0])
        self._weight = 0.5 * (limits[:, 1] - limits[:, 0])
        self._torque_low, self._torque_high = robot.torque_limits
        self._mass = np.zeros((model.nv, model.nv))
        self._jacobians = np.zeros((3, model.nv)), np.zeros((3, model.nv))
        # The controller calls this before it computes torques.
        self.controller.update = self._look
        self._full_mass = _full_mass_of()

    def execute(self, action: NDArray[np.float64], steps: int) -> None:
        """``action`` ``[7]`` (pose change 6, gripper 1) over ``steps`` physics steps."""
        model, data, controller, gripper = self._model, self._data, self.controller, self.gripper
        # As in PandaGripper.format_action, whose answer depends on the action alone.
        move = np.array([-1.0, 1.0]) * gripper.speed * np.sign(action[6:])
        for step in range(steps):
            mujoco.mj_step1(model, data)
            if step == 0:
                controller.set_goal(action[:6])
            torques = controller.run_controller()
            gripper.current_action = _clipped(gripper.current_action + move, -1.0, 1.0)
            data.ctrl[self._fingers] = self._bias + self._weight * gripper.current_action
            data.ctrl[self._actuators] = _clipped(torques, self._torque_low, self._torque_high)
            mujoco.mj_step2(model, data)

    def _look(self, force: bool = False) -> None:
        """What the controller reads of the simulation; array expressions as in robosuite, whose layouts decide the last bit."""
        controller, data, columns = self.controller, self._data, self._columns
        # The first step after a reset still goes by what the controller saw when it was made.
        if not (controller.new_update or force):
            return
        position, rotation = self._jacobians
        mujoco.mj_jacSite(self._model, data, position, rotation, self._site)
        controller.ee_pos = np.array(data.site_xpos[self._site])
        controller.ee_ori_mat = np.array(data.site_xmat[self._site].reshape([3, 3]))
        controller.ee_pos_vel = np.dot(position, data.qvel)
        controller.ee_ori_vel = np.dot(rotation, data.qvel)
        controller.joint_pos = np.array(data.qpos[controller.qpos_index])
        controller.joint_vel = np.array(data.qvel[columns])
        controller.J_pos = np.array(position[:, columns])
        controller.J_ori = np.array(rotation[:, columns])
        controller.J_full = np.array(np.vstack([controller.J_pos, controller.J_ori]))
        self._full_mass(self._model, data, self._mass)
        controller.mass_matrix = self._mass[columns, :][:, columns]
        controller.new_update = False

    def state(self) -> dict[str, NDArray[np.float64]]:
        """What the next action depends on besides MuJoCo's own state."""
        held = {name: np.array(getattr(self.controller, name)) for name in _HELD}
        held["gripper"] = np.array(self.gripper.current_action, np.float64)
        held["new_update"] = np.array(float(self.controller.new_update))
        return held

    def load(self, state: dict[str, NDArray[np.float64]]) -> None:
        """Continue from ``state``."""
        for name in _HELD:
            setattr(self.controller, name, np.array(state[name]))
        self.gripper.current_action = np.array(state["gripper"])
        self.controller.new_update = bool(state["new_update"])


def _clipped(values: NDArray[np.float64], low: Any, high: Any) -> NDArray[np.float64]:
    """``np.clip`` without what it asks first, which takes longer than the seven numbers here."""
    clipped: NDArray[np.float64] = np.minimum(np.maximum(values, low), high)
    return clipped


def _full_mass_of() -> Any:
    """``mj_fullM`` as (model, data, out): its arguments changed in MuJoCo 3.4."""
    if tuple(map(int, mujoco.__version__.split(".")[:2])) >= (3, 4):
        return lambda model, data, out: mujoco.mj_fullM(model, data, out)
    return lambda model, data, out: mujoco.mj_fullM(model, out, data.qM)
