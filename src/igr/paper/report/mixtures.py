"""The section on nonparametric mixtures: VAEs with a Dirichlet process mixture as their prior."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from igr.paper.nonparametric.spec import num_used
from igr.paper.report import charts
from igr.paper.report.cells import Cell, Summary, summarize
from igr.paper.report.columns import (
    Column,
    count,
    difference,
    failed,
    grouped,
    method,
    metric,
    minutes,
    over_members,
    paper,
    sizes,
)
from igr.paper.report.document import ABSENT, Block, Entry, Image, Text, file_name
from igr.paper.report.lines import Line
from igr.paper.report.notes import missing
from igr.paper.report.pictures import galleries

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["CAPTION", "KIND", "SHORT", "TITLE", "blocks"]

KIND = "nonparametric"
TITLE = "Nonparametric mixtures"
CAPTION = "Test split, nats: mean ± standard deviation over n seeds. * One sample, mixed term: not a log-likelihood."
READING = (
    "A VAE with a Dirichlet process mixture of Gaussians as its prior. DLDPMM has Kumaraswamy sticks and K components, "
    "with K chosen on the validation split by the bound; IGR-SB-MM has logit-normal sticks, as many as it takes for a "
    "sample to make up more than ρ{precision}, and the rest of the mass is on one more component. From the twentieth "
    "on components have one mean in the prior, and so are one.",
    "The bound is that of importance sampling: sticks, component and latent variable are drawn together from the "
    "posterior, and on average it is not above log p(x). The ELBO, the mean of the same log-weights, is the joint "
    "bound of component and latent variable, which is trained.",
    "What the paper calls a test log-likelihood is, in its code, the training objective with one sample, and no "
    "log-likelihood. Its mixed term is the logarithm of a sum over components, each at a sample of its own, which puts "
    "it below the joint bound, the more so the more components there are (what it leaves out, that components beyond "
    "the last are possible, is a small part of that). That objective is here as well, for the sake "
    "of Δ, which is ours by it minus the paper's.",
    "In the published code the means of the prior's components are drawn anew for every place in a batch and are not "
    "kept, + SL is applied to DLDPMM alone, and K is chosen on the test split. Here the means are drawn once and kept, "
    "and + SL is applied to both rows alike.",
    "The prior of sticks is Beta(1, α), with α{concentration}; the paper does not state α, and its code leaves the "
    "prior out, which is α = 1. The decoder has two hidden layers of 200 units, as in the published code; the paper "
    "says three.",
    "Components kept: how many the truncation leaves a sample of the sticks, with that of the rest. Effective number: "
    "the exponential of the entropy of an image's mean weights. Components in use: those with at least 1 % of the "
    "mass of all test images. The prior alone has mean weights 1/2, 1/4, ... at α = 1, an effective number of 4: a "
    "posterior that has learned nothing about components has it too.",
)


def blocks(cells: Sequence[Cell]) -> Iterator[Block]:
    """Everything in the section of these cells, all under the same protocol."""
    named = {name: _setting(cells, name) for name in ("precision", "concentration")}
    yield Text.of(
        "The paper's table of mixtures, on images of MNIST and Omniglot; rows without SL are not the paper's."
    )
    yield Text(tuple(line.format(**named) for line in READING))
    yield from grouped(KIND, TITLE, cells, _columns, words=1)
    if (words := missing(KIND, cells)) is not None:
        yield Text.of(words)
    yield from _components(cells)
    for some in charts.by_place(cells):
        yield from _figures(some)
    yield from galleries(cells)


def _setting(cells: Sequence[Cell], name: str) -> str:
    """`` = 0.9999``, where records say it."""
    found = sorted({cell.settings[name] for cell in cells if name in cell.settings})
    return f" = {' or '.join(f'{value:g}' for value in found)}" if found else ""


def _size(line: Line) -> Entry:
    """K that was chosen, or that there is none."""
    if line.cell is None or line.configuration is None:
        return Entry(ABSENT)
    size = line.configuration.num_components
    return Entry("as needed" if size is None else str(size))


def _in_use(line: Line) -> Summary | None:
    """How many components have a share of the aggregate mass."""
    masses = [] if line.cell is None else line.cell.vectors(line.configuration, "test", "component_mass")
    return summarize(map(num_used, masses))


def _columns(cells: Sequence[Cell]) -> list[Column]:
    return [
        Column("method", method),
        Column("K|chosen on validation", _size),
        Column("n", count),
        Column("paper", paper),
        Column(f"bound|importance sampling, m = {sizes(cells)}", metric("test", "log_likelihood")),
        Column("ELBO|joint bound", metric("test", "elbo")),
        Column(
            "published objective|one sample, mixed term: not a log-likelihood", metric("test", "objective_published")
        ),
        Column("Δ|to the paper, by that objective", difference("test", "objective_published")),
        Column("components kept|by the truncation", metric("test", "components_kept")),
        Column("effective number|of an image", metric("test", "components_effective")),
        Column("components in use|at least 1\u00a0% of all mass", over_members(_in_use)),
        Column("failed|of all members", failed),
        Column("minutes|of all members", minutes),
    ]


SHORT = (
    Column("method", method),
    Column("K", _size),
    Column("n", count),
    Column("bound", metric("test", "log_likelihood")),
    Column("ELBO", metric("test", "elbo")),
    Column("published*", metric("test", "objective_published")),
    Column("effective K", metric("test", "components_effective")),
    Column("paper", paper),
)


def _components(cells: Sequence[Cell]) -> Iterator[Image]:
    """What becomes of components, in figures of all data sets."""
    from igr.paper.report import component_figures as figures

    drawn = {
        "effective-components": (
            figures.HISTOGRAM,
            figures.effective,
            "Images of the test split by their effective number of components, rounded: mean over the seeds of the "
            "chosen configuration; whiskers are the standard deviation.",
        ),
        "component-mass": (
            figures.MASS,
            figures.masses,
            "Mass of each component over all images of the test split, from the largest to the smallest: mean ± "
            "standard deviation over the seeds of the chosen configuration, on a logarithmic scale. Dashed: 1 %.",
        ),
    }
    for name, (needed, draw, caption) in drawn.items():
        if figures.has(cells, needed):
            yield Image(file_name(name, KIND, cells[0].protocol) + ".svg", partial(_drawn, draw, cells), caption)


def _drawn(draw: Callable[[Sequence[Cell]], Figure | None], cells: Sequence[Cell]) -> bytes:
    from igr.paper.report.panels import svg

    figure = draw(cells)
    if figure is None:
        raise ValueError("there is nothing to draw; expected cells with components")
    return svg(figure)


def _figures(cells: Sequence[Cell]) -> Iterator[Image]:
    from igr.paper.report.figures import Course

    if any(cell.choice == "K" for cell in cells):
        rest = " Without a K, and so a line: IGR-SB-MM." if any(not cell.choice for cell in cells) else ""
        yield charts.choices(cells, "K", "bound", rest)
    course = Course("elbo", "ELBO", "log_likelihood", "elbo", training=True)
    words = (
        "at the chosen K; mean ± standard deviation over seeds. Dotted: the same of training images, while they are "
        "trained on. Diamonds: the test split, after training. The first epochs may lie below the frame."
    )
    yield from charts.course(cells, course, "joint bound", words)
