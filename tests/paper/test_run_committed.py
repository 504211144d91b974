"""The records that are part of the repository."""

import subprocess
from pathlib import Path

import pytest

from igr.paper import records
from igr.paper.select import Configuration
from igr.paper.specs import SPECS

ROOT = Path(__file__).parents[2]
OURS = sorted(
    file
    for kind in ("table1", "relax", "s4", "beyond", "sop", "nonparametric")
    for file in (ROOT / "results" / "ours" / kind).rglob("records.jsonl")
)


@pytest.mark.parametrize("file", OURS, ids=lambda file: file.parent.relative_to(ROOT / "results" / "ours").as_posix())
def test_committed_records_are_complete_and_of_committed_code(file):
    found = records.read(file)
    cell = SPECS[file.parent.relative_to(ROOT / "results" / "ours").as_posix()]
    for protocol in {r["protocol"] for r in found}:
        some = [r for r in found if r["protocol"] == protocol]
        members = cell.with_protocol(protocol).members()
        assert {(Configuration.of(r), r["seed"]) for r in some} == {(m.configuration, m.seed) for m in members}
        assert len(some) == len(members)
    for r in found:
        assert (r["smoke"], r["synthetic"], r["settings"]["data"]) == (False, False, "files")
        assert {name: r["settings"][name] for name in cell.settings()} == cell.settings()
        assert (r["settings"]["evaluation"]["m"], r["settings"]["evaluation"]["images"]) == (1000, None)
    for commit, tree in {(r["commit"], r["tree"]) for r in found}:
        asked = ["git", "-C", str(ROOT), "rev-parse", f"{commit}:src/igr"]
        answer = subprocess.run(asked, capture_output=True, text=True)
        if answer.returncode:
            pytest.skip("needs the history of the repository")
        assert answer.stdout.strip() == tree
