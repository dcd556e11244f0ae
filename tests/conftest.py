"""Options and settings of all tests."""

import signal

import pytest
import torch

# One thread in this process, unless a test asks for more: two are slow beside any other load.
torch.set_num_threads(1)

# A shell starts background jobs with SIGINT ignored, and nohup ignores SIGHUP. The processes that tests start and
# interrupt would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="run tests marked long too, as `make test-all` does")
    parser.addoption("--exhaustive", action="store_true", help="run tests marked exhaustive too; they take hours")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what was not asked for, and start with what takes longest, so that processes end at the same time."""
    options = {"long": "--all", "exhaustive": "--exhaustive"}
    unwanted = {marker for marker, option in options.items() if not config.getoption(option)}

    def is_unwanted(item: pytest.Item) -> bool:
        return any(mark.name in unwanted for mark in item.iter_markers())

    def order(item: pytest.Item) -> tuple[float, bool]:
        if limit := item.get_closest_marker("timeout"):
            return -limit.args[0], False
        return 0.0, item.get_closest_marker("long") is None

    config.hook.pytest_deselected(items=[item for item in items if is_unwanted(item)])
    items[:] = sorted((item for item in items if not is_unwanted(item)), key=order)
