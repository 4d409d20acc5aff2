"""Every law written out for one run, with plain floats and no logarithms of sums: right by reading.

`REFERENCES[name](theta, n, d, p, u)` is the loss in nats per token; theta are internal coordinates,
n and d raw counts, p the ratios (own first), u the unique tokens of every family.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

Reference = Callable[[Sequence[float], float, float, Sequence[float], Sequence[float]], float]


def family(theta, n, d, p, u):
    e, a, b = (math.exp(x) for x in theta[:3])
    alpha, beta, gamma = theta[3:]
    return (e + a / (n / 1e6) ** alpha + b / (d / 1e9) ** beta) * p[0] ** -gamma


def chinchilla(theta, n, d, p, u):
    e, a, b = (math.exp(x) for x in theta[:3])
    alpha, beta = theta[3:]
    return e + a / (n / 1e6) ** alpha + b / (d / 1e9) ** beta


def additive(theta, n, d, p, u):
    families = len(p)
    benefit = 0.0
    for j in range(families):
        if p[j] > 0:
            benefit += math.exp(theta[5 + j]) * p[j] ** theta[5 + families + j]
    return chinchilla(theta[:5], n, d, p, u) + 1.0 / benefit


def additive_pooled(theta, n, d, p, u):
    families = len(p)
    return additive([*theta[: 5 + families], *[theta[-1]] * families], n, d, p, u)


def bimix(theta, n, d, p, u):
    c, b = math.exp(theta[0]), math.exp(theta[1])
    beta, alpha = theta[2:]
    return (b / (d / 1e9) ** beta + c) / p[0] ** alpha


def fernandes(theta, n, d, p, u):
    limit, beta = math.exp(theta[0]), math.exp(theta[1])
    alpha, c1, c2, c3 = theta[2], math.exp(theta[3]), theta[4], theta[5]
    f = p[0]
    if p[0] < 1:
        f += c1 * p[0] ** c2 * (1 - p[0]) ** c3
    return limit + beta * (f * n / 1e6) ** -alpha


def mixing(theta, n, d, p, u):
    return math.exp(theta[0]) + math.exp(sum(t * r for t, r in zip(theta[1:], p, strict=True)))


def transfer(theta, n, d, p, u):
    e, a, b = (math.exp(x) for x in theta[:3])
    alpha, beta = theta[3:5]
    effective = d * p[0]
    for tau, ratio in zip(theta[5:], p[1:], strict=True):
        effective += tau * d * ratio
    return e + a / (n / 1e6) ** alpha + b / (effective / 1e9) ** beta


def atlas(theta, n, d, p, u):
    e, a, b = (math.exp(x) for x in theta[:3])
    alpha, beta, rate = theta[3], theta[4], math.exp(theta[5])
    effective = 0.0
    for tau, ratio, unique in zip([1.0, *theta[6:]], p, u, strict=True):
        effective += tau * saturated(d * ratio, unique, rate)
    return e + a / (n / 1e6) ** alpha + b / (effective / 1e9) ** beta


def saturated(tokens, unique, rate):
    if tokens <= unique:
        return tokens
    if unique == 0:
        return 0.0
    return unique * (1 + (1 - math.exp(-rate * (tokens / unique - 1))) / rate)


RD, RN = 15.387756, 5.309743


def repetition(
    inner: Reference, rd: float = RD, rn: float | None = None, ratios: bool = True
) -> Reference:
    """`ratios`: the inner law uses them, so they are discounted; else D is."""

    def law(theta, n, d, p, u):
        worth = [
            min(d * ratio, unique)
            + unique * rd * (1 - math.exp(-max(d * ratio / unique - 1, 0) / rd))
            for ratio, unique in zip(p, u, strict=True)
        ]
        if rn is not None:
            a, b, alpha, beta = math.exp(6.255414), math.exp(7.3049974), 0.3526596, 0.3526596
            g = (alpha * a / (beta * b)) ** (1 / (alpha + beta))
            seen = sum(min(d * ratio, unique) for ratio, unique in zip(p, u, strict=True))
            enough = min(n, (seen * g) ** (beta / alpha) * g)
            n = enough + enough * rn * (1 - math.exp(-max(n / enough - 1, 0) / rn))
        if ratios:
            return inner(theta, n, d, [w / d for w in worth], [math.inf] * len(p))
        return inner(theta, n, sum(worth), p, [math.inf] * len(p))

    return law


REFERENCES: dict[str, Reference] = {
    "family": family,
    "chinchilla": chinchilla,
    "additive": additive,
    "additive-pooled": additive_pooled,
    "bimix": bimix,
    "fernandes": fernandes,
    "mixing": mixing,
    "transfer": transfer,
    "atlas": atlas,
    "family+repetition": repetition(family),
    "chinchilla+repetition": repetition(chinchilla, ratios=False),
    "chinchilla+repetition(rn=5.309743)": repetition(chinchilla, rn=RN, ratios=False),
    "additive+repetition(rd=4.0,rn=2.0)": repetition(additive, rd=4.0, rn=2.0),
    "bimix+repetition": repetition(bimix),
    "transfer+repetition(rd=4.0)": repetition(transfer, rd=4.0),
}
