"""What one estimate costs: time, memory, and evaluations of the function."""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

__all__ = ["peak_memory", "seconds"]


def seconds(work: Callable[[], object], device: torch.device, repetitions: int = 5) -> float:
    """The median time of several runs, after one that is not counted."""
    work()
    times = []
    for _ in range(repetitions):
        _wait(device)
        start = time.perf_counter()
        work()
        _wait(device)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def peak_memory(work: Callable[[], object], device: torch.device) -> int:
    """The most bytes of tensors that are alive at once, beyond those that were there before.

    On a GPU torch's allocator knows; on the CPU it is the running sum of the allocations that torch's profiler lists.
    """
    if device.type == "cuda":
        _wait(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        work()
        _wait(device)
        return torch.cuda.max_memory_allocated(device) - before
    with _silent(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        work()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    changes = sorted((event["ts"], event["args"]["Bytes"]) for event in events if event["name"] == "[memory]")
    peak = now = 0
    for _, change in changes:
        now += change
        peak = max(peak, now)
    return peak


@contextmanager
def _silent() -> Iterator[None]:
    """The profiler's library announces on standard error that it starts and stops."""
    kept = os.dup(2)
    try:
        with open(os.devnull, "w", encoding="utf-8") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
