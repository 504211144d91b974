"""Memory that is freed and taken again."""

import subprocess
import sys

import pytest

PAGES = """
import resource, torch
from igr.paper.memory import keep_memory
if {keep} and not keep_memory():
    raise SystemExit("left")
for _ in range(20):  # until the heap has grown
    torch.ones(2**24)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    torch.ones(2**24)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts the pages of Linux")
def test_freed_memory_is_used_again():
    def pages(keep: bool) -> str:
        done = subprocess.run(
            [sys.executable, "-c", PAGES.format(keep=keep)], capture_output=True, text=True, check=False
        )
        return done.stdout.strip() or done.stderr.strip()

    kept = pages(True)
    if kept == "left":
        pytest.skip("an allocator that is not glibc's is left as it is")
    assert int(kept) < 0.01 * int(pages(False))
