"""The section on structured output prediction: the lower half of an image from its upper half."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from igr.paper.report import charts
from igr.paper.report.cells import Cell
from igr.paper.report.columns import (
    Column,
    count,
    difference,
    failed,
    grouped,
    method,
    metric,
    minutes,
    paper,
    sizes,
    tau,
)
from igr.paper.report.document import Block, Image, Text
from igr.paper.report.notes import missing
from igr.paper.report.pictures import galleries
from igr.paper.report.words import listed

__all__ = ["CAPTION", "KIND", "SHORT", "TITLE", "blocks"]

KIND = "sop"
TITLE = "Structured output prediction"
CAPTION = "Test split, nats: mean ± standard deviation over n seeds. * Of relaxed units: not the discrete model."
READING = (
    "Log-likelihood of the lower half of a test image given its upper half: log-mean-exp over joint samples of both "
    "layers of units, each −1 or 1. Unlike the published formula of Table 1 this estimates the conditional "
    "log-likelihood itself, and is on average not above it. τ is chosen by it on the validation split.",
    "Relaxed is the same with the units that are trained, between −1 and 1, and not of the discrete model; it is here "
    "because a number of the paper may be one of relaxed units.",
    "In the published code σ of the IGR is fixed at 1 and τ is not applied, and its script has one linear layer where "
    "the paper has two. Here all is as specified: σ is learned, but for rows that say σ = 1, τ is applied, IGR-SB can "
    "reach both values, and the network is the paper's, 240 ∼ 240 – sample – 240 ∼ 240 – sample, but for rows that say "
    "linear network, which have what the script has.",
    "What the paper calls a weight decay of 1e-3 is a decay of the learning rate in its code: 1e-3 / (1 + 1e-3 t) at "
    "step t, and not below 1e-4. So it is here, with batches of 100 and 100 epochs as in the paper.",
    "S is how many samples of units log-mean-exp is taken over in training, relaxed ones, and with VIMCO hard ones: "
    "one where it is not named, as in the paper. Rows with an estimator train the discrete network by hard samples, "
    "and have no relaxed value; but for VIMCO, they train the mean of log p itself.",
)
TRAINING = (
    "at the chosen τ; mean ± standard deviation over seeds. Dotted: the training objective, which is of training "
    "images, S samples and, unless an estimator is named, relaxed units, so another quantity. The first epochs may lie "
    "below the frame."
)


def blocks(cells: Sequence[Cell]) -> Iterator[Block]:
    """Everything in the section of these cells, all under the same protocol."""
    yield Text.of("The paper's table: test log-likelihood of the lower halves of images, and rows beyond the paper.")
    yield Text(READING)
    yield from grouped(KIND, TITLE, cells, _columns, words=1)
    if (words := missing(KIND, cells)) is not None:
        yield Text.of(words)
    for some in charts.by_place(cells):
        yield from _figures(some)
    yield from galleries(cells)


def _columns(cells: Sequence[Cell]) -> list[Column]:
    m = sizes(cells)
    return [
        Column("method", method),
        Column("τ|chosen on validation", tau),
        Column("n", count),
        Column("paper", paper),
        Column(f"log-likelihood|{m} discrete samples", metric("test", "log_likelihood")),
        Column("Δ|to the paper", difference("test", "log_likelihood")),
        Column("relaxed|not the discrete model", metric("test", "log_likelihood_relaxed"), optional=True),
        Column("failed|of all members", failed),
        Column("minutes|of all members", minutes),
    ]


SHORT = (
    Column("method", method),
    Column("τ", tau),
    Column("n", count),
    Column("log-likelihood", metric("test", "log_likelihood")),
    Column("relaxed*", metric("test", "log_likelihood_relaxed")),
    Column("paper", paper),
)


def _figures(cells: Sequence[Cell]) -> Iterator[Image]:
    from igr.paper.report.figures import Course

    if tempered := [cell for cell in cells if cell.tempered]:
        rest = listed([cell.label for cell in cells if not cell.tempered])
        words = f"log-likelihood by {sizes(cells)} discrete samples"
        last = f" Without a τ, and so not drawn: {rest}." if rest else ""
        yield charts.choices(tempered, "τ", words, last, apart=bool(cells[0].part))
    course = Course("log_likelihood_10", "log-likelihood", "log_likelihood", training=True)
    yield from charts.course(cells, course, "log-likelihood by 10 discrete samples", TRAINING)
