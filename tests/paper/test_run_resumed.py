"""Cells that were stopped, are done already, or are done again."""

import json
from dataclasses import replace

import pytest
import torch
from run_cases import checkpoints, lasting, run
from safetensors.torch import load_file, save_file

from igr.paper import checkpoint, records
from igr.paper.ensemble import Ensemble
from igr.paper.report import collect
from igr.paper.specs import SPECS
from igr.paper.store import Folder

pytestmark = pytest.mark.usefixtures("one_thread")


def test_stops_and_goes_on_bit_for_bit(tmp_path):
    cell = replace(SPECS["table1/mnist/linear/igr-i"].shortened(), epochs=3)
    whole, told = run(cell, tmp_path / "whole")
    assert list(dict.fromkeys(at.phase for at in told)) == ["training", "train", "validation", "test", "done"]
    assert [at.epoch for at in told[:4]] == [0, 1, 2, 3]
    calls, answers, states = 0, [], []

    def every_fifth() -> bool:
        nonlocal calls
        calls += 1
        return calls % 5 == 0

    while not answers or answers[-1] is None:
        answers.append(run(cell, tmp_path / "parts", every_fifth)[0])
        for file in checkpoints(tmp_path / "parts", cell.id):
            state = checkpoint.load(file.parent)[1]
            states.append((state["epoch"], state["step"]))
    assert len(answers) > 2
    assert any(step > 0 for _, step in states)  # in the middle of an epoch
    assert lasting(answers[-1]) == lasting(whole)


def test_records_of_which_some_are_lost_are_made_again_as_a_whole(tmp_path):
    cell = SPECS["table1/mnist/linear/igr-i"].shortened()
    first, _ = run(cell, tmp_path)
    path = tmp_path / "out" / cell.id / "records.jsonl"
    path.write_bytes(path.read_bytes()[:-200])  # the last line is torn
    assert len(records.read(path)) == len(first) - 1
    again, _ = run(cell, tmp_path)
    assert lasting(again) == lasting(first)
    assert records.read(path) == again
    with pytest.raises(records.DuplicateError, match="another run wrote it"):
        Folder(tmp_path / "out", fresh=False).add(cell.id, again, {})


def test_records_say_that_a_device_was_shared_at_some_time(tmp_path):
    cell = SPECS["table1/mnist/linear/igr-i"].shortened()
    assert run(cell, tmp_path, lambda: True, sharing=3)[0] is None
    found, _ = run(cell, tmp_path)
    assert {record["sharing"] for record in found} == {3}
    alone, _ = run(cell, tmp_path / "alone")
    assert {record["sharing"] for record in alone} == {1}


def test_records_that_are_there_are_not_made_again(tmp_path):
    cell = SPECS["table1/mnist/linear/gs"].shortened()
    first, _ = run(cell, tmp_path)
    again, told = run(cell, tmp_path)
    assert again == first
    assert told == []
    fresh, told = run(cell, tmp_path, fresh=True)
    assert told
    assert lasting(fresh) == lasting(first)
    assert len(records.read(tmp_path / "out" / cell.id / "records.jsonl")) == len(first)


def test_other_settings_have_another_checkpoint(tmp_path):
    cell = SPECS["table1/mnist/linear/igr-i"].shortened()
    others = [(cell, {}), (cell.replicate(1), {}), (cell, {"dtype": torch.float64})]
    for number, (each, changes) in enumerate(others, 1):
        assert run(each, tmp_path, lambda: True, **changes)[0] is None
        assert len(checkpoints(tmp_path, cell.id)) == number
    for number, (each, changes) in enumerate(others, 1):
        assert run(each, tmp_path, **changes)[0]
        assert len(checkpoints(tmp_path, cell.id)) == len(others) - number
    assert len(records.read(tmp_path / "out" / cell.id / "records.jsonl")) == 12


def test_a_second_process_is_kept_off(tmp_path):
    cell, seen = SPECS["table1/mnist/linear/igr-i"].shortened(), []

    def meanwhile() -> bool:
        if not seen:
            with pytest.raises(checkpoint.CheckpointError, match="another process is at work"):
                run(cell, tmp_path)
            seen.append(True)
        return False

    assert run(cell, tmp_path, meanwhile)[0]
    assert seen


def test_starting_over_can_be_stopped_too(tmp_path):
    cell = SPECS["table1/mnist/linear/igr-i"].shortened()
    first, _ = run(cell, tmp_path)
    answer, calls = None, 0
    while answer is None:
        answer, _ = run(cell, tmp_path, lambda: True, fresh=True)
        calls += 1
        assert calls < 30
    assert calls > 5
    assert lasting(answer) == lasting(first)


def test_what_is_done_again_is_left_alone_by_those_who_find_records(tmp_path):
    cell, seen = SPECS["table1/mnist/linear/igr-i"].shortened(), []
    first, _ = run(cell, tmp_path)
    assert run(cell, tmp_path, lambda: True, fresh=True)[0] is None
    half_done = checkpoints(tmp_path, cell.id)
    assert run(cell, tmp_path) == (first, [])
    assert checkpoints(tmp_path, cell.id) == half_done != []

    def meanwhile() -> bool:
        seen.append(run(cell, tmp_path)[0])
        return False

    assert lasting(run(cell, tmp_path, meanwhile, fresh=True)[0]) == lasting(first)
    assert seen[0] == first
    assert checkpoints(tmp_path, cell.id) == []


def test_a_checkpoint_that_another_process_has_is_left_to_it(tmp_path):
    cell = SPECS["table1/mnist/linear/igr-i"].shortened()
    assert run(cell, tmp_path, lambda: True)[0] is None
    (file,) = checkpoints(tmp_path, cell.id)
    first, _ = run(cell, tmp_path, checkpoints=tmp_path / "others")
    with checkpoint.claim(file.parent):
        assert run(cell, tmp_path) == (first, [])
        assert file.exists()
    assert run(cell, tmp_path) == (first, [])
    assert not file.exists()


def cut_short(folder):
    (tensors,) = folder.glob("*.safetensors")
    tensors.write_bytes(tensors.read_bytes()[:1000])


def without_notes(folder):
    content = json.loads((folder / "state.json").read_text())
    del content["notes"]
    (folder / "state.json").write_text(json.dumps(content))


def of_other_shapes(folder):
    (file,) = folder.glob("*.safetensors")
    save_file({name: value.flatten()[:2].contiguous() for name, value in load_file(file).items()}, file)


@pytest.mark.parametrize("damage", [cut_short, without_notes, of_other_shapes])
def test_a_broken_checkpoint_is_refused(tmp_path, damage):
    cell = SPECS["table1/mnist/linear/igr-i"].shortened()
    run(cell, tmp_path, lambda: True)
    (file,) = checkpoints(tmp_path, cell.id)
    damage(file.parent)
    with pytest.raises(
        checkpoint.CheckpointError, match=r"cannot be used \(.*Error: .*remove the folder to start over"
    ):
        run(cell, tmp_path)
    assert run(cell, tmp_path, fresh=True)[0]  # which begins again beside it


def test_a_curve_that_a_checkpoint_knew_nothing_of_begins_where_it_was_resumed(tmp_path, monkeypatch):
    cell = replace(SPECS["beyond/mnist/linear/gs+rloo"].shortened(), epochs=4)
    enough = iter([False] * 6 + [True])
    with monkeypatch.context() as before:
        before.setattr(Ensemble, "held_out", lambda self, images: {})
        assert run(cell, tmp_path, lambda: next(enough))[0] is None
    found, _ = run(cell, tmp_path)
    assert {len(values) for record in found for values in record["curves"].values()} == {4}
    assert all(record["curves"]["elbo_discrete"][0] is None for record in found)
    assert all(record["curves"]["elbo_discrete"][-1] is not None for record in found)
    assert collect([tmp_path / "out"]).cells
