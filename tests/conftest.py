"""Options and settings of all tests."""

import signal

import pytest
import torch

# One thread in this process, unless a test asks for more: two are slow beside any other load.
torch.set_num_threads(1)

# A shell starts background jobs with SIGINT ignored. The processes that tests start and interrupt would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="run tests marked long too, as `make test-all` does")
    parser.addoption("--exhaustive", action="store_true", help="run tests marked exhaustive too; they take hours")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what was not asked for. Long tests come first, so that no process is left alone with one at the end."""
    options = {"long": "--all", "exhaustive": "--exhaustive"}
    unwanted = {marker for marker, option in options.items() if not config.getoption(option)}

    def is_unwanted(item: pytest.Item) -> bool:
        return any(mark.name in unwanted for mark in item.iter_markers())

    config.hook.pytest_deselected(items=[item for item in items if is_unwanted(item)])
    selected = [item for item in items if not is_unwanted(item)]
    items[:] = sorted(selected, key=lambda item: item.get_closest_marker("long") is None)
