"""The page of claims: what the paper asserts, what the records say of it, and which."""

from __future__ import annotations

from itertools import groupby

from igr.paper.report.claims import ADEQUATE, EQUAL, SLOWER, Claim, claims
from igr.paper.report.collect import Records
from igr.paper.report.document import ABSENT, Block, Entry, Section, Table, Text
from igr.paper.report.lines import unlike
from igr.paper.report.parts import AIS, LIKELIHOODS, MUCH, NOISE, SEEN, TAIL, Book
from igr.paper.report.verdicts import Judged, Outcome, judge
from igr.paper.report.words import place

__all__ = ["TITLE", "lead", "sections"]

MANY = 8  # ids: more are not named
TITLE = "The paper's claims, and what the records say"
RULES = (
    f"A row is above another if the difference of the means over seeds exceeds {NOISE:g} combined standard deviations "
    "of the seeds, √(SD₁² + SD₂²): then the claim holds; if it is as far below, it fails; in between, or with a single "
    "seed, it is undecided. Where the paper claims no more than that nothing is lost, it holds unless it is as far "
    "below.",
    "A claim on VAEs is read in four ways: by the published formula, which is not a bound, and by the "
    "importance-weighted bound; and with the temperatures that the discrete ELBO (the paper's rule) or the bound "
    "has chosen on validation images. Where one holds and another fails it depends on the selection, on the formula, "
    "or on both. The claim on RELAX, which is about how well it optimises, is read by the discrete ELBO on training "
    "images as well. AIS, on few images and of linear models, stands beside them and is not counted: where it says the "
    "contrary, it is to be believed.",
    "A claim on several rows holds if it does for all of them, unless the paper itself allows for exceptions; "
    "“a variety of experiments” are more than half of the blocks of Table 1. “IGR” alone is its best variant by the "
    "same number, unless all are named.",
    "Quotation marks are around the paper's words; other sentences say what its tables show.",
    f"Two fits differ if their total variations do by more than {SEEN:g}; one is adequate up to {ADEQUATE:g}. A tail "
    f"is the last {100 * TAIL:g} % of a target, and one is above or below another from a factor of {MUCH:g} on. Times "
    f"are almost identical at {EQUAL[0]:g} to {EQUAL[1]:g} times, and about 30 % more at {SLOWER[0]:g} to "
    f"{SLOWER[1]:g} times.",
    "“So far”: some of the records are missing, and named below the claim. Only records under protocol honest count, "
    "on real images, with the settings and seeds of the specs.",
)


def lead() -> tuple[Block, ...]:
    """How verdicts come about."""
    words = "Verdicts are computed from the records, by these rules; none is written by hand."
    return Text.of(words), Text(RULES)


def sections(found: Records) -> list[Section]:
    """All verdicts in one table, and then the records behind each."""
    book = Book(found)
    every = [(claim, judge(claim.parts, claim.readings, claim.rule, book.recorded)) for claim in claims(book)]
    rows = tuple(
        (Entry(f"{i}"), Entry(claim.words), Entry(claim.where), Entry(outcome.verdict, bold=bool(outcome.readings)))
        for i, (claim, outcome) in enumerate(every, 1)
    )
    head = (Entry("no."), Entry("the paper"), Entry("where"), Entry("verdict"))
    made = [Section("Verdicts", (Table("All claims", head, rows, words=4),))]
    for title, some in groupby(enumerate(every, 1), key=lambda each: each[1][0].section):
        made.append(Section(title, tuple(_behind(i, *each, book) for i, each in some)))
    return made


def _behind(i: int, claim: Claim, outcome: Outcome, book: Book) -> Block:
    """The records behind a verdict: a row for each part with records, a column for each reading."""
    title = f"{i}. {claim.words} ({claim.where}): {outcome.verdict}"
    if not outcome.readings:
        return Text.of(f"{title}. {_missing(claim, outcome)}".rstrip())
    ais = judge(claim.parts, AIS if claim.readings == LIKELIHOODS else (), claim.rule, book.recorded)
    columns, judged = [*outcome.readings, *ais.readings], {**outcome.judged, **ais.judged}
    rows = [
        (Entry(part.label), *(_entry(judged.get((part.label, reading))) for reading in columns))
        for part in claim.parts
        if any((part.label, reading) in judged for reading in columns)
    ]
    said = {**outcome.readings, **ais.readings}
    rows.append((Entry("together"), *(Entry(said[reading], bold=reading in outcome.readings) for reading in columns)))
    marks = dict.fromkeys(ais.readings, "not counted")
    head = (Entry("part"), *(Entry(str(reading), end=marks.get(reading, "")) for reading in columns))
    notes = [claim.note, *_conditions(claim, outcome), _missing(claim, outcome)]
    return Table(title, head, tuple(rows), 1, tuple(filter(None, notes)))


def _entry(found: Judged | None) -> Entry:
    return Entry(ABSENT) if found is None else Entry(f"{found.words}, {found.verdict}")


def _conditions(claim: Claim, outcome: Outcome) -> list[str]:
    """Where rows are of other conditions than the paper's, or the paper's not what they are called."""
    shown = {label for label, _ in outcome.judged}
    ids = dict.fromkeys(id for part in claim.parts if part.label in shown for id in part.ids)
    found = dict.fromkeys((place(id.split("/")[1]), reason) for id in ids if (reason := unlike(id)))
    return [f"Not like for like, {where}: {reason}." for where, reason in found]


def _missing(claim: Claim, outcome: Outcome) -> str:
    """What has no records, or how much, if it is a lot."""
    if not outcome.missing:
        return ""
    if len(outcome.missing) > MANY:
        everyone = len({id for part in claim.parts for id in part.ids})
        return f"Without records: {len(outcome.missing)} of {everyone} rows, which the page of the reproduction lists."
    groups: dict[str, list[str]] = {}
    for id in outcome.missing:
        place, _, row = id.rpartition("/")
        groups.setdefault(place, []).append(row)
    names = {place: rows[0] if len(rows) == 1 else f"{{{','.join(rows)}}}" for place, rows in groups.items()}
    return f"Without records: {', '.join(f'{place}/{rows}' for place, rows in names.items())}."
