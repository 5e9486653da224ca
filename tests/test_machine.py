"""What the machine is asked for: memory that is kept between steps and handed back between whiles;
a device for each process, and the number format. A machine with GPUs is made up."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from model.machine import MachineError, device_of_process, physical_memory, pick_dtype

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


def test_each_process_has_a_gpu_of_its_own_or_they_share_the_cpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [device_of_process("cuda", rank) for rank in range(2)] == ["cuda:0", "cuda:1"]
    assert device_of_process("cpu", 1) == "cpu"
    with pytest.raises(MachineError, match="no device cuda:2: the last one is cuda:1"):
        device_of_process("cuda", 2)
    for alone in ("cuda:0", "mps"):
        with pytest.raises(MachineError, match=f"cannot share {alone}: take --device cuda or cpu"):
            device_of_process(alone, 0)


@pytest.mark.parametrize("units", [True, False])
def test_auto_takes_bfloat16_only_from_a_gpu_with_units_for_it(units, monkeypatch):
    def supported(including_emulation=True):  # an older GPU only emulates it, slowly
        return including_emulation or units

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", supported)
    assert pick_dtype("auto", "cuda:0") == (torch.bfloat16 if units else torch.float32)
