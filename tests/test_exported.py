"""Programs of ``torch.export``, with a batch of any size: what a trained router or codebook is deployed as."""

import pytest
import torch
from torch import Tensor, nn

import igr
from igr.recovery import recovered_log_probs, recovered_log_probs_stick_breaking


class Function(nn.Module):
    def __init__(self, f):
        super().__init__()
        self.f = f

    def forward(self, x: Tensor) -> Tensor:
        return self.f(x)


def layer(relaxation: str, eval_mode: str) -> nn.Module:
    made = igr.nn.CategoricalBottleneck(3, 2, 4, relaxation, eval_mode=eval_mode).eval()
    return Function(lambda x: made(x).z)


FUNCTIONS = {
    "igr-i": lambda loc: igr.InvertibleGaussian(loc, 1.0, 0.5).recovered().probs,
    "igr-i, mode": lambda loc: igr.InvertibleGaussian(loc, 1.0, 0.5).mode,
    "igr-i, logarithms": lambda loc: recovered_log_probs(loc, 1.0),
    "igr-sb, logarithms": lambda loc: recovered_log_probs_stick_breaking(loc, 1.0, num_nodes=16),
    "gs": lambda logits: igr.GumbelSoftmax(0.5, logits).recovered().probs,
}
MODULES = {name: lambda f=f: Function(f) for name, f in FUNCTIONS.items()} | {
    f"layer, {relaxation}, {mode}": lambda relaxation=relaxation, mode=mode: layer(relaxation, mode)
    for relaxation, mode in [("igr-i", "argmax"), ("igr-i", "mean"), ("gs", "argmax"), ("gs", "mean")]
}


QUICK = ("gs", "layer, gs, mean", "layer, igr-i, argmax")  # others take seconds each


@pytest.mark.parametrize(
    "make", [pytest.param(each, id=n, marks=[] if n in QUICK else [pytest.mark.slow]) for n, each in MODULES.items()]
)
def test_batches_of_other_sizes(make):
    module = make()
    program = torch.export.export(module, (torch.randn(5, 3),), dynamic_shapes=({0: torch.export.Dim("batch")},))
    x = torch.randn(7, 3)
    torch.testing.assert_close(program.module()(x), module(x))
