"""Sequential temperature scaling of the drafter's confidences.

Position k gets a scalar T_k, confidence = sigmoid(z_k / T_k). From left to right, T_k minimises the expected calibration error
of the product of the first k confidences against "the first k drafts stood". numpy only.
"""
import numpy as np

GRID = np.exp(np.linspace(np.log(0.2), np.log(8), 121))


def calibration_error(confidence, happened, bins=15):
    """expected |mean confidence - share that happened|, over bins of equal width"""
    which = np.minimum((confidence * bins).astype(int), bins - 1)
    n = np.bincount(which, minlength=bins)
    gap = np.abs(np.bincount(which, confidence, bins) - np.bincount(which, happened, bins))
    return float(gap.sum() / max(n.sum(), 1))


def sigmoid(x):
    return 1 / (1 + np.exp(-np.clip(x, -60, 60)))


def fit(z, accepted):
    """z, accepted [N,n] -> temperatures [n]"""
    stood = np.cumprod(accepted, 1)
    product, out = np.ones(len(z)), []
    for k in range(z.shape[1]):
        errors = [calibration_error(product * sigmoid(z[:, k] / t), stood[:, k]) for t in GRID]
        out.append(float(GRID[int(np.argmin(errors))]))
        product = product * sigmoid(z[:, k] / out[-1])
    return out


def report(z, accepted, temperatures):
    """per position, of the drafts whose predecessors stood: share accepted, mean confidence, calibration error"""
    reached = np.concatenate((np.ones((len(z), 1)), np.cumprod(accepted, 1)[:, :-1]), 1) > 0
    rows = []
    for k in range(z.shape[1]):
        r = reached[:, k]
        if not r.any():
            break
        c, a = sigmoid(z[r, k] / temperatures[k]), accepted[r, k]
        rows.append(dict(position=k + 1, drafts=int(r.sum()), accepted=float(a.mean()), confidence=float(c.mean()), ece=calibration_error(c, a)))
    return rows
