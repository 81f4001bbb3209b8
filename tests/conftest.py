"""What all tests share."""

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

# On shared cores several torch threads in one process spin on each other, ten times slower.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from hypothesis import settings

from tests.replay_backends import BACKENDS

if TYPE_CHECKING:
    from tests.replay_backends import Maker

# How long an example takes says nothing about right or wrong, and much about what else the machine does.
settings.register_profile("reverie", deadline=None)
settings.load_profile("reverie")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With several workers a file stays on one. Whole runs on Ray, which fill the machine, go one at a time, and begin at once:
    they are the longest row. xdist reads the marks in the same hook, so this comes before it.
    """

    def on_ray(item: pytest.Item) -> bool:
        return "ray" in item.path.stem.split("_")

    items.sort(key=lambda item: not on_ray(item))
    for item in items:
        item.add_marker(pytest.mark.xdist_group("ray" if on_ray(item) else item.path.stem))


@pytest.fixture(scope="session", params=BACKENDS)
def home(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Any]]:
    """A backend of replay buffers, and the address of its server if it has one."""
    from tests.replay_backends import shared_server

    if request.param == "memory":
        yield "memory", None
        return
    with shared_server(tmp_path_factory.mktemp("reverb") / "server") as address:
        yield request.param, address


@pytest.fixture
def make(home: tuple[str, Any]) -> Iterator["Maker"]:
    """Makes buffers of the backend under test."""
    from tests.replay_backends import Maker

    maker = Maker(*home)
    yield maker
    maker.close()
