"""What every command shares: flags, one-line errors, logging, and the process's environment.

A command file reads::

    if __name__ == "__main__":
        sys.exit(main(run, __doc__, config=TrainConfig, dry_run=show))
"""

from __future__ import annotations

import errno
import logging
import os
import sys
from collections.abc import Callable

from configs.errors import ConfigError, ResourceError, ReverieError

Run = Callable[[list[str]], int]

ENVIRONMENT = {
    # Two busy processes with two OpenMP threads each spin on one another; roles that have cores of their own raise it.
    "OMP_NUM_THREADS": "1",
    # glibc otherwise gives every buffer above 32 MB back to the kernel at each training step: half of the time.
    "MALLOC_MMAP_THRESHOLD_": "1073741824",
    "MALLOC_TRIM_THRESHOLD_": "4294967296",
}
"""What a process that trains or imagines needs before it starts; the user's own values stand."""

LOGGERS = ("__main__", "reverie", "platform", "world_models", "policies", "buffers")
INTERRUPTED = 130
BROKEN_PIPE = 141
"""As a shell tells that a program was ended by SIGPIPE."""
REMEDIES = {
    errno.ENOSPC: "free some space, or write elsewhere",
    errno.EDQUOT: "free some space, or write elsewhere",
    errno.EACCES: "give yourself the permission, or name another folder",
    errno.EPERM: "give yourself the permission, or name another folder",
    errno.EROFS: "name a folder that can be written",
    errno.ENOTDIR: "name a folder, not a file",
    errno.ENAMETOOLONG: "choose a shorter name",
}

log = logging.getLogger("reverie")


class LineFormatter(logging.Formatter):
    """The message alone; its level in front where it is a warning or worse."""

    def format(self, record: logging.LogRecord) -> str:
        """One record as text."""
        text = super().format(record)
        return text if record.levelno < logging.WARNING else f"{record.levelname.lower()}: {text}"


def main(
    run: Run,
    usage: str,
    *,
    config: type | None = None,
    dry_run: Run | None = None,
    argv: list[str] | None = None,
) -> int:
    """Run a command and return its exit code.

    Args:
        run: The command; takes the arguments without the flags below and returns an exit code.
        usage: Shown by ``--help``.
        config: Root config class whose groups and keys ``--help`` lists after ``usage``.
        dry_run: Called in place of ``run`` under ``--dry-run``; None where the command has no dry run.
        argv: Arguments; those of the process by default.

    A ``ReverieError`` ends the command with one line on stderr and the error's exit code; so does a full disk or a
    missing permission. An interrupt gives 130, a reader that left (``| head``) 141. Anything else is a bug and keeps its traceback.
    """
    prepare_environment()
    set_up_logging()
    arguments = sys.argv[1:] if argv is None else argv
    try:
        if {"--help", "-h"} & set(arguments):
            sys.stdout.write(help_text(usage, config))
            return 0
        code = _dispatch(run, dry_run, arguments)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # Python flushes once more when it exits, which would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except ReverieError as error:
        log.error("%s", error)
        return error.exit_code
    except KeyboardInterrupt:
        log.error("interrupted")
        return INTERRUPTED
    except MemoryError as error:
        log.error(
            "%s", ResourceError("out of memory", where=str(error), remedy="ask for fewer or smaller things")
        )
        return ResourceError.exit_code
    except OSError as error:
        if error.errno not in REMEDIES:
            raise
        resource = ResourceError(
            error.strerror or "no access", where=str(error.filename or ""), remedy=REMEDIES[error.errno]
        )
        log.error("%s", resource)
        return resource.exit_code


def help_text(usage: str, config: type | None) -> str:
    """``usage``, and what can be set."""
    if config is None:
        return usage.strip() + "\n"
    from configs.document import help_text as keys

    return f"{usage.strip()}\n\n{keys(config)}"


def prepare_environment() -> None:
    """Give this process and its children ``ENVIRONMENT``.

    The C library reads its part when a process starts, so a command started as ``python -m platform.…`` without it
    replaces itself once, under the same process id. Called from elsewhere (a test, a notebook), only children gain.
    """
    missing = {name: value for name, value in ENVIRONMENT.items() if name not in os.environ}
    os.environ.update(missing)
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if missing and spec is not None and spec.name.startswith("platform."):
        sys.stdout.flush()
        sys.stderr.flush()
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def set_up_logging() -> None:
    """Plain lines on stderr: progress of our own loggers, warnings of everyone's. A run's log file gets details too."""
    handler = logging.StreamHandler()
    handler.setLevel(logging.INFO)
    handler.setFormatter(LineFormatter())
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    for name in LOGGERS:
        logging.getLogger(name).setLevel(logging.DEBUG)


def _dispatch(run: Run, dry_run: Run | None, arguments: list[str]) -> int:
    flags = [text for text in arguments if text.startswith("-")]
    rest = [text for text in arguments if not text.startswith("-")]
    unknown = [text for text in flags if text != "--dry-run" or dry_run is None]
    if unknown:
        known = "--help" if dry_run is None else "--help and --dry-run"
        raise ConfigError(
            f"unknown flag {unknown[0]}", remedy=f"the flags are {known}; set keys as key=value"
        )
    return dry_run(rest) if dry_run is not None and flags else run(rest)
