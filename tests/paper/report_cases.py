"""Records made by hand, and a reader of the pages that are made of them."""

import io
import json
from html.parser import HTMLParser

import numpy as np
import typer
from matplotlib.colors import to_hex
from rich.console import Console
from typer.testing import CliRunner

from igr._commands import report as command
from igr.paper.report import build
from igr.paper.specs import SPECS

IGR_I, GS = "table1/mnist/linear/igr-i", "table1/mnist/linear/gs"
LINEAR = "Table 1: MNIST, linear"
RELAX, FOUR = "relax/mnist/nonlinear/", "s4/mnist/nonlinear/"
EVALUATION = {"m": 1000, "published": 100, "table": 20000, "images": None}
VOID = {"meta", "img", "br", "link"}


# ------------------------------------------------------------------------------------------------- records made by hand


def record(spec=IGR_I, tau=0.1, seed=1, elbo=-120.0, bound=-100.0, *, prior=None, protocol="honest", **more):
    """A finished member with its numbers on the split that choices look at."""
    settings = SPECS[spec].settings() if spec in SPECS else SPECS[IGR_I].settings()
    numbers = {"elbo_discrete": elbo, "elbo_continuous": elbo - 7, "log_likelihood": bound}
    epochs = [1, 10, 100, 200, 300]
    return {
        "spec": spec,
        "protocol": protocol,
        "seed": seed,
        "tau": tau,
        "prior_temperature": prior,
        "smoke": False,
        "device": "NVIDIA H200",
        "settings": settings | {"dtype": "float32", "data": "files", "evaluation": EVALUATION},
        "status": "finished",
        "metrics": {
            "train": {"elbo_discrete": elbo + 1, "elbo_continuous": elbo - 6},
            "validation" if protocol == "honest" else "test": numbers,
        },
        "selected": [],
        "curves": {"epoch": epochs, "elbo_continuous": [elbo - 7 - 100 / epoch for epoch in epochs]},
        "synthetic": False,
        "commit": "0123abc",
        "dirty": False,
        "version": "0.1.0",
        "python": "3.12.1",
        "torch": "2.11.0",
        "host_cpus": 16,
        "seconds": 120.0,
        "seconds_evaluation": 12.5,
        "members": 6,
        "date": "2026-11-15T15:00:00+00:00",
    } | more


def chosen(row, *criteria, **numbers):
    """The same, marked as chosen, with its numbers on the test split."""
    test = row["metrics"].get("test", {}) | numbers
    return row | {"selected": list(criteria), "metrics": row["metrics"] | {"test": test}}


def failed(row):
    curves = {"epoch": [1, 10], "elbo_continuous": [-500.0, None]}
    return row | {"status": "failed", "failed_epoch": 3, "metrics": {}, "curves": curves}


SEEDS = (1, 2, 3)
ELBO = {0.1: (-120.0, -121.0, -125.0), 0.5: (-130.0, -131.0, -129.0)}  # validation
BOUND = {0.1: (-101.0, -102.5, -103.0), 0.5: (-98.0, -97.0, -99.5)}
TEST_ELBO = {0.1: (-119.5, -120.25, -124.0), 0.5: (-129.0, -130.5, -128.0)}
TEST_BOUND = {0.1: (-100.0, -102.0, -103.0), 0.5: (-97.5, -96.75, -99.0)}
PUBLISHED = {0.1: (-96.0, -98.5, -97.25), 0.5: (-94.0, -93.5, -92.0)}


def cell(spec=IGR_I, **more):
    """Two temperatures and three seeds: the discrete ELBO chooses 0.1, the bound chooses 0.5."""
    rows = []
    for tau, criterion in [(0.1, "elbo_discrete"), (0.5, "log_likelihood")]:
        for i, seed in enumerate(SEEDS):
            numbers = {
                "elbo_discrete": TEST_ELBO[tau][i],
                "elbo_continuous": TEST_ELBO[tau][i] - 7,
                "log_likelihood": TEST_BOUND[tau][i],
                "log_likelihood_published_100": PUBLISHED[tau][i] - 3,
                "log_likelihood_published_1000": PUBLISHED[tau][i],
            }
            row = record(spec, tau, seed, ELBO[tau][i], BOUND[tau][i], **more)
            rows.append(chosen(row, criterion, **numbers))
    return rows


def gumbel_cell():
    """The rules τ, 0.5 and 0.75 τ at τ = 0.5, where two of them are one, and at τ = 1, where the last is best."""
    pairs = [(0.5, 0.5), (0.5, 0.375), (1.0, 1.0), (1.0, 0.5), (1.0, 0.75)]
    rows = []
    for tau, prior in pairs:
        elbo, bound = -160 + 10 * tau + 8 * (prior == 0.75), -110 - tau
        rows += [record(GS, tau, seed, elbo + seed**2, bound + seed, prior=prior, members=15) for seed in SEEDS]
    return rows


def measured_twice(spec, tau, ais, subset, images=50):
    """A temperature and three seeds, by annealing and by the bound on the same images."""
    rows = []
    for seed, here, there in zip(SEEDS, ais, subset, strict=True):
        row = chosen(record(spec, tau, seed), "elbo_discrete", log_likelihood_ais=here, log_likelihood_subset=there)
        row["settings"] |= {"evaluation": EVALUATION | {"ais_images": images}}
        rows.append(row)
    return rows


def estimated_cell(spec, **more):
    """A cell that was trained by an estimator: without a relaxed model, some without a temperature that is used."""
    rows = cell(spec, **more)
    for row in rows:
        for numbers in [*row["metrics"].values(), row["curves"]]:
            numbers.pop("elbo_continuous", None)
    if SPECS[spec].temperatures != (1.0,):
        return rows
    return [row | {"tau": 1.0, "selected": ["elbo_discrete", "log_likelihood"]} for row in rows if row["tau"] == 0.1]


def write(folder, rows, name="records.jsonl"):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folder


def made(tmp_path, rows):
    return build([write(tmp_path / "records", rows)], tmp_path / "out")


def mean_sd(values):
    """As the tables print it, by numpy."""
    return f"{np.mean(values):.2f} ± {np.std(values, ddof=1):.2f}".replace("-", "−")


# ------------------------------------------------------------------------------------------------ reading what was made


class Page(HTMLParser):
    """Reads a page, and minds that every element is closed in its turn."""

    def __init__(self, path):
        super().__init__()
        self.open, self.tags, self.ids, self.links, self.sources = [], set(), [], [], []
        self.text, self.caption, self.tables = "", "", []
        self.feed(path.read_text(encoding="utf-8"))
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        for name, found in (("id", self.ids), ("href", self.links), ("src", self.sources)):
            found.extend(value for key, value in attrs if key == name)
        if tag not in VOID:
            self.open.append(tag)
        if tag == "figcaption":
            self.caption = ""
        elif tag == "table":
            self.tables.append((self.caption, []))
        elif tag == "tr":
            self.tables[-1][1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][1][-1].append("")

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data
        if {"td", "th"} & set(self.open):
            self.tables[-1][1][-1][-1] += data.replace("\u00a0", " ")
        elif "figcaption" in self.open:
            self.caption += data

    def titles(self):
        return [title for title, _ in self.tables]

    def rows(self, title):
        """The only table of that caption, a dictionary for each row."""
        [(head, *rows)] = [table for name, table in self.tables if name == title]
        return [dict(zip(head, row, strict=True)) for row in rows]


S100, S1000 = "published formula, S = 100 not a bound", "published formula, S = 1000 not a bound"


def lines_of(axes):
    """Colour and data of the lines that have any."""
    found = [(to_hex(line.get_color()), np.asarray(line.get_xydata(), dtype=float)) for line in axes.lines]
    return [(colour, data) for colour, data in found if len(data) > 1]


def printed(table, width=120):
    stream = io.StringIO()
    Console(file=stream, width=width, color_system=None).print(table)
    return stream.getvalue()


def invoke(*args, cwd=None):
    app = typer.Typer(pretty_exceptions_enable=False)
    app.callback()(lambda: None)
    command.add(app)
    return CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}).invoke(app, ["report", *map(str, args)])
