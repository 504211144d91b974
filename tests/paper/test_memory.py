"""Memory that is freed and taken again."""

import ctypes
import platform
import subprocess
import sys

import pytest

PAGES = """
import ctypes, resource
from igr.paper.memory import keep_memory
assert not {keep} or keep_memory()
libc, size = ctypes.CDLL(None), ctypes.c_size_t(2**26)
libc.malloc.restype = ctypes.c_void_p
def take():
    place = ctypes.c_void_p(libc.malloc(size))
    libc.memset(place, 1, size)
    libc.free(place)
take()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    take()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators are left as they are")
def test_freed_memory_is_used_again():
    if not ctypes.CDLL(None).mallopt(-3, 2**31 - 1):
        pytest.skip("this glibc refuses so large a threshold")

    def pages(keep: bool) -> int:
        code = [sys.executable, "-c", PAGES.format(keep=keep)]
        return int(subprocess.run(code, capture_output=True, text=True, check=True).stdout)

    assert pages(True) < 0.01 * pages(False)
