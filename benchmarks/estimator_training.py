"""How fast do the estimators train, and does the loss fall? Every spec of appendix D and of other estimators.

Every temperature of a spec is trained, with --seeds 5 all members of a real run, on MNIST if it is there (--data-dir,
IGR_DATA_DIR or the cache) and otherwise on the images that come with the package. Printed are milliseconds per step of
all members together, steps per second, the smallest and largest loss over members after each epoch (in nats per image),
and how many members failed. On CUDA the first epoch includes the capture of the graph; times are of the later ones.

    python benchmarks/estimator_training.py [PATTERN ...] [--device cuda] [--epochs 2] [--steps 5] [--seeds 1]
        [--json FILE] [--max-minutes 8] [--quick]
"""

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path

import torch

from igr.paper import data
from igr.paper.ensemble import Ensemble
from igr.paper.specs import Vae, find

PATTERNS = (
    "relax/*",
    "s4/*",
    "beyond/mnist/*+re*",
    "beyond/mnist/*+gapst",
    "beyond/mnist/*+rao",
    "beyond/mnist/*+rloo",
)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train with estimators for a while; see the top of this file.")
    parser.add_argument("patterns", nargs="*", default=PATTERNS)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5, help="in an epoch, at most")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--max-minutes", type=float, default=600.0)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    if args.quick:
        args.epochs, args.steps, args.seeds = 2, 1, 1
        args.patterns = [f"beyond/mnist/linear/gs+{name}" for name in ("reinmax", "rao", "rloo", "relax")]
        print("QUICK RUN: these times mean nothing")
    images, start, rows = _images(args.data_dir), time.monotonic(), []
    print(f"torch {torch.__version__}, {args.device}, {len(images)} images\n")
    for cell in find(args.patterns):
        if not isinstance(cell, Vae):
            continue
        if time.monotonic() - start > 60 * args.max_minutes:
            print(f"no time left for {cell.id}")
            continue
        cell = replace(cell, seeds=cell.seeds[: args.seeds], epochs=args.epochs)
        rows.append(_row(cell, images[: args.steps * cell.batch_size], torch.device(args.device)))
        print(_line(rows[-1]), flush=True)
        if args.json:
            args.json.write_text(json.dumps(rows), encoding="utf-8")


def _images(data_dir: Path | None) -> data.Images:
    try:
        return data.load("mnist", data_dir).train
    except data.DataError:
        return data.load_sample("mnist").train


def _row(cell: Vae, images: data.Images, device: torch.device) -> dict[str, object]:
    ensemble = Ensemble(cell, images, device)
    losses, seconds = [], []
    for _ in range(cell.epochs):
        before = time.perf_counter()
        losses.append(ensemble.run_epoch().tolist())  # waits for the device
        seconds.append(time.perf_counter() - before)
    return {
        "spec": cell.id,
        "members": len(ensemble.members),
        "ms": 1e3 * min(seconds[1:] or seconds) / ensemble.steps,
        "losses": losses,
        "failed": len(ensemble.failed),
        "memory": torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else None,
    }


def _line(row: dict[str, object]) -> str:
    finite = [[loss for loss in losses if loss == loss] for losses in row["losses"]]
    curve = ", ".join(f"{min(each):.1f} to {max(each):.1f}" for each in finite if each)
    speed = f"{row['ms']:8.2f} ms {1e3 / row['ms']:7.1f} steps/s"
    return f"{row['spec']:42}{row['members']:4} members {speed}  failed {row['failed']}  {curve}"


if __name__ == "__main__":
    main()
