"""The same properties for every mixture law, plain and wrapped in repetition."""

from __future__ import annotations

import inspect
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import least_squares

from apportion.errors import InputError
from apportion.mixture.laws import LAWS, Conditions, Law, SeparableLaw, get_law
from apportion.mixture.laws.base import best_amplitudes
from apportion.mixture.laws.repetition import Repetition
from contract.law_references import REFERENCES

NAMES = list(REFERENCES)
FAMILIES = (1, 2, 3, 17)
every_law = pytest.mark.parametrize("name", NAMES)
every_count = pytest.mark.parametrize("families", FAMILIES)


def a_theta(law: Law, families: int, rng: np.random.Generator) -> np.ndarray:
    """A plausible point: amplitudes of order 1, exponents of order 0.3, well inside the bounds."""
    ranges = {"amplitude": (-1.0, 1.0), "exponent": (0.1, 0.7), "coefficient": (0.1, 0.6)}
    ends = np.array([ranges[p.kind] for p in law.parameters(families)])
    return rng.uniform(ends[:, 0], ends[:, 1])


def some_runs(families: int, count: int, rng: np.random.Generator) -> Conditions:
    """Runs over all sizes and mixtures; some families repeat, the last of several has no limit."""
    unique = 10 ** rng.uniform(8.0, 10.5, families)
    unique[-1] = np.inf if families > 1 else unique[-1]
    return Conditions(
        params=10 ** rng.uniform(7.0, 9.5, count),
        tokens=10 ** rng.uniform(9.0, 11.0, count),
        ratios=rng.dirichlet(np.ones(families), count) if families > 1 else np.ones((count, 1)),
        unique=unique,
    )


def values(law: Law, theta: np.ndarray, at: Conditions) -> dict[str, np.ndarray]:
    value, gradient = law.gradient(theta, at)
    return {
        "log_loss": law.log_loss(theta, at),
        "value": value,
        "gradient": gradient,
        "ratio_gradient": law.ratio_gradient(theta, at),
        "size_gradient": law.size_gradient(theta, at),
    }


def test_every_registered_law_has_a_reference():
    assert set(LAWS) <= set(REFERENCES)
    assert all(LAWS[name].name == name for name in LAWS)


@every_law
def test_name_leads_back_to_the_law(name):
    law = get_law(name)
    assert law.name == name
    assert get_law(law.name) == law
    assert get_law(law) is law
    assert law != get_law("mixing" if name != "mixing" else "family")


@every_law
def test_law_says_what_it_is(name):
    law = get_law(name)
    doc = inspect.getdoc(type(law)) or ""
    arxiv = law.paper.rsplit("arXiv ", 1)[1]
    if isinstance(law, SeparableLaw) and isinstance(law, Repetition):
        doc = inspect.getdoc(Repetition) or ""
    assert arxiv in doc
    assert law.formula
    assert law.needs
    assert not law.needs & law.fixed


@every_law
@every_count
def test_parameters_are_bounded_and_counted(name, families):
    law = get_law(name)
    parameters = law.parameters(families)
    rng = np.random.default_rng(0)
    at = some_runs(families, 9, rng)
    theta = a_theta(law, families, rng)
    assert law.gradient(theta, at)[1].shape == (9, len(parameters))
    assert len({p.symbol for p in parameters}) == len(parameters)
    for parameter in parameters:
        assert np.isfinite([parameter.lower, parameter.upper]).all()
        assert parameter.lower < parameter.upper
        assert parameter.meaning
    starts = law.starts(at, law.log_loss(theta, at))
    assert starts.shape[1] == len(parameters)
    assert 1 <= len(starts) <= 64
    lower, upper = bounds(law, families)
    assert ((starts >= lower) & (starts <= upper)).all()
    assert np.array_equal(starts, law.starts(at, law.log_loss(theta, at)))


@every_law
@every_count
def test_value_is_the_formula(name, families):
    law, rng = get_law(name), np.random.default_rng(families)
    at, theta = some_runs(families, 20, rng), a_theta(get_law(name), families, rng)
    # A reference that multiplies by U cannot take infinity; more than enough is the same.
    unique = np.minimum(at.unique, 1e15)
    expected = [
        REFERENCES[name](theta.tolist(), n, d, p, unique.tolist())
        for n, d, p in zip(at.params.tolist(), at.tokens.tolist(), at.ratios.tolist(), strict=True)
    ]
    np.testing.assert_allclose(np.exp(law.log_loss(theta, at)), expected, rtol=1e-11)


@every_law
def test_batches_equal_a_plain_loop(name):
    law, rng = get_law(name), np.random.default_rng(1)
    families, runs, batch = 3, 7, (2, 4)
    thetas = np.array([a_theta(law, families, rng) for _ in range(8)]).reshape(*batch, -1)
    cases = [some_runs(families, runs, rng) for _ in range(4)]
    stacked = Conditions(
        params=np.stack([c.params for c in cases]),
        tokens=np.stack([c.tokens for c in cases]),
        ratios=np.stack([c.ratios for c in cases]),
        unique=np.stack([c.unique for c in cases]),
    )
    shared = replace(stacked, params=cases[0].params, tokens=cases[0].tokens[None])
    whole, mixed = values(law, thetas, stacked), values(law, thetas, shared)
    alone = values(law, thetas[1, 2], stacked)
    for i in range(2):
        for j, case in enumerate(cases):
            one = values(law, thetas[i, j], case)
            same_size = replace(case, params=cases[0].params, tokens=cases[0].tokens)
            two = values(law, thetas[i, j], same_size)
            three = values(law, thetas[1, 2], case)
            for key in one:
                np.testing.assert_allclose(whole[key][i, j], one[key], rtol=1e-12, atol=1e-14)
                np.testing.assert_allclose(mixed[key][i, j], two[key], rtol=1e-12, atol=1e-14)
                np.testing.assert_allclose(alone[key][j], three[key], rtol=1e-12, atol=1e-14)


@every_law
def test_many_mixtures_of_one_size(name):
    """Ratios with a batch of their own broadcast the output, also in laws blind to them."""
    law, rng = get_law(name), np.random.default_rng(2)
    theta = a_theta(law, 3, rng)
    ratios = rng.dirichlet(np.ones(3), (5, 1))
    at = Conditions(np.array([1e8]), np.array([1e10]), ratios, np.array([1e9, 5e9, 1e10]))
    found = values(law, theta, at)
    assert found["log_loss"].shape == (5, 1)
    assert found["gradient"].shape == (5, 1, len(theta))
    assert found["ratio_gradient"].shape == (5, 1, 3)
    assert found["size_gradient"].shape == (5, 1, 2)


@every_law
@every_count
def test_gradients_are_the_slopes(name, families):
    law, rng = get_law(name), np.random.default_rng(10 + families)
    at, theta = some_runs(families, 12, rng), a_theta(get_law(name), families, rng)
    found = values(law, theta, at)
    np.testing.assert_allclose(found["value"], found["log_loss"], rtol=1e-14, atol=1e-15)

    def by_theta(k, h):
        return law.log_loss(theta + h * np.eye(len(theta))[k], at)

    def by_ratio(k, h):
        return law.log_loss(theta, replace(at, ratios=at.ratios + h * np.eye(families)[k]))

    def by_size(k, h):
        grown = {key: getattr(at, key) * np.exp(h) for key in (("params", "tokens")[k],)}
        return law.log_loss(theta, replace(at, **grown))

    assert_slopes(found["gradient"], by_theta)
    # A ratio above 1 is outside the domain of (1 - p)^c3; 1 itself has a test of its own.
    if not (name == "fernandes" and families == 1):
        assert_slopes(found["ratio_gradient"], by_ratio, at.ratios.min() / 50)
    assert_slopes(found["size_gradient"], by_size)


def assert_slopes(analytic, value, h=1e-4):
    """Fourth-order central differences, to 1e-6 of the largest slope of every column."""
    h = min(h, 1e-4)
    for k in range(analytic.shape[-1]):
        near, far = value(k, h) - value(k, -h), value(k, 2 * h) - value(k, -2 * h)
        slope = (8 * near - far) / (12 * h)
        scale = max(1e-3, np.abs(slope).max())
        np.testing.assert_allclose(analytic[..., k], slope, rtol=1e-6, atol=1e-6 * scale)


@every_law
@every_count
def test_zero_ratios_and_corners_stay_finite(name, families):
    """No warning (the test run turns them into errors), no NaN, wherever a mixture can be."""
    law, rng = get_law(name), np.random.default_rng(3)
    ratios = np.vstack([np.eye(families), np.eye(families)[:, ::-1]])
    at = some_runs(families, len(ratios), rng)
    at = replace(at, ratios=ratios)
    theta = a_theta(law, families, rng)
    lower, upper = bounds(law, families)
    for point in (theta, np.clip(theta * 0.0, lower, upper), np.clip(theta + 1.5, lower, upper)):
        found = values(law, point, at)
        assert all(np.isfinite(array).all() for array in found.values())
    usable = law.usable(at)
    assert usable.shape == (len(ratios),)
    blind = {"chinchilla", "additive", "additive-pooled", "mixing", "transfer", "atlas"}
    expected = np.ones(len(ratios), dtype=bool) if name.split("+")[0] in blind else at.own > 0
    assert np.array_equal(usable, expected)


@every_law
def test_zero_ratio_is_the_limit(name):
    """Where a law is finite without the family, it gets there continuously."""
    law, rng = get_law(name), np.random.default_rng(4)
    theta = a_theta(law, 3, rng)
    ratios = np.array([[0.0, 0.4, 0.6], [1e-30, 0.4, 0.6], [0.3, 0.0, 0.7], [0.3, 1e-30, 0.7]])
    at = Conditions(np.full(4, 1e8), np.full(4, 1e10), ratios, np.array([1e9, 2e9, 1e10]))
    value = law.log_loss(theta, at)
    assert value[2] == pytest.approx(value[3], rel=1e-2 if "additive" in name else 1e-9)
    if law.usable(at)[0]:
        assert value[0] == pytest.approx(value[1], rel=1e-2 if "additive" in name else 1e-9)


@every_law
@every_count
def test_bounds_do_not_overflow(name, families):
    law, rng = get_law(name), np.random.default_rng(5)
    at = some_runs(families, 10, rng)
    lower, upper = bounds(law, families)
    corners = rng.random((300, len(lower))) < 0.5
    corners[0], corners[1] = False, True
    found = values(law, np.where(corners, upper, lower), at)
    assert all(np.isfinite(array).all() for array in found.values())


@every_law
@pytest.mark.parametrize("families", [2, 3])
def test_noise_free_data_are_recovered(name, families):
    """Some starting point leads plain least squares to the law that made the data."""
    law, rng = get_law(name), np.random.default_rng(6 + families)
    at = some_runs(families, 80, rng)
    if law.fixed:
        at = replace(at, **{key: np.full(80, 1e9) for key in law.fixed})
    truth = a_theta(law, families, rng)
    observed = law.log_loss(truth, at)
    lower, upper = bounds(law, families)
    best = np.inf
    for start in starting_points(law, at, observed):
        fit = least_squares(
            lambda theta: law.log_loss(theta, at) - observed,
            np.clip(start, lower + 1e-9, upper - 1e-9),
            jac=lambda theta: law.gradient(theta, at)[1],
            bounds=(lower, upper),
            xtol=1e-15,
            ftol=1e-15,
            gtol=1e-15,
            max_nfev=2000,
        )
        best = min(best, float(np.abs(fit.fun).max()))
        if best < 1e-7:
            return
    assert best < 1e-7


SEPARABLE = {"family", "chinchilla", "bimix"}


@every_law
def test_wrapping_keeps_separable_laws_separable(name):
    assert isinstance(get_law(name), SeparableLaw) == (name.split("+")[0] in SEPARABLE)


@pytest.mark.parametrize("name", [name for name in NAMES if name.split("+")[0] in SEPARABLE])
def test_separable_laws_are_linear_in_their_amplitudes(name):
    law, rng = get_law(name), np.random.default_rng(7)
    assert isinstance(law, SeparableLaw)
    at, grid = some_runs(3, 15, rng), law.exponent_grid()
    basis = law.basis(grid, at)
    amplitudes = rng.uniform(0.5, 2.0, (len(grid), basis.shape[-1]))
    theta = law.assemble(grid, amplitudes)
    loss = (basis * amplitudes[:, None, :]).sum(axis=-1)
    np.testing.assert_allclose(np.exp(law.log_loss(theta, at)), loss, rtol=1e-12)
    lower, upper = bounds(law, 3)
    assert ((theta >= lower) & (theta <= upper)).all()


def test_unknown_laws_are_named():
    with pytest.raises(InputError, match=r"family, chinchilla.*got 'famly'"):
        get_law("famly")
    with pytest.raises(InputError, match=r"got 'famly\+repetition'"):
        get_law("famly+repetition")


def bounds(law: Law, families: int) -> tuple[np.ndarray, np.ndarray]:
    parameters = law.parameters(families)
    return np.array([p.lower for p in parameters]), np.array([p.upper for p in parameters])


def starting_points(law: Law, at: Conditions, log_loss: np.ndarray) -> np.ndarray:
    if not isinstance(law, SeparableLaw):
        return law.starts(at, log_loss)
    grid = law.exponent_grid()
    amplitudes, error = best_amplitudes(law.basis(grid, at), log_loss)
    order = np.argsort(error, kind="stable")[:8]
    return law.assemble(grid[order], amplitudes[order])
