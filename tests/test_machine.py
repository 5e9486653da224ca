"""What the machine is asked for: memory that is kept between steps and handed back between whiles."""

import subprocess
import sys
from pathlib import Path

import pytest

from model.machine import physical_memory

CODE = """
import re, torch
from pathlib import Path
from model.machine import hand_back_memory, set_up_memory

def resident():
    return int(re.search(r"VmRSS:\\s+(\\d+)", Path("/proc/self/status").read_text(encoding="utf-8"))[1]) / 1e3

set_up_memory()
blocks = [torch.ones(1 << 18) for _ in range(100)]  # of a megabyte each
last = torch.ones(1)  # so that what is freed is not the end of the heap
held = resident()
del blocks
kept = resident()
hand_back_memory()
print(held - kept, held - resident())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="no /proc")
def test_freed_memory_is_kept_until_it_is_handed_back():
    line = [sys.executable, "-c", CODE]
    done = subprocess.run(line, capture_output=True, encoding="utf-8", check=True)
    at_once, handed_back = map(float, done.stdout.split())
    libc = Path("/proc/self/maps").read_text(encoding="utf-8")
    if "libc.so.6" not in libc:
        pytest.skip("another C library than glibc keeps its own counsel")
    assert at_once < 20 and handed_back > 80  # of 105 MB


def test_physical_memory_is_what_the_system_says():
    path = Path("/proc/meminfo")
    if not path.exists():
        pytest.skip("no /proc")
    total = next(
        line
        for line in path.read_text(encoding="utf-8").splitlines()
        if line.startswith("MemTotal")
    )
    assert physical_memory() == pytest.approx(1024 * int(total.split()[1]), rel=0.01)
