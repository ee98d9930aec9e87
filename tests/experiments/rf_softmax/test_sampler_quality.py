import numpy as np

from experiments.rf_softmax import sampler_quality


def test_maclaurin_features_are_unbiased_and_vary_by_the_formula():
    generator = np.random.Generator(np.random.Philox(0))
    h = generator.standard_normal((6, 512))
    h /= np.linalg.norm(h, axis=1, keepdims=True)
    other = generator.standard_normal(h.shape)
    other -= (other * h).sum(1, keepdims=True) * h
    other /= np.linalg.norm(other, axis=1, keepdims=True)
    cosines = np.linspace(-0.5, 0.9, 6)
    c = cosines[:, np.newaxis] * h + np.sqrt(1 - cosines**2)[:, np.newaxis] * other
    tau, num_features, repeats = 0.6, 200, 400
    estimates = np.array(
        [
            sampler_quality.maclaurin(
                h.astype("f4"), c.astype("f4"), tau, num_features, seed
            )
            for seed in range(repeats)
        ]
    )
    variance = sampler_quality.maclaurin_variance(tau, cosines, num_features)
    errors = np.sqrt(variance / repeats)
    assert (np.abs(estimates.mean(0) - np.exp(tau * cosines)) < 4 * errors).all()
    # Heavy tails: the mean over pairs of the ratio, not each.
    assert abs(np.mean(estimates.var(0) / variance) - 1) < 0.2
