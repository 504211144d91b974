"""The rows of tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from igr.paper.published import Published
from igr.paper.report.cells import Cell, Summary
from igr.paper.select import Configuration
from igr.paper.specs import SPECS, Approximation, Derived

__all__ = ["Line", "lines", "number", "sources", "unlike"]

INCOMPARABLE = {
    "fmnist": "the decoder of protocol honest is not the published one: it has no ELU, and its scale is at least 0.1",
    "omniglot": "protocol honest has another split than the published code, and ink is 1 where that has 0",
}
LINEAR = (
    "the paper's rows without RELAX are, digit for digit, those of Table 1 for linear models with SL, though the "
    "caption says non-linear"
)
SIGN = (
    "the paper's IGR-I + RELAX comes, as far as the published code tells, from a loss whose KL has the wrong sign, and "
    "from a control variate with an independent sample, which is biased: it is neither a likelihood nor an ELBO"
)
ONE_SAMPLE = (
    "the paper's GS + RELAX is, as far as the published code tells, a one-sample value without importance weights, and "
    "not by the formula of Table 1"
)
BLIND = (
    "the paper's IGR-SB is not the log-likelihood of a discrete network that sees the upper half: a unit of the "
    "published code is the sigmoid of a stick, between 0.5 and 0.73, and so always rounds to +1, whatever the image; "
    "what −45.12 is a value of, perhaps of relaxed units, cannot be told from the code"
)
UNLIKE = {  # rows of the paper that are not what they are called, whatever ours are
    "relax/mnist/nonlinear/igr-i": LINEAR,
    "relax/mnist/nonlinear/gs": LINEAR,
    "relax/mnist/nonlinear/igr-i+relax": SIGN,
    "relax/mnist/nonlinear/gs+relax": ONE_SAMPLE,
    "s4/mnist/nonlinear/igr-i+relax": SIGN,
    "sop/mnist/igr-sb": BLIND,
}


@dataclass(frozen=True)
class Line:
    """A row: a cell at the configuration that one criterion has chosen, or a spec that has no records yet."""

    spec: str
    label: str
    method: str
    cell: Cell | None
    criterion: str = ""
    configuration: Configuration | None = None

    @property
    def paper(self) -> Published | None:
        """The paper's number."""
        spec = SPECS.get(self.spec)
        return spec.paper if spec is not None else None

    @property
    def incomparable(self) -> str | None:
        """Why ours is not to be compared with the paper's."""
        honest = self.cell is not None and self.paper is not None and self.cell.protocol == "honest"
        return unlike(self.spec) if honest or self.spec in UNLIKE else None

    def summary(self, split: str, metric: str) -> Summary | None:
        """Ours."""
        return None if self.cell is None else self.cell.summary(self.configuration, split, metric)


def unlike(spec: str) -> str | None:
    """Why rows of this spec under protocol honest are not to be compared with the paper's.

    Example:
        >>> unlike("table1/mnist/linear/gs"), unlike("table1/omniglot/linear/gs")[:40]
        (None, 'protocol honest has another split than t')
    """
    return UNLIKE.get(spec) or INCOMPARABLE.get(spec.split("/")[1])


def number(value: float, sign: bool = False) -> str:
    """Two decimals behind a true minus.

    Example:
        >>> number(-94.654), number(0.125, sign=True), number(-0.001)
        ('−94.65', '+0.12', '0.00')
    """
    text = f"{value:+.2f}" if sign else f"{value:.2f}"
    return text[1:] if text == "-0.00" else text.replace("-", "−")


def lines(cell: Cell, spec: str | None = None) -> Iterator[Line]:
    """A row for each criterion, one if nothing is chosen; under the id of another spec if read from the cell for it."""
    for criterion in cell.criteria if cell.choice else ("",):
        chosen = cell.chosen(criterion or cell.criteria[0])
        yield Line(spec or cell.spec, cell.label, cell.method, cell, criterion, chosen)


def sources(kind: str) -> dict[str, str]:
    """The ids of a table's rows, in its order, by the spec that their records are of.

    Example:
        >>> list(sources("relax").items())[1:3]  # doctest: +NORMALIZE_WHITESPACE
        [('table1/mnist/nonlinear/gs', 'relax/mnist/nonlinear/gs'),
         ('relax/mnist/nonlinear/igr-i+relax', 'relax/mnist/nonlinear/igr-i+relax')]
    """
    specs = [spec for spec in SPECS.values() if spec.id.startswith(f"{kind}/") and not isinstance(spec, Approximation)]
    return {spec.sources[0] if isinstance(spec, Derived) else spec.id: spec.id for spec in specs}
