"""Cells as Ray tasks: as many at once as a cluster has GPUs, or CPUs, for.

Workers train; the driver alone writes records, pictures and logs. Between them is a mailbox, an actor beside the
driver. A worker that has finished a cell keeps its checkpoint until the driver has written the records. So whoever dies
in between, the work is there, and what arrives a second time is known by the number of its cell or by its records.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from igr.paper.records import Record
from igr.paper.specs import Trained
from igr.paper.store import Folder

if TYPE_CHECKING:
    from igr.paper.measure import Pictures
    from igr.paper.run import Options, Progress

__all__ = ["EngineError", "cluster", "run_cells"]

RETRIES = 10  # of a cell whose worker, or machine, died
POLL = 0.2  # seconds between two looks into the mailbox
ASK = 0.5  # seconds between a worker's questions whether to stop
GRACE = 120.0  # seconds that a worker which is to stop may be silent: it, or its machine, may be gone
CONNECT = 10.0  # seconds for a cluster to answer
OBJECT_STORE = 100 * 2**20  # bytes: all that travels is small


class EngineError(RuntimeError):
    """Ray could not do what it was asked to, with what to do about it."""


class Mail(NamedTuple):
    """What a worker has to say about a cell."""

    number: int
    kind: str
    """``begun``, ``progress``, ``finished`` or ``stopping``."""
    content: Any = None


class Mailbox:
    """An actor through which workers and driver speak."""

    def __init__(self) -> None:
        self._mail: list[Mail] = []
        self._written: defaultdict[int, asyncio.Event] = defaultdict(asyncio.Event)
        self._stopping = False

    async def begin(self, number: int) -> str:
        """What a worker is to do about a cell: ``work``, ``stop``, or ``clean`` up, since its records are written."""
        self._mail.append(Mail(number, "begun"))
        if self._written[number].is_set():
            return "clean"
        return "stop" if self._stopping else "work"

    async def tell(self, number: int, progress: tuple[Any, ...]) -> None:
        """Passes on how far a cell is."""
        self._mail.append(Mail(number, "progress", progress))

    async def should_stop(self, number: int) -> bool:
        """Whether a worker is to save and stop."""
        if self._stopping:
            self._mail.append(Mail(number, "stopping"))
        return self._stopping

    async def finish(self, number: int, new: Sequence[Record], pictures: Pictures) -> None:
        """Passes on what came of a cell, and returns once that is on the driver's disk."""
        self._mail.append(Mail(number, "finished", (new, pictures)))
        await self._written[number].wait()

    async def take(self) -> list[Mail]:
        """What has come in since the last call."""
        mail, self._mail = self._mail, []
        return mail

    async def written(self, number: int) -> None:
        """Says that what came of a cell is on the disk."""
        self._written[number].set()

    async def stop(self) -> None:
        """Asks all workers to save and stop."""
        self._stopping = True


class _Post:
    """A worker's side of the mailbox; a store of records for the cell."""

    def __init__(self, mailbox: Any, number: int, known: list[Record]) -> None:
        self._mailbox, self._number, self._known = mailbox, number, known
        self._asked, self._stopping = time.monotonic(), False

    def stop(self) -> bool:
        """Whether to stop, asked now and then."""
        if not self._stopping and time.monotonic() - self._asked > ASK:
            self._stopping = _get(self._mailbox.should_stop.remote(self._number))
            self._asked = time.monotonic()
        return self._stopping

    def report(self, progress: Progress) -> None:
        self._mailbox.tell.remote(self._number, tuple(progress))

    def read(self, id: str) -> list[Record]:
        return self._known

    def add(self, id: str, new: Sequence[Record], pictures: Pictures) -> None:
        _get(self._mailbox.finish.remote(self._number, new, pictures))


def _task(mailbox: Any, number: int, cell: Trained, options: Options, known: list[Record]) -> bool:
    """On a worker: one cell; whether it is done."""
    from igr.paper.memory import keep_memory
    from igr.paper.run import clean_cell, run_cell

    keep_memory()
    what = _get(mailbox.begin.remote(number))
    if what == "stop":
        return False
    if what == "clean":  # another worker was here, and died before it could remove its checkpoint
        clean_cell(cell, options)
        return True
    post = _Post(mailbox, number, known)
    return run_cell(cell, options, post.stop, post.report, post) is not None


@contextmanager
def cluster(address: str | None) -> Iterator[float]:
    """Joins the cluster at an address, or starts one on this machine; leaves it in the end.

    Returns:
        How many GPUs it has.

    Raises:
        EngineError: there is no cluster.
    """
    import ray

    own = {} if address else {"include_dashboard": False, "object_store_memory": OBJECT_STORE}
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    try:
        if port.isdigit():  # Ray itself would try for minutes
            socket.create_connection((host, int(port)), timeout=CONNECT).close()
        ray.init(address or "local", log_to_driver=False, logging_level="error", **own)
    except (OSError, RuntimeError, ValueError) as error:
        raise EngineError(f"cannot use Ray at {address or 'this machine'}: {error}") from error
    try:
        yield ray.cluster_resources().get("GPU", 0.0)
    finally:
        ray.shutdown()


def run_cells(
    cells: Sequence[Trained], options: Options, stop: Callable[[], bool], report: Callable[[int, Progress], None]
) -> bool:
    """Runs cells on the cluster that was joined; see :func:`igr.paper.run.run_cells`.

    Arguments:
        cells: what to train.
        options: where and how; a device ``cuda`` is the GPU that Ray gives to a task.
        stop: asked all the time; once it says yes, workers save their states and the function returns.
        report: told the number of a cell, from one on, and its progress.

    Returns:
        Whether all are done.

    Raises:
        EngineError: a worker died again and again, or Ray itself failed.
        DataError, CheckpointError, RecordError: as for a single cell; the others are saved before.
    """
    from ray.exceptions import RayError

    driver = _Driver(cells, options, report)
    try:
        while driver.tasks:
            driver.wait()
            if stop() or driver.failure:
                driver.stop()
        driver.read_mail()
    except RayError as error:
        raise EngineError(f"Ray failed: {error}; the same command goes on") from error
    finally:
        driver.cancel(driver.tasks, force=True)
    if driver.failure:
        raise driver.failure
    return all(driver.done)


class _Driver:
    """The driver's side: the tasks that are not over, what came of the others, and records, each written once."""

    def __init__(self, cells: Sequence[Trained], options: Options, report: Callable[[int, Progress], None]) -> None:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self.cells, self.report = cells, report
        self.store = Folder(options.out, options.fresh, options.since)
        self.done: list[bool] = []
        self.failure: Exception | None = None
        self._heard: dict[int, float] = {}  # when there was mail from a task
        self._written: set[int] = set()
        self._cancelled: set[Any] = set()
        self._stopped = 0.0
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self._mailbox = ray.remote(num_cpus=0, scheduling_strategy=here)(Mailbox).remote()
        task = ray.remote(num_cpus=1, num_gpus=int(options.device.type == "cuda"), max_retries=RETRIES)(_task)
        data_dir = options.data_dir and options.data_dir.absolute()  # workers have another working directory
        there = replace(options, checkpoints=options.checkpoints.absolute(), data_dir=data_dir)
        self.tasks: dict[Any, int] = {}
        for i, cell in enumerate(cells, 1):
            known = self.store.read(cell.id)
            self.tasks[task.options(name=cell.id).remote(self._mailbox, i, cell, there, known)] = i

    def wait(self) -> None:
        """Until a task is over, but not for long; then reads the mail."""
        import ray

        over, _ = ray.wait(list(self.tasks), timeout=POLL)
        self.read_mail()
        for ref in over:
            self._end(ref, self.tasks.pop(ref))

    def _end(self, ref: Any, number: int) -> None:
        """Notes how a task ended."""
        from ray.exceptions import RayError, RayTaskError

        try:
            self.done.append(_get(ref))
        except RayError as error:
            if ref in self._cancelled:  # whatever Ray makes of that
                self.done.append(False)
                return
            if isinstance(error, RayTaskError):
                self.failure = error.cause if isinstance(error.cause, Exception) else error
                return
            reason = str(error).partition("\n")[0]
            words = f"gave up {self.cells[number - 1].id} after {RETRIES} retries ({type(error).__name__}: {reason})"
            self.failure = EngineError(words)

    def read_mail(self) -> None:
        """Reports progress, writes what is finished."""
        from igr.paper.run import Progress

        for number, kind, content in _get(self._mailbox.take.remote()):
            self._heard[number] = time.monotonic()
            if kind == "progress":
                self.report(number, Progress(*content))
            elif kind == "finished":
                if number not in self._written:
                    self.store.add(self.cells[number - 1].id, *content)
                    self._written.add(number)
                _get(self._mailbox.written.remote(number))

    def stop(self) -> None:
        """Asks workers to stop; what has not begun is cancelled, and in the end what does not answer."""
        if not self._stopped:
            self._stopped = time.monotonic()
            _get(self._mailbox.stop.remote())
            self.cancel([ref for ref, number in self.tasks.items() if number not in self._heard])
        late = time.monotonic() - GRACE
        heard = {ref: self._heard.get(number, 0.0) for ref, number in self.tasks.items()}
        self.cancel([ref for ref, last in heard.items() if max(last, self._stopped) < late], force=True)

    def cancel(self, refs: Any, force: bool = False) -> None:
        """Cancels tasks; those that run are killed, if by force."""
        import ray

        for ref in refs:
            self._cancelled.add(ref)
            ray.cancel(ref, force=force)


def _get(ref: Any) -> Any:
    import ray

    return ray.get(ref)
