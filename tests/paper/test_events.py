"""Curves as TensorBoard reads them back."""

from dataclasses import replace

import pytest
from run_cases import options

from igr._commands.run import train
from igr.paper import records
from igr.paper.events import Events
from igr.paper.specs import SPECS

pytest.importorskip("tensorboard", reason="needs TensorBoard: pip install 'igr[tensorboard]', or make ray")

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # TensorBoard's own
]
CELL = replace(SPECS["table1/mnist/linear/gs"].shortened(), epochs=4)


def run(folder, cell=CELL, stop=lambda: False, fresh=False):
    """As a call of the command, which knows nothing of earlier ones."""
    done = train([cell], options(folder, fresh=fresh), stop, None, events=Events(folder / "events"))
    return done, records.read(folder / "out" / cell.id / "records.jsonl")


def shown(path):
    """What TensorBoard shows of a run: steps and values of every curve."""
    read = EventAccumulator(str(path)).Reload()
    return {name: [(at.step, at.value) for at in read.Scalars(name)] for name in read.Tags()["scalars"]}


def place(folder, record):
    prior = "" if record["prior_temperature"] is None else f"-prior-{record['prior_temperature']}"
    return (
        folder / "events" / record["spec"] / "honest-smoke" / f"tau-{record['tau']}{prior}" / f"seed-{record['seed']}"
    )


def check(folder, found):
    """Every record has a run, whose files hold its curves and each point once."""
    files = list((folder / "events").rglob("*tfevents*"))
    assert sorted(file.parent for file in files) == sorted(place(folder, record) for record in found)
    for record in found:
        epochs = record["curves"]["epoch"]
        expected = {
            name: [
                (epoch, pytest.approx(value, rel=1e-6))
                for epoch, value in zip(epochs, values, strict=True)
                if value is not None
            ]
            for name, values in record["curves"].items()
            if name != "epoch"
        }
        assert shown(place(folder, record)) == {name: points for name, points in expected.items() if points}
        (file,) = place(folder, record).iterdir()
        assert len(list(RawEventFileLoader(str(file)).Load())) == 1 + len(epochs)


def test_runs_are_the_curves_of_the_records(tmp_path):
    done, found = run(tmp_path)
    assert done
    assert {"train_loss", "elbo_continuous"} <= found[0]["curves"].keys()
    assert found[0]["curves"]["epoch"] == [1, 2, 3, 4]
    check(tmp_path, found)


def test_a_mixture_has_runs_by_its_components(tmp_path):
    _, found = run(tmp_path, replace(SPECS["nonparametric/mnist/dldpmm"].shortened(), epochs=1))
    runs = {path.parent.relative_to(tmp_path / "events").parts[-2:] for path in tmp_path.rglob("*tfevents*")}
    assert runs == {(f"K-{record['num_components']}", f"seed-{record['seed']}") for record in found}


def test_going_on_writes_no_point_twice(tmp_path):
    calls, parts = 0, 0

    def every_fifth() -> bool:
        nonlocal calls
        calls += 1
        return calls % 5 == 0

    done = False
    while not done:
        done, found = run(tmp_path, stop=every_fifth)
        parts += 1
    assert parts > 3
    check(tmp_path, found)


def test_training_that_goes_back_takes_its_points_along(tmp_path):
    _, found = run(tmp_path)
    events = Events(tmp_path / "events")
    for points in (1, 3, 2, 3, 4):  # from the third to the second: a checkpoint was older than what was told
        members = [{name: values[:points] for name, values in record["curves"].items()} for record in found]
        events.follow(CELL, members)
        check(tmp_path, [record | {"curves": each} for record, each in zip(found, members, strict=True)])


def test_values_that_are_not_finite_are_left_out(tmp_path):
    _, found = run(tmp_path)
    broken = found[0] | {"curves": found[0]["curves"] | {"train_loss": [1.5, None, None, None]}}
    Events(tmp_path / "events").write([broken])
    check(tmp_path, [broken, *found[1:]])


def test_what_is_done_already_is_shown_too(tmp_path):
    assert train([CELL], options(tmp_path), lambda: False, None)
    done, found = run(tmp_path)
    assert done
    check(tmp_path, found)


def test_starting_over_replaces_the_points(tmp_path):
    run(tmp_path)
    _, found = run(tmp_path, fresh=True)
    check(tmp_path, found)
