"""Every sentence of the paper that says what an experiment has shown, as something that records can answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

from igr.paper.published import DATASETS, PUBLISHED
from igr.paper.report.cells import Cell
from igr.paper.report.lines import number
from igr.paper.report.notes import superseded
from igr.paper.report.parts import (
    COMPLETIONS,
    CONTINUOUS,
    ELBOS,
    LIKELIHOODS,
    MIXTURES,
    RELAXED,
    TRAIN,
    Book,
    noise,
)
from igr.paper.report.times import PUBLISHED as PUBLISHED_TIMES
from igr.paper.report.verdicts import Part, Reading, Rule, all_but, every, most
from igr.paper.report.words import ARCHITECTURES, place
from igr.paper.specs import SPECS, TIMES
from igr.paper.vae import RELAXATIONS

__all__ = ["Claim", "claims"]

IGR, GS = RELAXATIONS[:-1], RELAXATIONS[-1]
PLACES = tuple(product(DATASETS, ARCHITECTURES))
RELAX, S4 = "relax/mnist/nonlinear/", "s4/mnist/nonlinear/"
ADEQUATE = 0.05  # of total variation
EQUAL, SLOWER = (0.9, 1.1), (1.2, 1.4)  # of times: "almost identical", "about 30 %"
OTHER_COMPLETIONS = (("igr-i+s5", "gs+s5"), ("igr-i+unit+linear", "gs+linear"))
SAME_SIZE = "Here both have K = 20 components; the paper's DLDPMM have 7 to 17, of which none was timed."
PRIOR_COMPONENTS = 4.0  # the effective number in the prior's mean weights, 1/2, 1/4, ...


class Claim(NamedTuple):
    """A sentence, where it stands, and what it comes to."""

    section: str
    quote: str
    """In the paper's words, or in ours for what a table shows."""
    where: str
    parts: tuple[Part, ...]
    readings: tuple[Reading, ...]
    rule: Rule = every
    quoted: bool = True
    note: str = ""
    """What is to be known beside the verdict."""

    @property
    def words(self) -> str:
        """With marks, if they are the paper's."""
        return f"“{self.quote}”" if self.quoted else self.quote


def claims(book: Book) -> list[Claim]:
    """All of them, in the order of the paper."""
    return [
        *_general(book),
        *_approximations(book),
        *_table1(book),
        *_train_elbo(book),
        *_continuous(book),
        *_times(book),
        *_completions(book),
        *_mixtures(book),
        *_estimators(book),
    ]


def _ids(dataset: str, architecture: str, methods: Sequence[str], landing: bool) -> list[str]:
    return [f"table1/{dataset}/{architecture}/{method}{'+sl' if landing else ''}" for method in methods]


def _blocks(book: Book, *, weak: bool) -> tuple[Part, ...]:
    """The best IGR beside GS, in every block of Table 1."""
    return tuple(
        book.above(_ids(*each, IGR, landing), _ids(*each, [GS], landing), weak=weak)
        for landing in (False, True)
        for each in PLACES
    )


def _landing(book: Book, methods: Sequence[str], *, weak: bool) -> tuple[Part, ...]:
    """With sticking the landing beside without."""
    return tuple(
        book.above(_ids(*each, [method], True), _ids(*each, [method], False), weak=weak)
        for each in PLACES
        for method in methods
    )


def _general(book: Book) -> Iterator[Claim]:
    quote = "significantly outperforms [the Gumbel-Softmax] in a variety of experiments."
    where = "abstract; likewise introduction and conclusion"
    yield Claim("The whole paper", quote, where, _blocks(book, weak=False), LIKELIHOODS, most)
    quote = "we found better empirical performance with [softmax++ after the sticks than with vertex interpolation]"
    rows = [(f"table1/mnist/{each}/igr-sb", f"beyond/mnist/{each}/igr-sb+vertex") for each in ARCHITECTURES]
    parts = tuple(book.above([one], [other]) for one, other in rows)
    yield Claim("The whole paper", quote, "section 3.1; here on MNIST", parts, LIKELIHOODS)


def _approximations(book: Book) -> Iterator[Claim]:
    section, fits = "Approximations", book.fits()

    def fit(target: str, model: str) -> str:
        return f"approximate/{target}/{model}"

    def sizes(target: str, *numbers: int) -> tuple[Part, ...]:
        return tuple(book.closer(fit(target, "igr-sb"), fit(target, f"gs-{number}")) for number in numbers)

    quote = "We can see how the IGR-SB outperforms the GS without having to specify K."
    yield Claim(section, quote, "section 4.1, Poisson(50)", sizes("poisson", 20, 40, 100), fits)
    quote = "Due to the stick-breaking procedure, a random initialization concentrates to the left."
    yield Claim(section, quote, "section 4.1, Poisson(50)", (book.starts_left(fit("poisson", "igr-sb")),), fits)
    for target, quote in {
        "binomial": "We observe how both methods approximate the Binomial adequately",
        "discrete": "Results for this discrete distribution are similar to those observed on the Binomial.",
    }.items():
        parts = tuple(book.close(fit(target, model), ADEQUATE) for model in ("igr-i", "igr-sb", "gs"))
        yield Claim(section, quote, "appendix F, IGR-I and IGR-SB", parts, fits)
    quote = "the advantage of the IGR-SB […] was not translated to this simple example."
    parts = (book.closer(fit("binomial", "gs"), fit("binomial", "igr-sb"), weak=True),)
    yield Claim(section, quote, "appendix F, Binomial(12, 0.3)", parts, fits)
    quote = "the GS has difficulty approximating another distribution with a countably infinite support."
    where = "appendix F, NegativeBinomial(50, 0.6)"
    short, long = (fit("negative-binomial", f"gs-{K}") for K in (40, 100))
    parts = tuple(book.close(each, ADEQUATE, contrary=True) for each in (short, long))
    yield Claim(section, quote, f"{where}, K = 40 and 100", parts, fits)
    for id, heavy, quote in (
        (short, False, "The GS with K=40 […] doest not assign mass to the right tail"),
        (long, True, "the GS with K=100 has difficulty taking out sufficient weight from the right tail"),
    ):
        yield Claim(section, quote, where, (book.tail(id, heavy=heavy),), fits)


def _table1(book: Book) -> Iterator[Claim]:
    section = "Table 1"
    quote = "The IGR performs best or is within error, except in a single scenario."
    yield Claim(section, quote, "section 4.2", _blocks(book, weak=True), LIKELIHOODS, all_but(1))
    quote = "Note that all SL models outperform their non-SL counterparts"
    parts, note = _landing(book, RELAXATIONS, weak=False), f"Not so in the paper's own table: {_lost_by_landing()}."
    yield Claim(section, quote, "section 4.2", parts, LIKELIHOODS, note=note)
    quote = "the closed form KL of the IGR is not a key component of its superior empirical performance."
    where = "section 4.2; likewise conclusion; those that have a closed form"
    yield Claim(section, quote, where, _landing(book, ("igr-i", "igr-sb"), weak=True), LIKELIHOODS)
    for landing, (dataset, architecture) in product((False, True), PLACES):
        where = place(dataset, architecture) + (", with SL" if landing else "")
        ids = _ids(dataset, architecture, RELAXATIONS, landing)
        yield _bold(book, section, where, ids, LIKELIHOODS)


def _lost_by_landing() -> str:
    """The paper's rows that are worse with sticking the landing than without."""
    rows = [id for each in PLACES for id in _ids(*each, RELAXATIONS, False)]
    lost = [(id, PUBLISHED[id], PUBLISHED[f"{id}+sl"]) for id in rows]
    return ", ".join(f"{id} {number(a.value)} and {number(b.value)}" for id, a, b in lost if b.value < a.value)


def _bold(book: Book, section: str, where: str, ids: Sequence[str], readings: tuple[Reading, ...]) -> Claim:
    """What the paper prints bold, for the best or what is within error: above all else, and not below each other."""
    bold = [id for id in ids if PUBLISHED[id].bold]
    parts = [book.above([id], [other]) for id in bold for other in ids if other not in bold]
    parts += [book.above([id], [other], weak=True) for id in bold for other in bold if other != id]
    words = ", ".join(SPECS[id].label for id in bold)
    title = f"{section}, {where}" if where else section
    return Claim(section, f"In bold: {words}.", title, tuple(parts), readings, quoted=False)


def _train_elbo(book: Book) -> Iterator[Claim]:
    section = "Discretized train ELBO"

    def ids(dataset: str, methods: Sequence[str], landing: bool) -> list[str]:
        return [f"train-elbo/{dataset}/{method}{'+sl' if landing else ''}" for method in methods]

    rows = list(product(DATASETS, (False, True)))
    parts = [
        book.above(ids(dataset, [method], landing), ids(dataset, [GS], landing))
        for dataset, landing in rows
        for method in IGR
    ]
    quote = "We include this evaluation, which is also favorable to IGR, in the appendix."
    where = "section 4.2; appendix C, every IGR; which architecture is not said, here linear"
    yield Claim(section, quote, where, tuple(parts), TRAIN)
    for dataset, landing in rows:
        where = place(dataset) + (", with SL" if landing else "") + "; here linear"
        yield _bold(book, section, where, ids(dataset, RELAXATIONS, landing), TRAIN)


def _continuous(book: Book) -> Iterator[Claim]:
    section = "Continuous ELBO"
    pairs = [
        (_ids("mnist", architecture, [method], False), _ids("mnist", architecture, [GS], False))
        for architecture in ARCHITECTURES
        for method in IGR
    ]
    for weak, quote in {
        False: "the IGR also outperforms the GS on the continuous model (not only the discrete one).",
        True: "the performance gains of the IGR […] do not come at the cost of poorer continuous ones.",
    }.items():
        parts = tuple(book.above(*pair, weak=weak) for pair in pairs)
        where = "section 4.2, MNIST, every IGR; which architecture is not said"
        yield Claim(section, quote, where, parts, CONTINUOUS)


def _times(book: Book) -> Iterator[Claim]:
    section, clocks = "Execution time", book.clocks()

    both = tuple(Reading((*clock.axes, ("architecture", each))) for clock in clocks for each in ARCHITECTURES)
    where = "section 4.2, which architecture is not said"

    def pairs(method: str, others: Sequence[str], limits: tuple[float, float]) -> list[Part]:
        return [book.takes(TIMES.format(f"*/{method}"), TIMES.format(f"*/{other}"), *limits) for other in others]

    quote = "the execution times between the IGR and the GS were almost identical for the I and SB variants."
    parts = [*pairs("igr-i", [GS], EQUAL), *pairs("igr-sb", [GS], EQUAL)]
    yield Claim(section, quote, where, tuple(parts), both, note=PUBLISHED_TIMES)
    quote = "the IGR Planar is about 30% slower than all the other alternatives."
    parts = pairs("igr-planar", ["igr-i", "igr-sb", GS], SLOWER)
    yield Claim(section, quote, where, tuple(parts), both, note=PUBLISHED_TIMES)
    quote = "a single IGR-SB-MM run takes the same amount of time as a single DLDPMM run."
    parts = [book.takes(TIMES.format("igr-sb-mm"), TIMES.format("dldpmm"), *EQUAL)]
    alone = tuple(clock for clock in clocks if clock.get("training") == "alone")
    yield Claim(section, quote, "section 4.4", tuple(parts), alone, note=f"{SAME_SIZE} {PUBLISHED_TIMES}")


def _completions(book: Book) -> Iterator[Claim]:
    section, ids = "Structured output prediction", [f"sop/mnist/{method}" for method in RELAXATIONS]
    parts = tuple(book.above([id], ids[-1:]) for id in ids[:-1])
    quote, where = "once again, IGR outperforms the GS.", "section 4.3, every IGR"
    yield Claim(section, quote, where, parts, COMPLETIONS, note=_other_completions(book))
    yield _bold(book, section, "", ids, COMPLETIONS)


def _other_completions(book: Book) -> str:
    """What rows beside the paper's say, in which GS leaves the mean image."""
    found = []
    for igr, gs in OTHER_COMPLETIONS:
        judged = book.above([f"sop/mnist/{igr}"], [f"sop/mnist/{gs}"]).judge(COMPLETIONS[0])
        labels = " above ".join(SPECS[f"sop/mnist/{each}"].label for each in (igr, gs))
        found += [f"{labels}: {judged.words}, {judged.verdict}"] if judged is not None else []
    words = "Which models of GS leave the mean image depends on τ and on the network. Of rows beyond the paper"
    return f"{words}: {'; '.join(found)}." if found else ""


def _of_mixtures(book: Book, ids: Sequence[str]) -> str:
    """What is to be known beside a claim on these rows."""
    cells = [cell for id in ids if (cell := book.cell(id)) is not None]
    older = [f"{cell.spec} was {words}." for cell in cells for words in superseded(cell)]
    return " ".join(filter(None, [_unused(cells), *older]))


def _unused(cells: Sequence[Cell]) -> str:
    """That mixtures are not used, if the records say so, in which case posteriors of components hardly matter."""
    numbers = [cell.summary(cell.chosen(cell.criteria[-1]), "test", "components_effective") for cell in cells]
    means = [found.mean for found in numbers if found is not None]
    if not means or max(abs(mean - PRIOR_COMPONENTS) for mean in means) > 0.5:
        return ""
    said = " to ".join(dict.fromkeys(f"{mean:.1f}" for mean in (min(means), max(means))))
    return (
        f"The effective number of components is {said}, and of the prior alone {PRIOR_COMPONENTS:g}: these models do "
        "not use their mixture, so that its posterior has little to lose."
    )


def _mixtures(book: Book) -> Iterator[Claim]:
    section = "Nonparametric mixtures"
    quote = "truly nonparametric inference thus not requiring an expensive hyperparameter search over K"
    yield Claim(section, quote, "section 4.4", (), ())
    quote = "this does not come at the cost of decreased performance."
    rows = [[f"nonparametric/{dataset}/{method}+sl"] for dataset in ("mnist", "omniglot") for method in MM]
    parts = tuple(book.above(*pair, weak=True) for pair in zip(rows[::2], rows[1::2], strict=True))
    yield Claim(section, quote, "section 4.4", parts, MIXTURES, note=_of_mixtures(book, [id for [id] in rows]))
    for dataset in ("mnist", "omniglot"):
        ids = [f"nonparametric/{dataset}/{method}+sl" for method in MM]
        yield _bold(book, section, place(dataset), ids, MIXTURES)._replace(note=_of_mixtures(book, ids))


MM = ("igr-sb-mm", "dldpmm")


def _estimators(book: Book) -> Iterator[Claim]:
    section = "Other estimators"
    ours, theirs = f"{RELAX}igr-i+relax", f"{RELAX}gs+relax"
    quote = "we compared IGR and the GS using [RELAX] […] this comparison — which was yet again favorable to IGR"
    a, b = PUBLISHED[ours], PUBLISHED[theirs]
    note = f"The paper's own rows are {number(a.value - b.value)} apart, and {noise(a.sd, b.sd):.2f} would be noise."
    yield Claim(section, quote, "section 4.2", (book.above([ours], [theirs]),), RELAXED, note=note)
    pairs = {ours: RELAX + "igr-i", theirs: RELAX + "gs"}
    parts = tuple(book.above([with_relax], [without]) for with_relax, without in pairs.items())
    where = "appendix D, table of RELAX"
    yield Claim(section, "RELAX improves both.", where, parts, RELAXED, quoted=False)
    yield _bold(book, section, where, [*pairs, *pairs.values()], RELAXED)
    four = [S4 + row for row in ("igr-i+relax", "igr-i", "gs+relax", "gs+uspg", "gs")]
    parts = tuple(book.above(four[:2], [other]) for other in four[2:])
    where = "appendix D, table of USPGBL"
    yield Claim(section, "again, IGR performs best.", where, parts, ELBOS)
    yield _bold(book, section, where, four, ELBOS)
    quote = "we found better performance with [quadrature] than with a Monte Carlo approximation"
    yield Claim(section, quote, "appendix B, of RELAX with IGR", (), ())
    quote = "we found the method prone to numerical instabilities, which we solved by limiting the range of values"
    yield Claim(section, quote, "appendix B, of the quadrature for RELAX with IGR", (), ())
