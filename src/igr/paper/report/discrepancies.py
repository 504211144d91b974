"""Where ours and the paper's numbers differ by more than noise, and why, as far as that is known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import NamedTuple

from igr.paper.published import Published
from igr.paper.report.cells import Cell, Summary
from igr.paper.report.columns import chosen_by as criterion_of
from igr.paper.report.columns import paper, prior_temperature, rows_of, tau
from igr.paper.report.document import ABSENT, Entry, Table, heading
from igr.paper.report.lines import Line, lines, number, sources
from igr.paper.report.parts import NOISE, noise
from igr.paper.report.tables import published
from igr.paper.report.words import KINDS
from igr.paper.specs import SPECS, Derived
from igr.paper.vae import RELAXATIONS

__all__ = ["KL_EXCESS", "OPEN", "discrepancies"]

OPEN = "open"
UNSAID = "the paper chooses τ by the loss of the discrete model, and does not say which τ that was"
MEASURES = {  # what is compared with the paper's number, by the kind of a row; of others the published formula
    "train-elbo": ("train", "elbo_discrete"),
    "s4": ("test", "elbo_discrete"),
    "sop": ("test", "log_likelihood"),
    "nonparametric": ("test", "objective_published"),
}
NUMBERS = {"table1": "the log-likelihood", "train-elbo": "the train ELBO"}  # which the same models have
PARTLY = "in part"
FIXED = 0.5  # the temperature of GS's prior in the published code
GS_PRIOR = (
    f"perhaps {PARTLY}: the temperature of GS's prior is chosen here with τ; the published code fixes it at {FIXED:g}, "
    "and which τ the paper's row has is not known"
)
KL_EXCESS = {"linear": 1.65, "nonlinear": 0.65}  # nats, measured with that code on a model of each, not in records
WRONG_KL = f"{PARTLY}: the published code's KL of IGR-I is that of h(y/σ), not of h(y), {{:g}} nats too large".format
LAST = (
    f"{PARTLY}: the published IGR-SB never reaches its last category, which costs 20 log(10/9) = 2.1 nats of KL; here "
    "the leftover stick is that category"
)
UNIT = "perhaps: the published code fixes σ at 1 and does not apply τ; here σ is learned and τ chosen"
UNIT_ROW = "perhaps the scale: with σ = 1, as in the published code,"
SCRIPT = "one linear layer in place of each pair, as in the published script,"
AS_IN_SCRIPTS = {  # the same row with settings of the published scripts
    "slow": "perhaps the learning rate: at 1e-4, as in the published script,",
    "tau": "perhaps the temperature: with one that the published script names, and the paper's grid does not have,",
    "script": "perhaps temperature and learning rate: with those that the published script names,",
}
LINEAR = {
    f"{table}/{method}": {
        id: words for row, words in AS_IN_SCRIPTS.items() if (id := f"beyond/mnist/linear/{method}+{row}") in SPECS
    }
    for table in ("table1/mnist/linear", "train-elbo/mnist")
    for method in RELAXATIONS
}
BRIDGES = LINEAR | {  # rows that are nearer to the published code, and what they have of it
    "sop/mnist/igr-i": {
        "sop/mnist/igr-i+unit+linear": f"perhaps scale and network: with σ = 1 and {SCRIPT}",
        "sop/mnist/igr-i+unit": UNIT_ROW,
    },
    "sop/mnist/igr-planar": {"sop/mnist/igr-planar+unit": UNIT_ROW},
    "sop/mnist/gs": {"sop/mnist/gs+linear": f"perhaps the network: with {SCRIPT}"},
}
RELAXED = (
    "perhaps: the paper does not say whether its row is of the discrete or of the relaxed model, and its code logs the "
    "ELBO of the latter, which the table has as continuous ELBO"
)
OTHER_RELAX = (
    "perhaps: in the published code RELAX has networks of its own and learns a temperature for each category of each "
    "variable; the paper says non-linear, as ours is, and no more"
)
OTHER_USPG = (
    "perhaps: USPGBL is not in the published code, and that of its authors has another rate, batch and length; ours "
    "has the settings of all rows, as the paper says of its models"
)
SLOTS = "perhaps in part: the published code draws the prior's means anew for every place in a batch"
MASS, TEST_K = f"{SLOTS} and drops the mass beyond the truncation", f"{SLOTS} and chooses K on the test split"


def _always(line: Line, ratio: float) -> bool:
    return True


def _above(line: Line, ratio: float) -> bool:
    """Ours is above the paper's."""
    return ratio >= 0


def _prior_is_chosen(line: Line, ratio: float) -> bool:
    """The prior's temperature is not the one that the published code has."""
    return line.configuration is None or line.configuration.prior_temperature != FIXED


REASONS = (  # ids, protocol, when, and why; the first that fits
    ("table1/*/gs*", "honest", _prior_is_chosen, GS_PRIOR),
    ("train-elbo/*/gs*", "honest", _prior_is_chosen, GS_PRIOR),
    ("table1/*/linear/igr-i*", "published", _above, WRONG_KL(KL_EXCESS["linear"])),
    ("table1/*/nonlinear/igr-i*", "published", _above, WRONG_KL(KL_EXCESS["nonlinear"])),
    ("train-elbo/*/igr-i*", "published", _above, WRONG_KL(KL_EXCESS["linear"])),
    ("table1/*/igr-sb*", "honest", _above, LAST),
    ("train-elbo/*/igr-sb*", "honest", _above, LAST),
    ("sop/mnist/igr-*", "honest", _always, UNIT),
    ("s4/mnist/nonlinear/igr-i", "honest", _always, RELAXED),
    ("s4/mnist/nonlinear/gs+relax", "honest", _always, OTHER_RELAX),
    ("s4/mnist/nonlinear/gs+uspg", "honest", _always, OTHER_USPG),
    ("nonparametric/*/igr-sb-mm*", "honest", _always, MASS),
    ("nonparametric/*/dldpmm*", "honest", _always, TEST_K),
)


def discrepancies(cells: Sequence[Cell]) -> Table | None:
    """A row for each number that is further from the paper's than noise, if there are such."""
    every = list(_lines(cells))
    found = {_place(line, line.spec): line for line, _ in every}
    rows = [row for line, kind in every if (row := _row(line, kind, found)) is not None]
    apart = dict.fromkeys(line.spec for line, _ in every if line.incomparable is not None)
    words = f"Not comparable, for the reasons below their tables, and so left out: {', '.join(apart)}."
    head = ("cell", "why", "protocol", "chosen by", "τ", "prior τ", "paper", "ours", "Δ", "Δ / SD|combined")
    title = f"Differences of more than {NOISE:g} combined standard deviations"
    return Table(title, tuple(map(heading, head)), tuple(rows), 4, (words,) if apart else ()) if rows else None


def _lines(cells: Sequence[Cell]) -> Iterator[tuple[Line, str]]:
    for kind in (*KINDS, "train-elbo"):
        ids = sources(kind)
        for protocol in ("honest", "published"):
            some = [cell for cell in cells if cell.spec in ids and cell.protocol == protocol and not cell.synthetic]
            yield from ((line, kind) for line in rows_of(ids, some) if line.cell is not None)


def _ours(line: Line, kind: str) -> Summary | None:
    if line.cell is None:
        return None
    return line.summary(*(MEASURES.get(kind) or ("test", published(line.cell))))


def _deviations(paper: Published, ours: Summary, excess: float = 0.0) -> float:
    """How many combined standard deviations ours, less what is known to be counted otherwise, is above the paper's."""
    return NOISE * (ours.mean - excess - paper.value) / noise(ours.sd or 0.0, paper.sd)


Place = tuple[str, str, str]


def _place(line: Line, spec: str) -> Place:
    """A row under the protocol, and with the selection, of this one."""
    return spec, _protocol(line), line.criterion


def _protocol(line: Line) -> str:
    return line.cell.protocol if line.cell is not None else ""


def _row(line: Line, kind: str, found: Mapping[Place, Line]) -> tuple[Entry, ...] | None:
    ours = _ours(line, kind)
    if line.paper is None or line.cell is None or line.incomparable is not None:
        return None
    if ours is None or ours.sd is None:  # one seed has no deviation
        return None
    ratio = _deviations(line.paper, ours)
    if abs(ratio) <= NOISE:
        return None
    return (
        Entry(line.spec),
        Entry(_reason(line, kind, ratio, found)),
        Entry(line.cell.protocol),
        Entry(line.cell.chosen_by(line.criterion) if line.criterion else ABSENT),
        tau(line),
        prior_temperature(line),
        paper(line),
        Entry(_spread(ours)),
        Entry(number(ours.mean - line.paper.value, sign=True)),
        Entry(f"{ratio:+.1f}".replace("-", "−")),
    )


def _spread(ours: Summary) -> str:
    return number(ours.mean) + ("" if ours.sd is None else f" ± {ours.sd:.2f}")


def _reason(line: Line, kind: str, ratio: float, found: Mapping[Place, Line]) -> str:
    """Why, as far as it is known: the other selection, a nearer row, or a reason of the list; if none, it is open."""
    other, explained = _other_selection(line, kind)
    if explained:
        return f"selection: {other}; {UNSAID}"
    if (bridge := _nearest(line, kind, found)) is not None:
        rest = None if bridge.explains or bridge.corrected else _listed(line, bridge.ratio)
        words = f"{bridge.words}; {rest}" if rest is not None and rest.startswith(PARTLY) else bridge.words
    else:
        words = _listed(line, ratio) or (f"{OPEN}: {other}" if other else OPEN)
    there = found.get((line.spec, "published", line.criterion))
    if _protocol(line) == "published" or there is None or _ours(there, kind) is None:
        return words
    return f"{words}; {_bridge(line, there, kind, 'under protocol published').words}"


class _Bridge(NamedTuple):
    """A row that is nearer to the published code."""

    words: str
    """What it has of that code, and how far it is from the paper."""
    left: float
    """By how much it is above the paper's number, less what is known to be counted otherwise."""
    ratio: float
    """The same in combined standard deviations."""
    explains: bool
    """Whether all of the paper's numbers that are read from the same models are within noise."""
    corrected: bool
    """Whether something is known to be counted otherwise."""


def _nearest(line: Line, kind: str, found: Mapping[Place, Line]) -> _Bridge | None:
    """Of the rows that have more of the published code, one that explains all, else the nearest to the paper."""
    rows = [(found.get(_place(line, id)), words) for id, words in BRIDGES.get(line.spec, {}).items()]
    made = [_bridge(line, there, kind, words) for there, words in rows if there is not None and _ours(there, kind)]
    nearer = [each for each in made if abs(each.left) < abs(_left(line, line, kind))]
    return min(nearer, key=lambda each: (not each.explains, abs(each.left)), default=None)


def _bridge(line: Line, there: Line, kind: str, words: str) -> _Bridge:
    ours, excess = _ours(there, kind), _excess(there, kind)
    assert ours is not None
    assert line.paper is not None
    raw, left, ratio = ours.mean - line.paper.value, _left(line, there, kind), _deviations(line.paper, ours, excess)
    apart = [f"{NUMBERS[kind]} of the same models is off by {off}" for kind, off in _further(line, there)]
    within = abs(_deviations(line.paper, ours)) <= NOISE
    said = f"{words} it has {_spread(ours)} at τ = {tau(there).text}, "
    said += "within noise" if within else f"off by {number(raw, sign=True)}"
    if excess:
        said += f"; {_less(excess)} it is "
        said += "within noise" if abs(ratio) <= NOISE else f"off by {number(left, sign=True)}"
    if abs(ratio) <= NOISE and apart:
        said += f", but {' and '.join(apart)}"
    return _Bridge(said, left, ratio, abs(ratio) <= NOISE and not apart, bool(excess))


def _left(line: Line, there: Line, kind: str) -> float:
    """How far above the paper's number of a row another one is, less what is known to be counted otherwise."""
    ours = _ours(there, kind)
    assert ours is not None
    assert line.paper is not None
    return ours.mean - _excess(there, kind) - line.paper.value


def _excess(line: Line, kind: str) -> float:
    """By how much the published KL of these models is too large, if the paper's number has that KL."""
    if kind not in NUMBERS or line.method != "igr-i" or line.cell is None or _protocol(line) != "published":
        return 0.0
    return KL_EXCESS[line.cell.settings["architecture"]]


def _less(excess: float) -> str:
    return f"less the {excess:g} nats by which the published KL is too large"


def _listed(line: Line, ratio: float) -> str | None:
    """The first reason of the list that fits a difference of so many deviations."""
    protocol = _protocol(line)
    fitting = (
        why
        for ids, under, holds, why in REASONS
        if fnmatchcase(line.spec, ids) and under == protocol and holds(line, ratio)
    )
    return next(fitting, None)


def _other_selection(line: Line, kind: str) -> tuple[str, bool]:
    """What it is with the τ of the other criterion, and whether that explains all numbers of the same models."""
    for each in lines(line.cell, line.spec) if line.cell is not None else ():
        ours = _ours(each, kind)
        if each.criterion == line.criterion or line.paper is None or ours is None:
            continue
        excess, left = _excess(each, kind), _left(line, each, kind)
        words = f"with the τ that the {criterion_of(each).text} chooses, {tau(each).text},"
        words += f" {_less(excess)}" if excess else ""
        if abs(_deviations(line.paper, ours, excess)) > NOISE:
            across = left * _left(line, line, kind) < 0
            return f"{words} it is off to the other side, by {number(left, sign=True)}" if across else "", False
        apart = [f"{NUMBERS[kind]} of the same models is off by {off}" for kind, off in _further(line, each)]
        return f"{words} it is within noise" + (f", but {' and '.join(apart)}" if apart else ""), not apart
    return "", False


def _further(line: Line, there: Line) -> Iterator[tuple[str, str]]:
    """The paper's other numbers of the models of a row, by their kinds, if another row differs by more than noise."""
    sources = line.cell.spec if line.cell is not None else ""
    derived = (spec.id for spec in SPECS.values() if isinstance(spec, Derived) and spec.sources == (sources,))
    for id in (sources, *derived):
        kind, each = id.partition("/")[0], replace(there, spec=id)
        if id == line.spec or each.paper is None or each.incomparable is not None:
            continue
        ours, excess = _ours(each, kind), _excess(each, kind)
        if ours is not None and abs(_deviations(each.paper, ours, excess)) > NOISE:
            yield kind, number(ours.mean - excess - each.paper.value, sign=True)
