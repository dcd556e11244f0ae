"""What holds for all tests."""

import signal

import pytest
import torch

# One thread in this process, unless a test asks for more: two beside any other load crawl.
torch.set_num_threads(1)

# A shell starts background jobs, such as this session may be, deaf to Ctrl-C, and the processes that tests start and
# interrupt would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--short", action="store_true", help="skip tests marked long")
    parser.addoption("--exhaustive", action="store_true", help="run tests marked exhaustive as well")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if config.getoption("--short") and item.get_closest_marker("long"):
            item.add_marker(pytest.mark.skip(reason="takes minutes; --short was given"))
        if not config.getoption("--exhaustive") and item.get_closest_marker("exhaustive"):
            item.add_marker(pytest.mark.skip(reason="takes an hour; add --exhaustive"))
