"""What this machine has: device, number format, memory."""

from __future__ import annotations

import ctypes
import os
import re
import sys
import time

import torch


class MachineError(ValueError):
    """Something was asked of the machine that it does not have."""


def pick_device(name: str) -> str:
    """The device to use; "auto" is cuda where there is one, else cpu. Raises MachineError."""
    cuda = torch.cuda.is_available()
    if name == "auto":
        return "cuda" if cuda else "cpu"
    kind, colon, number = name.partition(":")
    if kind not in ("cpu", "cuda", "mps") or (colon and not re.fullmatch("0|[1-9][0-9]?", number)):
        raise MachineError(f"unknown device {name}: choose auto, cpu, cuda or mps")
    if kind == "cuda" and not cuda:
        raise MachineError("no CUDA device that this torch can use: take --device cpu")
    count = torch.cuda.device_count() if kind == "cuda" else 1
    if int(number or 0) >= count:
        raise MachineError(f"no device {name}: the last one is {kind}:{count - 1}")
    if name.startswith("mps") and not torch.backends.mps.is_available():
        raise MachineError("no MPS device that this torch can use: take --device cpu")
    return name


def device_of_process(device: str, local_rank: int) -> str:
    """The device of one of several processes: a GPU for each, or the CPU for all. Raises
    MachineError."""
    if device == "cuda":
        return pick_device(f"cuda:{local_rank}")
    if device != "cpu":
        raise MachineError(f"several processes cannot share {device}: take --device cuda or cpu")
    return device


def matmul_rate(dtype: torch.dtype, size: int = 512, runs: int = 8) -> float:
    """FLOP/s of square matrix products on the CPU, the best of some runs."""
    a = torch.ones(size, size, dtype=dtype)
    best = float("inf")
    for _ in range(runs):
        start = time.perf_counter()
        a @ a
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best


def pick_dtype(name: str, device: str) -> torch.dtype:
    """The number format of matrix products: "float32", "bfloat16" or "auto".

    auto: bfloat16 on cuda where it has units for it; on a CPU bfloat16 only where its products are
    measured to be clearly faster, since a processor without the units for it is slower; else
    float32. Raises MachineError for another name.
    """
    known = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    if name in known:
        return known[name]
    if name != "auto":
        raise MachineError(f"unknown dtype {name}: choose auto, float32 or bfloat16")
    if device.startswith("cuda"):
        units = torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if units else torch.float32
    if device == "cpu":
        # In turn, so that other work on the machine slows both.
        rates = {torch.bfloat16: 0.0, torch.float32: 0.0}
        for _ in range(4):
            for dtype, rate in rates.items():
                rates[dtype] = max(rate, matmul_rate(dtype, runs=3))
        if rates[torch.bfloat16] > 1.3 * rates[torch.float32]:
            return torch.bfloat16
    return torch.float32


def check_compiler(device: str) -> None:
    """Compile a line with torch.compile. Raises MachineError where that fails."""
    try:
        torch.compile(lambda x: x + 1)(torch.ones(2, device=device))
    except Exception as error:  # of many kinds, by what is missing
        why = str(error).partition("\n")[0]
        raise MachineError(
            f"torch.compile does not work here ({why}): install a C++ compiler or leave out --compile"
        ) from None


def set_up_memory() -> None:
    """Say what is to be kept from one step to the next; call it before the first product.

    Big freed blocks are: glibc would hand them back to the kernel, which costs page faults worth 30
    to 60% of a step. Of oneDNN's programs, one for each size of a product and half a megabyte each,
    only as many as a step needs are: it would keep 1,024, and torch's layer above it as many again.
    """
    for cache in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(cache, "80")
    M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
    if glibc := _glibc():
        glibc.mallopt(M_MMAP_THRESHOLD, 1 << 30)
        glibc.mallopt(M_TRIM_THRESHOLD, 1 << 30)


def hand_back_memory() -> None:
    """Give the kernel what is free now: between batches of many sizes the free blocks come to lie
    scattered. Call it rarely: the next step meets the page faults that `set_up_memory` avoids."""
    if glibc := _glibc():
        glibc.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    """The C library where it is glibc: another one has neither call, or only in name."""
    try:
        library = ctypes.CDLL("libc.so.6") if sys.platform == "linux" else None
        return library if library and library.mallopt and library.malloc_trim else None
    except (OSError, AttributeError):
        return None


def physical_memory(device: str = "cpu") -> int | None:
    """Bytes of memory that a device has, or None where the system does not say."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_properties(device).total_memory
    if sys.platform == "win32":
        fields = [("length", ctypes.c_ulong), ("load", ctypes.c_ulong), ("total", ctypes.c_uint64)]
        rest = [(f"other{i}", ctypes.c_uint64) for i in range(6)]
        status = type("MEMORYSTATUSEX", (ctypes.Structure,), {"_fields_": fields + rest})()
        status.length = ctypes.sizeof(status)
        found = ctypes.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status))
        return int(status.total) if found else None
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None
