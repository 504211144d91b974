"""The page of claims: what the paper asserts, what the records say of it, and which."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby

from igr.paper.report.claims import ADEQUATE, EQUAL, SLOWER, Claim, claims
from igr.paper.report.collect import Records
from igr.paper.report.document import ABSENT, Block, Entry, Section, Table, Text
from igr.paper.report.lines import unlike
from igr.paper.report.parts import BESIDE, MUCH, NOISE, SEEN, TAIL, Book
from igr.paper.report.verdicts import FAILS, HOLDS, MISSING, UNDECIDED, UNTRIED, Judged, Outcome, judge
from igr.paper.report.words import place

__all__ = ["TITLE", "lead", "sections"]

MANY = 8  # ids: more are not named
PARTLY, DEPENDS = "undecided at least in part", "depends on how the records are read"
TITLE = "The paper's claims, and what the records say"
RULES = (
    f"A row is above another if the difference of the means over seeds exceeds {NOISE:g} combined standard deviations "
    "of the seeds, √(SD₁² + SD₂²): then the claim holds; if it is as far below, it fails; in between, or with a single "
    "seed, it is undecided. A claim that nothing is lost holds unless the row is below by more than that, and so the "
    "more easily the more seeds spread.",
    "A claim on log-likelihoods of VAEs has four readings: by two formulas, the published one, which is not a bound, "
    "and the importance-weighted bound; each at two temperatures, those that the discrete ELBO (the paper's rule) and "
    "the bound have chosen on validation images. Where one holds and another fails, it depends on the selection, "
    "on the formula, or on both. AIS, on few images and of linear models, stands beside them and is not counted: where "
    "it says the contrary, it is to be believed, of those images. Claims on ELBOs are read by the ELBO that they speak "
    "of, with both selections. "
    "Those on RELAX, which trains the discrete ELBO, are read by that as well; that of training images, of which the "
    "paper's table is not, is not counted. Claims on completions are read by the log-likelihood, those on mixtures by "
    "the published objective and by the bound.",
    "A claim on several rows holds if it does for all of them, unless the paper itself allows for exceptions; "
    "“a variety of experiments” are more than half of the blocks of Table 1. “IGR” alone is its best variant by the "
    "same number, unless the column “where” says every IGR, or names them.",
    "Quotation marks are around the paper's words; other sentences say what its tables show.",
    f"Approximations of distributions have a single seed, and so a threshold in place of a deviation: two fits differ "
    f"if their total variations do by more than {SEEN:g}; one is adequate up to {ADEQUATE:g}. A tail is the last "
    f"{100 * TAIL:g} % of a target, and counts as heavier or lighter from a factor of {MUCH:g} on. A fit begins on the "
    f"left if more than half of it is left of all but the first {100 * TAIL:g} % of its target.",
    f"Times are almost identical at {EQUAL[0]:g} to {EQUAL[1]:g} times, and about 30 % more at {SLOWER[0]:g} to "
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
    book, published = Book(found), Book(found, "published")
    every = [(claim, judge(claim.parts, claim.readings, claim.rule, book.recorded)) for claim in claims(book)]
    contrary = [_contrary(*each, same) for each, same in zip(every, claims(published), strict=True)]
    rows = tuple(
        (Entry(f"{i}"), Entry(claim.words), Entry(claim.where), Entry(outcome.verdict, bold=bool(outcome.readings)))
        for i, (claim, outcome) in enumerate(every, 1)
    )
    head = (Entry("no."), Entry("the paper"), Entry("where"), Entry("verdict"))
    counts = Text.of(_counts([outcome.verdict for _, outcome in every]))
    made = [Section("Verdicts", (counts, Table("All claims", head, rows, words=4)))]
    for title, some in groupby(enumerate(every, 1), key=lambda each: each[1][0].section):
        made.append(Section(title, tuple(_behind(i, *each, book, contrary[i - 1]) for i, each in some)))
    return made


def _counts(verdicts: Sequence[str]) -> str:
    """How many claims have which kind of verdict.

    Example:
        >>> _counts([HOLDS, f"so far {HOLDS}, in 2 of 4 readings", f"{FAILS} or {UNDECIDED}", "depends on the formula"])
        '4 claims: holds 2, undecided at least in part 1, depends on how the records are read 1. “So far” counts too.'
    """
    kinds = Counter(_kind(each.removeprefix("so far ").partition(",")[0]) for each in verdicts)
    order = (HOLDS, FAILS, PARTLY, DEPENDS, MISSING, UNTRIED)
    words = ", ".join(f"{kind} {kinds[kind]}" for kind in order if kinds[kind])
    return f"{len(verdicts)} claims: {words}. “So far” counts too."


def _kind(verdict: str) -> str:
    return DEPENDS if verdict.startswith("depends") else PARTLY if UNDECIDED in verdict else verdict


def _behind(i: int, claim: Claim, outcome: Outcome, book: Book, contrary: str) -> Block:
    """The records behind a verdict: a row for each part with records, a column for each reading."""
    title = f"{i}. {claim.words} ({claim.where}): {outcome.verdict}"
    if not outcome.readings:
        return Text.of(f"{title}. {_missing(claim, outcome)}".rstrip())
    beside = judge(claim.parts, BESIDE.get(claim.readings, ()), claim.rule, book.recorded)
    columns, judged = [*outcome.readings, *beside.readings], {**outcome.judged, **beside.judged}
    rows = [
        (Entry(part.label), *(_entry(judged.get((part.label, reading))) for reading in columns))
        for part in claim.parts
        if any((part.label, reading) in judged for reading in columns)
    ]
    said = {**outcome.readings, **beside.readings}
    rows.append((Entry("together"), *(Entry(said[reading], bold=reading in outcome.readings) for reading in columns)))
    marks = dict.fromkeys(beside.readings, "not counted")
    head = (Entry("part"), *(Entry(str(reading), end=marks.get(reading, "")) for reading in columns))
    notes = [claim.note, *_conditions(claim, outcome), contrary, _missing(claim, outcome)]
    return Table(title, head, tuple(rows), 1, tuple(filter(None, notes)))


def _entry(found: Judged | None) -> Entry:
    return Entry(ABSENT) if found is None else Entry(f"{found.words}, {found.verdict}")


def _conditions(claim: Claim, outcome: Outcome) -> list[str]:
    """Where rows are of other conditions than the paper's, or the paper's not what they are called."""
    shown = {label for label, _ in outcome.judged}
    ids = dict.fromkeys(id for part in claim.parts if part.label in shown for id in part.ids)
    found = dict.fromkeys((place(id.split("/")[1]), reason) for id in ids if (reason := unlike(id)))
    return [f"Not like for like, {where}: {reason}." for where, reason in found]


def _contrary(claim: Claim, outcome: Outcome, published: Claim) -> str:
    """What the records under protocol published, which are not counted, say to the contrary."""
    found = []
    for part, same in zip(claim.parts, published.parts, strict=True):
        for reading in claim.readings:
            here, there = outcome.judged.get((part.label, reading)), same.judge(reading)
            if here and there and there.whole and {here.verdict, there.verdict} == {HOLDS, FAILS}:
                found.append(f"{part.label} ({reading}): {_entry(there).text}")
    return f"The contrary under protocol published, which is not counted: {'; '.join(found)}." if found else ""


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
