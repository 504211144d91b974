import re
import subprocess
import sys

from igr.paper.methods import METHODS


def test_labels_and_colours_are_one_to_one():
    """But for IGR-SB-MM, which the paper gives the colour of IGR-SB: the two are in no figure together."""
    assert len({method.label for method in METHODS.values()}) == len(METHODS)
    others = [method.rgb for name, method in METHODS.items() if name != "igr-sb-mm"]
    assert len(set(others)) == len(others)
    assert METHODS["igr-sb-mm"].rgb == METHODS["igr-sb"].rgb


def test_names_are_labels_in_lower_case():
    assert {name: method.label.lower() for name, method in METHODS.items()} == {name: name for name in METHODS}


def test_colours():
    assert METHODS["igr-i"].colour == "#4daf4a"
    assert METHODS["dldpmm"].colour == "#ff8c00"
    assert all(re.fullmatch("#[0-9a-f]{6}", method.colour) for method in METHODS.values())


def test_needs_no_torch():
    source = "import sys, igr.paper.methods; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", source], timeout=120).returncode == 0
