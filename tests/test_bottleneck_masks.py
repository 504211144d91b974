"""The layer under masks: in all modes, probabilities and divergences by quadrature, and masks that are refused."""

import math

import numpy as np
import pytest
import torch
from bottleneck_cases import MASKED, H, K, N, features, layer
from scipy import integrate, stats
from torch.distributions import MultivariateNormal, kl_divergence

from igr import estimators
from igr._bottleneck_parts import masked_gaussian_kl, masked_log_probs
from igr.schedules import Learnable


def some_mask(*shape):
    mask = torch.rand(*shape, N, K) < 0.6
    mask[..., 1] = True
    return mask


@pytest.mark.parametrize(("relaxation", "kl"), [("igr-i", "continuous"), ("igr-i", "discrete"), ("gs", "discrete")])
def test_masks_forbid_in_all_modes(relaxation, kl):
    h = features(40, requires_grad=True)
    for mask in (some_mask(40), some_mask(), some_mask(40)[:, :1]):
        forbidden = ~mask.expand(40, N, K)
        for estimator in ("reparameterized", "st_relaxed", "reinmax", "gapped_straight_through"):
            model = layer(relaxation, estimator=estimator, kl=kl, temperature=Learnable(0.3))
            z, divergence = model(h, mask)
            assert bool((z[forbidden] == 0).all())
            (z.square().sum() + divergence.sum()).backward()
            assert all(p.grad is None or bool(p.grad.isfinite().all()) for p in (h, *model.parameters()))
        for mode in ("sample", "argmax", "mean"):
            model = layer(relaxation, eval_mode=mode, kl=kl).eval()
            z, divergence = model(h, mask)
            assert bool((z[forbidden] == 0).all())
            torch.testing.assert_close(z.sum(-1), torch.ones(40, N, dtype=torch.float64))
            assert bool(divergence.isfinite().all() & (divergence > -1e-9).all())


@pytest.mark.parametrize("relaxation", MASKED)
def test_mean_under_a_mask_matches_samples(relaxation):
    h, mask = features(8), some_mask(8)
    model = layer(relaxation, eval_mode="mean").eval()
    z, kl = model(h, mask)
    model.eval_mode = "sample"
    draws = model(h.expand(4000, 8, H), mask).z.mean(0)
    assert bool(((draws - z).abs() < 5 * (z * (1 - z) / 4000).sqrt() + 2e-3).all())
    if relaxation == "gs":  # the divergence from the uniform distribution on what is allowed
        p0 = mask / mask.sum(-1, keepdim=True)
        expected = stats.entropy(z.detach().numpy(), p0.numpy(), axis=-1).sum(-1)
        np.testing.assert_allclose(kl.detach(), expected, rtol=1e-9)


@pytest.mark.parametrize(("mu", "sigma"), [((0.5, -1.0, 2.0), (1.0, 3.0, 0.1)), ((-0.5, -0.8, -0.6), (1.0, 1.0, 1.1))])
def test_masked_probabilities_match_quadrature(mu, sigma):
    """P(k is the largest of the allowed) by scipy, with and without the last category, also for scales far apart."""
    mu, sigma = torch.tensor([mu, sigma], dtype=torch.float64)

    def win(k, allowed):
        others = [j for j in allowed if j != k]

        def density(t):
            return stats.norm.pdf(t, mu[k], sigma[k]) * math.prod(stats.norm.cdf(t, mu[j], sigma[j]) for j in others)

        return integrate.quad(density, *sorted((mu[k] - 12 * sigma[k], mu[k] + 12 * sigma[k])), limit=500)[0]

    for mask in ([1, 1, 1, 0], [1, 0, 1, 0], [1, 1, 0, 0], [0, 1, 0, 0]):
        found = masked_log_probs(mu, sigma, torch.tensor(mask).bool()).exp().tolist()
        allowed = [k for k in range(3) if mask[k]]
        expected = [win(k, allowed) if k in allowed else 0.0 for k in range(3)]
        np.testing.assert_allclose(found, [*expected, 0.0], atol=1e-6)
    found = masked_log_probs(mu, sigma, torch.tensor([1, 0, 0, 1]).bool()).exp().tolist()
    np.testing.assert_allclose(found, [stats.norm.cdf(mu[0]), 0, 0, stats.norm.cdf(-mu[0])], atol=1e-9)
    single = masked_log_probs(mu.float(), sigma.float(), torch.tensor([1, 1, 1, 0]).bool()).exp().tolist()
    np.testing.assert_allclose(single, [*(win(k, [0, 1, 2]) for k in range(3)), 0.0], atol=5e-6)


def test_masked_gaussian_divergence_is_that_of_differences():
    """The last forbidden: scores of the allowed, less the first of them, are normal with a full covariance matrix."""
    mu, mu0 = torch.randn(2, 6).double()
    sigma, sigma0 = torch.rand(2, 6).double() + 0.2
    for mask in ([1, 1, 1, 1, 1, 1, 0], [0, 1, 0, 1, 1, 0, 0], [0, 0, 1, 0, 0, 1, 0], [1, 0, 0, 1, 1, 1, 1]):
        allowed = [k for k in range(6) if mask[k]]
        differences = torch.eye(6).double()[allowed]
        if not mask[-1]:
            differences = differences[1:] - differences[:1]

        def normal(loc, scale, A=differences):
            return MultivariateNormal(A @ loc, A @ scale.square().diag() @ A.T)

        expected = kl_divergence(normal(mu, sigma), normal(mu0, sigma0))
        found = masked_gaussian_kl(mu, sigma, mu0, sigma0, torch.tensor(mask).bool())
        torch.testing.assert_close(found, expected)
    only_one = torch.tensor([0, 0, 1, 0, 0, 0, 0]).bool()
    assert masked_gaussian_kl(mu, sigma, mu0, sigma0, only_one).abs() < 1e-12
    two = masked_gaussian_kl(mu[:1], sigma[:1], mu0[:1], sigma0[:1], torch.tensor([True, False]))
    assert two.abs() < 1e-12


def test_masked_layer_divergence_uses_rows():
    model, h, mask = layer(), features(12), some_mask(12)
    q = model.distribution(h)
    kl = model(h, mask).kl
    mu0, sigma0 = model.prior_loc, model.prior_scale
    rows = [
        sum(masked_gaussian_kl(q.loc[i, n], q.scale[i, n], mu0, sigma0, mask[i, n]) for n in range(N))
        for i in range(12)
    ]
    torch.testing.assert_close(kl, torch.stack(rows))
    torch.testing.assert_close(model(h, torch.ones(K, dtype=torch.bool)).kl, model(h).kl)


@pytest.mark.parametrize("relaxation", MASKED)
def test_masked_distribution(relaxation):
    model, h, mask = layer(relaxation, eval_mode="mean").eval(), features(12), some_mask(12)
    mask[..., -1] = True
    q = model.distribution(h, mask)
    torch.testing.assert_close(q.recovered().probs, model(h, mask).z, rtol=0, atol=1e-7)
    for sample in (q.rsample((50,)), q.hard_rsample((50,))):
        assert bool((sample[:, ~mask] == 0).all())
    estimators.reinmax(q, lambda z: z[..., 1].sum(-1)).surrogate.sum().backward()
    assert bool(model.head.weight.grad.isfinite().all())


def test_masks_that_are_refused():
    h, mask = features(4), some_mask(4)
    for relaxation in ("igr-sb", "igr-planar"):
        with pytest.raises(NotImplementedError, match=f"{relaxation} takes no mask"):
            layer(relaxation)(h, mask)
        with pytest.raises(NotImplementedError, match="takes no mask"):
            layer(relaxation).distribution(h, mask)
    with pytest.raises(NotImplementedError, match="no continuous divergence of gs under a mask"):
        layer("gs", kl="continuous")(h, mask)
    mask[0, 0, -1] = False
    with pytest.raises(NotImplementedError, match="put one that is always allowed last"):
        layer().distribution(h, mask)
    with pytest.raises(NotImplementedError, match="estimator takes any mask, such as 'st_relaxed'"):
        layer(estimator="igr_rao")(h, mask)
    assert bool((layer(estimator="st_relaxed")(h, mask).z[~mask] == 0).all())
    with pytest.raises(ValueError, match="forbids every category"):
        layer()(h, torch.zeros_like(mask))
    with pytest.raises(TypeError, match="boolean"):
        layer("gs")(h, mask.double())
    with pytest.raises(ValueError, match=r"must broadcast to \(4, 3, 5\)"):
        layer()(h, some_mask(2, 4))
