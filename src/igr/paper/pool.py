"""Several cells at once on one device, each in a process of its own, so that one computes while another waits.

A process takes the next cell that none has taken, and writes its records itself. A cell is trained as it is alone, and
its numbers are the same; only its seconds are not.
"""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from queue import Empty
from typing import TYPE_CHECKING, Any, NamedTuple

from igr.paper.specs import Trained

if TYPE_CHECKING:
    from igr.paper.run import Options, Progress

__all__ = ["EngineError", "run_cells"]

POLL = 0.1  # seconds that the first process waits for mail
ASK = 0.5  # seconds between two looks whether the first process is still there


class EngineError(RuntimeError):
    """What was to run cells could not, with what to do about it."""


class _Shared(NamedTuple):
    """What all processes see."""

    mail: Any
    """A queue of (process, number of the cell, kind, content), of kind ``taken``, ``told``, ``left`` or ``failed``."""
    stopping: Any
    """An event: whether to save and stop."""
    taken: Any
    """How many cells have been taken."""


def run_cells(
    cells: Sequence[Trained], options: Options, stop: Callable[[], bool], report: Callable[[int, Progress], None]
) -> bool:
    """Runs so many cells at once as the options say; see :func:`igr.paper.run.run_cells`.

    Arguments:
        cells: what to train, in this order.
        options: where and how.
        stop: asked all the time; once it says yes, all save their states and the function returns.
        report: told the number of a cell, from one on, and its progress.

    Returns:
        Whether all are done.

    Raises:
        EngineError: a process died.
        DataError, CheckpointError, RecordError: as for a single cell; the others are saved before.
    """
    context = multiprocessing.get_context("spawn")  # CUDA does not outlive a fork
    options = replace(options, jobs=min(options.jobs, len(cells)))
    shared = _Shared(context.Queue(), context.Event(), context.Value("i", 0))
    processes = [context.Process(target=_work, args=(i, cells, options, shared)) for i in range(options.jobs)]
    driver = _Driver(cells, report)
    try:
        for process in processes:
            process.start()
        while any(process.is_alive() for process in processes):
            driver.read(shared.mail)
            dead = [i for i, process in enumerate(processes) if process.exitcode]
            if dead and not driver.failure:
                driver.failure = EngineError(driver.obituary(dead[0], processes[dead[0]].exitcode))
            if stop() or driver.failure:
                shared.stopping.set()
        while driver.read(shared.mail):
            pass
    finally:
        for process in processes:
            if process.is_alive():
                process.terminate()
    if driver.failure:
        raise driver.failure
    return driver.finished == len(cells)


class _Driver:
    """What the first process knows of the others."""

    def __init__(self, cells: Sequence[Trained], report: Callable[[int, Progress], None]) -> None:
        self.finished = 0
        self.failure: Exception | None = None
        self._cells, self._report = cells, report
        self._at: dict[int, int] = {}  # the cell that a process has

    def read(self, mail: Any) -> bool:
        """Waits a little for mail; whether there was some."""
        try:
            process, number, kind, content = mail.get(timeout=POLL)
        except Empty:
            return False
        if kind == "taken":
            self._at[process] = number
        elif kind == "told":
            self._report(number, content)
        elif kind == "left":
            self.finished += content
        else:
            self.failure = self.failure or content
        return True

    def obituary(self, process: int, code: int | None) -> str:
        """What to say of a process that died."""
        where = f"at {self._cells[self._at[process] - 1].id}" if process in self._at else "before its first cell"
        return f"a process died {where}, with exit code {code}; the same command goes on"


def _work(process: int, cells: Sequence[Trained], options: Options, shared: _Shared) -> None:
    """In a process of its own: cells, until none is left."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all, and the first process tells the others
    import torch

    from igr.paper.run import run_cell

    torch.set_num_threads(max(1, torch.get_num_threads() // options.jobs))
    stop = _Stop(shared.stopping)
    while not stop():
        with shared.taken:
            if shared.taken.value == len(cells):
                return
            shared.taken.value = number = shared.taken.value + 1
        shared.mail.put((process, number, "taken", None))

        def report(progress: Progress, number: int = number) -> None:
            shared.mail.put((process, number, "told", progress))

        try:
            done = run_cell(cells[number - 1], options, stop, report) is not None
        except Exception as error:  # for the first process to raise
            shared.mail.put((process, number, "failed", error))
            return
        shared.mail.put((process, number, "left", done))


class _Stop:
    """Whether to stop: asked to, or left behind by a first process that died."""

    def __init__(self, stopping: Any) -> None:
        self._stopping, self._parent = stopping, multiprocessing.parent_process()
        self._looked, self._orphan = time.monotonic(), False

    def __call__(self) -> bool:
        if time.monotonic() - self._looked > ASK:
            self._looked, self._orphan = time.monotonic(), self._parent is not None and not self._parent.is_alive()
        return self._orphan or self._stopping.is_set()
