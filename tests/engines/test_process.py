"""Settings of a training process, each in a process of its own: they cannot be taken back."""

import subprocess
import sys

import pytest

FAULTS = """
import resource, torch
from asfedbridge.engines.process import prepare_process
if {prepared}:
    prepare_process(threads=1)
assert not {prepared} or torch.get_num_threads() == 1

def touch():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.empty(16 << 20).fill_(1)  # 64 MB, freed at once
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

torch.empty(32 << 20).fill_(1)  # leaves room for what comes
print(min(touch() for _ in range(3)))
"""


def page_faults(prepared: bool) -> int:
    done = subprocess.run(
        [sys.executable, "-c", FAULTS.format(prepared=prepared)], capture_output=True, text=True, timeout=60, check=True
    )
    return int(done.stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's malloc")
def test_a_prepared_process_touches_memory_once() -> None:
    """64 MB are 16,384 pages of 4 kB; without the setting each round of allocation faults on them again."""
    assert page_faults(prepared=True) < 100
    assert page_faults(prepared=False) > 1000, "the system does by itself what the setting is for"
