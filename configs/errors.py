"""The exceptions that a user's mistake or a broken environment raises.

Each message is one line: what is wrong, where, and the remedy. Bugs in Reverie itself are assertions, not these.
"""

from __future__ import annotations


class ReverieError(Exception):
    """Base of the family. ``str()`` gives ``what (where): remedy`` on one line."""

    exit_code = 2

    def __init__(self, what: str, *, where: str = "", remedy: str = "") -> None:
        self.what = what
        self.where = where
        self.remedy = remedy
        place = f" ({where})" if where else ""
        hint = f": {remedy}" if remedy else ""
        super().__init__(" ".join(f"{what}{place}{hint}".split()))

    def __reduce__(self) -> tuple[object, tuple[type[ReverieError], str, str, str]]:
        """Keyword arguments do not survive the default pickling that carries an error out of a Ray actor."""
        return (_rebuild, (type(self), self.what, self.where, self.remedy))


def _rebuild(kind: type[ReverieError], what: str, where: str, remedy: str) -> ReverieError:
    return kind(what, where=where, remedy=remedy)


class ConfigError(ReverieError):
    """A key, type, range or combination in the configuration that cannot be run."""


class DataError(ReverieError):
    """A dataset, record or observation that does not fit what the run was built for."""


class EnvError(ReverieError):
    """An environment that cannot be made, or that broke its contract."""


class CheckpointError(ReverieError):
    """A checkpoint or model folder that is missing, torn, or of another model."""


class ReplayError(ReverieError):
    """A replay buffer asked for something that it can never give, or that did not come in time."""


class ReplayTimeout(ReplayError):
    """A call that waited as long as it may."""


class ResourceError(ReverieError):
    """The machine lacks something: disk, permission, memory, a GPU."""


class RoleFailure(ReverieError):
    """A role of the running system died; carries its first exception."""

    exit_code = 3


class StallError(RoleFailure):
    """No loop made progress for the allowed time."""
