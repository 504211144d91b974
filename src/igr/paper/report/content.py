"""The report, put together: which tables and figures there are, and what is said about them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from igr.paper import approximate_table
from igr.paper.records import Record
from igr.paper.report import charts, mixtures, sop, tables, times
from igr.paper.report.cells import Cell
from igr.paper.report.collect import Records
from igr.paper.report.discrepancies import discrepancies
from igr.paper.report.document import SMOKE, Block, Document, Entry, Image, Section, Table, Text
from igr.paper.report.notes import missing
from igr.paper.report.pictures import galleries
from igr.paper.report.provenance import changed, environment, run_times
from igr.paper.report.words import listed

__all__ = ["compose"]

TITLE = "Relaxations of discrete variables: the paper's tables beside ours"
SYNTHETIC = "Omniglot is synthetic here: strokes drawn by a program stand in for its images. No result on Omniglot."
LEAD = (
    "Every number of ours is read from records of finished runs. Means are over seeds, ± is their sample standard "
    "deviation, all in nats; higher is better. What has no record is left out, or is a dash. The paper's numbers are "
    "bold where the paper has them bold. What is said of the published code itself, such as how long it takes and by "
    "how much its KL is off, was measured with that code, and is in no record; more of it is on the page of "
    "experiments.",
)
READING = (
    "Protocol honest: τ, and for GS the prior's temperature, is chosen on a validation split, once by the discrete "
    "ELBO (the paper's rule) and once by the bound. The test split is looked at once, for what was chosen.",
    "Protocol published follows the published code, to bridge to the paper: no validation split, so τ is chosen on "
    "the test split; its decoders; Omniglot with ink as 0; the prior's temperature of GS at 0.5; IGR-SB as printed. "
    "Not reproduced: its fractional Omniglot targets; its estimates of the KL, a plug-in of 1,000 draws and a "
    "quadrature of h(y/σ); the learning rate 1e-4 of its script, but for rows that name it; its files of priors: "
    "IGR-I and IGR-Planar have the numbers of a comment of it, and IGR-SB a fit made anew.",
    "Temperatures of IGR-I and IGR-Planar under the two protocols are on different scales, since only ratios of y to τ "
    "matter: the prior of protocol honest has σ = 1, and that of protocol published 0.77, so that its τ = 0.1 is 0.13 "
    "under protocol honest.",
    "The published formula, log-mean-exp of log p(x|z) minus an analytic KL, is not a bound: it can exceed log p(x). "
    "It is here to compare with the paper's tables alone: in tables of log-likelihoods Δ is ours by it, with the "
    "larger S, minus the paper's, and in tables of ELBOs that of the discrete ELBO.",
    "The bound is the importance-weighted one of Burda et al. on the recovered discrete model, with weights "
    "log p(x|z) + log p(z) − log q(z|x): on average it is not above log p(x). The discrete ELBO is a looser bound.",
    "AIS estimates log p(x) itself, for linear decoders on some images; beside it stands the bound on the same images. "
    "Its ± is over seeds, on these few images.",
    "Even with 1,000 samples the bound may be several nats below log p(x), by different amounts for different methods. "
    "Where AIS, which is closest to log p(x), orders two models otherwise than the bound, AIS is to be believed.",
    "The continuous ELBO is of the relaxed model that is trained, and says nothing certain of the discrete one.",
    "VAEs with RELAX, USPGBL, RLOO, ReinMax, GapST, Gumbel-Rao or IGR-Rao train the discrete ELBO itself: its KL is "
    "exact, and the gradient of the rest is what that estimator makes of hard samples.",
)
LENGTH = (
    "Specs of VAEs fix the learning rate at 3e-4 and the length at 300 epochs, for every method, but for rows that "
    "name another rate; the paper says 1e-4 or 3e-4, and 300 to 500 epochs, and not which where. "
)
FURTHER = {  # sections of tables, and what is said of them
    "relax": "The appendix's table of RELAX: test log-likelihood, and the discrete ELBO of the same models. The rows "
    "without RELAX are those of Table 1.",
    "s4": "The appendix's table of USPGBL: test ELBO of models that are trained with four samples.",
    "beyond": "Rows that the paper does not have: other objectives, forward passes and estimators of the gradient, on "
    "the same architectures.",
}
CURVES = (
    "at the τ that the discrete ELBO has chosen; mean ± standard deviation over seeds. Diamonds: the test split, "
    "after training. The first epochs may lie below the frame."
)
DOTTED = " Dotted: the training objective, on training images; with the discrete KL alone, of relaxed samples."


def compose(found: Records) -> Document:
    """The whole report of these records, whose figures are drawn once they are asked for."""
    lead: list[Block] = [Text(LEAD)]
    if any(cell.synthetic for cell in found.cells):
        lead.append(Text.of(SYNTHETIC, warning=True))
    if (words := changed(found.all)) is not None:
        lead.append(Text.of(words, warning=True))
    vaes = [cell for cell in found.cells if cell.kind in tables.TITLES]
    about_vaes = bool(vaes) or not found.cells
    lead.extend([Text((*READING, LENGTH + _lengths(vaes)))] if about_vaes else [])
    sections = [
        *(_tables([cell for cell in vaes if cell.protocol == "honest"]) if about_vaes else ()),
        *_other_protocols(vaes),
        *_figures(vaes),
        *_other_models(found.cells),
        *_approximations(found.approximations),
        *_section_of("Execution time", times.blocks(found.times)),
        *(() if found.smoke else _beyond_noise(found)),
        *_pictures(vaes),
        *_others(found.others),
        *_provenance(found),
    ]
    return Document(TITLE, SMOKE if found.smoke else None, tuple(lead), tuple(sections))


def _lengths(cells: Sequence[Cell]) -> str:
    """What these records have, whatever specs say."""
    rates = sorted({cell.settings["learning_rate"] for cell in cells if "learning_rate" in cell.settings})
    epochs = sorted({cell.settings["epochs"] for cell in cells if "epochs" in cell.settings})
    if not rates or not epochs:
        return "There are no records of trained models yet."
    words = " and ".join(f"{rate:.0e}".replace("e-0", "e-") for rate in rates)
    return f"Here: {words}, {' and '.join(map(str, epochs))} epochs."


def _tables(cells: Sequence[Cell]) -> Iterator[Section]:
    first = [cell for cell in cells if cell.kind == "table1"]
    words = "Test log-likelihood, and the discrete ELBO of the same models. Two rows a method: τ chosen in two ways."
    yield _section("Table 1", words, tables.tested("table1", first), missing("table1", first))
    if first and (parts := tables.train_elbos(first)):
        words = "The appendix's table: discrete ELBO on the training images, from the same models."
        yield _section("Discretized train ELBO", words, parts)
    for kind, words in FURTHER.items():
        if parts := tables.tested(kind, cells):
            yield _section(tables.TITLES[kind], words, parts, missing(kind, cells))


def _section(title: str, words: str, parts: Sequence[Block], last: str | None = None) -> Section:
    return Section(title, (Text.of(words), *parts, *([Text.of(last)] if last else [])))


def _other_protocols(cells: Sequence[Cell]) -> Iterator[Section]:
    """Each in a section of its own, so that no table mixes protocols."""
    for protocol in sorted({cell.protocol for cell in cells} - {"honest"}):
        some = [cell for cell in cells if cell.protocol == protocol]
        words = f"The same under protocol {protocol}; τ is chosen on the {some[0].split} split."
        first, *others = (tables.tested(kind, some) for kind in tables.TITLES)
        beside = [each for each in [tables.bridge(cells)] if each is not None and protocol == "published"]
        yield _section(f"Protocol {protocol}", words, [*beside, *first, *tables.train_elbos(some), *chain(*others)])


def _figures(cells: Sequence[Cell]) -> Iterator[Section]:
    from igr.paper.report.figures import CONTINUOUS, DISCRETE

    relaxed: list[Image] = []
    discrete: list[Image] = []
    temperatures: list[Image] = []
    for some in charts.by_place(cells):
        trained = [cell for cell in some if cell.settings.get("objective") == "discrete"]
        relaxed.extend(charts.course(some, CONTINUOUS, "ELBO of the relaxed model", CURVES))
        discrete.extend(charts.course(trained, DISCRETE, "discrete ELBO, one sample for each image,", CURVES + DOTTED))
        temperatures.append(charts.choices(some, "τ", "discrete ELBO and bound", _untempered(some)))
    if relaxed:
        yield Section("Continuous ELBO", tuple(relaxed))
    if discrete:
        yield Section("Discrete ELBO in training", tuple(discrete))
    if temperatures:
        yield Section("Temperatures", tuple(temperatures))


def _untempered(cells: Sequence[Cell]) -> str:
    """What τ is not, for some of the cells."""
    learned = " With RELAX, τ is where it starts." if any(cell.estimator == "relax" for cell in cells) else ""
    names = listed([cell.label for cell in cells if not cell.tempered])
    return learned + (f" Without a τ, drawn at 1: {names}." if names else "")


def _other_models(cells: Sequence[Cell]) -> Iterator[Section]:
    """Each kind in a section of its own, with its figures and pictures; another protocol in another."""
    for kind in (sop, mixtures):
        some = [cell for cell in cells if cell.kind == kind.KIND]
        for protocol in sorted({cell.protocol for cell in some}, key=lambda each: (each != "honest", each)):
            title = kind.TITLE + ("" if protocol == "honest" else f", protocol {protocol}")
            yield Section(title, tuple(kind.blocks([cell for cell in some if cell.protocol == protocol])))


def _approximations(records: Sequence[Record]) -> Iterator[Section]:
    whole = [each for each in records if each["protocol"] == "exact" or _steps(each) >= {0, 200, 1000}]
    blocks: list[Block] = []
    if any(each["protocol"] != "exact" for each in whole):
        head, _, *rows = [line.strip("|").split("|") for line in approximate_table.markdown(whole).splitlines()]
        entries = [tuple(Entry(text.strip()) for text in line) for line in [head, *rows]]
        blocks.append(Table("Total variation from the target", entries[0], tuple(entries[1:]), words=2))
    if rest := len(records) - len(whole):
        blocks.append(Text.of(f"Fits of other than 1,000 steps, which are not in a table: {rest}."))
    if blocks:
        yield Section("Approximations of discrete distributions", tuple(blocks))


def _steps(record: Record) -> set[int]:
    return {state["step"] for state in record.get("states", ())}


def _section_of(title: str, blocks: Sequence[Block]) -> Iterator[Section]:
    if blocks:
        yield Section(title, tuple(blocks))


def _beyond_noise(found: Records) -> Iterator[Section]:
    words = (
        "Every number of ours that is further from the paper's than twice the combined standard deviation of both, and "
        "why, as far as that is known. VAEs are compared by the published formula, ELBOs by the discrete one, mixtures "
        "by the published objective. A τ explains a log-likelihood or a train ELBO only if the same models have both: "
        "the paper does not say of which architecture its train ELBOs are, and most likely they are of linear models. "
        "What the published KL of IGR-I has too much is taken off in the reasons alone, and only under protocol "
        "published: ours and Δ are as measured."
    )
    if (table := discrepancies(found.cells)) is not None:
        yield _section("Differences to the paper", words, [table])


def _pictures(cells: Sequence[Cell]) -> Iterator[Section]:
    if found := galleries(cells):
        yield Section("Reconstructions and samples", tuple(found))


def _others(records: Sequence[Record]) -> Iterator[Section]:
    if counts := sorted({each["spec"] for each in records}):
        words = f"There are {len(records):,} more records, of which no table is made here:"
        yield Section("Other records", (Text.of(words), Text((", ".join(counts),))))


def _provenance(found: Records) -> Iterator[Section]:
    if found.cells:
        words = "All members of a run are trained at once, so the time of one is its share."
        yield Section("Run times", (Text.of(words), run_times(found.cells)))
    yield Section("Environment", (environment(found.all),))
