"""Figures show what they say, in SVG that is XML, without overlaps, the same bytes each time."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest

from apportion.errors import InputError
from apportion.mixture.diagnose import diagnose
from apportion.mixture.figures import wording
from apportion.mixture.figures.figure import label, levels, log_ticks
from apportion.mixture.figures.heldout import heldout_table, unseen_warning
from apportion.mixture.fit import fit
from apportion.mixture.plot import (
    plot_cross_effects,
    plot_gamma,
    plot_heldout,
    plot_losses,
    plot_ratios,
    save,
    svg,
)
from apportion.mixture.sections import report_page
from apportion.report import render
from browser import measure
from mixture.synthetic import synthetic_runs

NAMES = ("germanic", "<b>&x</b>", "sino_tibetan", "_$x^2$ 汉语", "w" * 60)


def table(runs: int = 48, **options):
    options = {"params": (5e4, 4e5), "tokens": (4e5, 1.6e6), "seed": 3} | options
    drawn, theta = synthetic_runs("family", 5, runs, **options)
    return replace(drawn, families=NAMES, targets=NAMES), theta


@pytest.fixture(scope="module")
def made():
    runs, _ = table()
    fitted = fit(runs.take(np.arange(40)), bootstrap=20)
    supply = dict(zip(NAMES, (4e6, 3e5, 1e6, 6e5, 2e6), strict=True))
    best = fitted.optimize(1.6e6, 3.2e6, supply=supply, max_epochs=4, force=True)
    return {
        "fit": fitted,
        "heldout": runs.take(np.arange(40, 48)),
        "optimum": best,
        "diagnosis": diagnose(fitted.runs, fit=fitted),
    }


@pytest.fixture(scope="module")
def figures(made):
    return {
        "losses": plot_losses(made["fit"]),
        "heldout": plot_heldout(made["fit"], made["heldout"]),
        "ratios": plot_ratios(made["optimum"]),
        "cross": plot_cross_effects(made["diagnosis"]),
        "gamma": plot_gamma(made["diagnosis"]),
    }


def texts(source: str) -> str:
    root = ElementTree.fromstring(source[source.index("<svg") :])
    return "\n".join("".join(each.itertext()) for each in root.iter() if each.tag.endswith("text"))


def data_of(axes, index: int) -> np.ndarray:
    return np.asarray(axes.lines[index].get_xydata(), dtype=float)


SAID = {
    "losses": ("own sampling ratio p", "loss (nats per token)", "N = 50k", "D = 1.6M"),
    "heldout": ("observed loss (nats per token)", "relative error (%)", "mean relative error"),
    "ratios": ("sampling ratio (%", "uniform", "proportional", "temperature 0.3", "UniMax"),
    "cross": ("change of loss (nats per token)", "loss of", "noise of a run"),
    "gamma": ("gamma (", "N = 400k", "D = 400k"),
}


@pytest.mark.parametrize("name", SAID)
def test_figures_are_xml_and_say_what_they_show(figures, name):
    said = texts(svg(figures[name]))
    for words in (*SAID[name], "sino_tibetan", "<b>&x</b>", "_$x^2$ 汉语"):
        assert words in said
    assert "w" * 60 not in said


@pytest.mark.parametrize("name", SAID)
def test_figures_fetch_nothing_and_take_the_color_of_the_page(figures, name):
    source = svg(figures[name])
    addresses = set(re.findall(r"https?://[^\"'<\s]+", source))
    assert {each.split("/")[2] for each in addresses} <= {
        "www.w3.org",
        "purl.org",
        "creativecommons.org",
    }
    assert "currentColor" in source
    assert "<b>" not in source
    root = ElementTree.fromstring(source[source.index("<svg") :])
    assert float(root.get("width", "0pt").removesuffix("pt")) <= (
        270 * 3 if name == "losses" else 281
    )


def test_same_input_same_bytes(made):
    first, second = (svg(plot_losses(made["fit"])) for _ in range(2))
    assert first == second
    assert re.search(r"20\d\d-\d\d-\d\d", first) is None
    cross = [svg(plot_cross_effects(made["diagnosis"])) for _ in range(2)]
    assert cross[0] == cross[1]


def test_the_state_of_matplotlib_is_left_alone(made):
    before = dict(matplotlib.rcParams)
    svg(plot_losses(made["fit"], [NAMES[0]]))
    assert dict(matplotlib.rcParams) == before


def test_lines_are_the_fitted_law(made):
    fitted = made["fit"]
    axes = plot_losses(fitted, [NAMES[2]]).axes[0]
    first = data_of(axes, 0)
    k, row = 2, int(np.flatnonzero(fitted.runs.cells() == most_runs(fitted.runs.cells()))[0])
    size, budget = fitted.runs.params[row], fitted.runs.tokens[row]
    for ratio, loss in first[::11]:
        rest = (1 - ratio) / 4
        shares = np.insert(np.full(4, rest), k, ratio)
        predicted = fitted.predict(size, budget, shares)["loss"].to_numpy(dtype=float)
        assert loss == pytest.approx(predicted[k], rel=1e-12)
    assert axes.get_xscale() == axes.get_yscale() == "log"
    points = np.concatenate([data_of(axes, n) for n in range(4, len(axes.lines))])
    assert len(points) == len(fitted.runs)
    assert sorted(points[:, 1]) == pytest.approx(sorted(fitted.runs.losses[:, k]))
    assert len(axes.collections) == 4


def most_runs(cells: np.ndarray) -> int:
    return int(np.argsort(-np.bincount(cells), kind="stable")[0])


def test_runs_without_the_family_are_not_drawn():
    ratios = np.full((24, 5), 0.2)
    ratios[:, :2] = np.linspace(0.0, 0.4, 24)[:, None] * [1, -1] + [0, 0.4]
    runs, _ = table(24, ratios=ratios, noise=0.001)
    axes = plot_losses(fit(runs), [NAMES[0]]).axes[0]
    drawn = sum(len(data_of(axes, n)) for n in range(len(axes.lines)) if len(data_of(axes, n)) < 40)
    assert drawn == 23


def test_many_sizes_are_put_into_ranges():
    runs, _ = table(60, params=np.geomspace(1e5, 1e8, 40), tokens=np.geomspace(1e6, 1e9, 40))
    figure = plot_losses(fit(runs), [NAMES[0]])
    assert len([line for line in figure.axes[0].lines if len(line.get_xdata()) == 48]) == 12
    said = texts(svg(figure))
    assert len(re.findall(r"^N = \S+ to \S+$", said, flags=re.MULTILINE)) == 4
    assert "(12 of " in said


def test_heldout_table_and_figure_agree_with_predict(made):
    fitted, runs = made["fit"], made["heldout"]
    found = heldout_table(fitted, runs)
    assert len(found) == 8 * 5
    for run in (0, 5):
        rows = found[found["run"] == runs.run[run]].set_index("family")
        said = fitted.predict(runs.params[run], runs.tokens[run], runs.ratios[run])
        for _, row in said.iterrows():
            mine = rows.loc[row["family"]]
            assert mine["predicted"] == pytest.approx(row["loss"])
            assert (mine["low"], mine["high"]) == pytest.approx((row["low"], row["high"]))
            assert mine["error"] == pytest.approx(mine["predicted"] / mine["observed"] - 1)
    above, below = plot_heldout(fitted, runs).axes
    first = found[found["family"] == NAMES[0]]
    assert data_of(above, 0) == pytest.approx(first[["observed", "predicted"]].to_numpy())
    assert data_of(below, 0)[:, 1] == pytest.approx(100 * first["error"].to_numpy())


def test_a_fit_that_misses_unseen_runs_is_not_called_good(made):
    fitted, runs = made["fit"], made["heldout"]
    assert unseen_warning(fitted, heldout_table(fitted, runs)) is None
    far = replace(runs, losses=1.06 * runs.losses)
    warning = unseen_warning(fitted, heldout_table(fitted, far))
    assert warning is not None
    assert re.search(r"errs by 5\.\d\d% on runs .* losses lie in its 90% intervals", warning)
    first, *rest = report_page(fitted, heldout=far).sections
    assert first.title == "Can this fit be trusted?"
    assert (first.tone, first.answer.endswith(warning)) == ("bad", True)
    (seen,) = [section for section in rest if section.title.startswith("Runs that the fit")]
    assert seen.tone == "bad"


def test_heldout_columns_may_stand_in_another_order(made):
    runs = made["heldout"]
    turned = replace(
        runs,
        families=NAMES[::-1],
        targets=NAMES[::-1],
        ratios=runs.ratios[:, ::-1],
        losses=runs.losses[:, ::-1],
    )
    one, other = heldout_table(made["fit"], runs), heldout_table(made["fit"], turned)
    assert one.to_dict() == other.to_dict()


def test_other_families_are_refused(made):
    runs = replace(made["heldout"], families=("a", "b", "c", "d", "e"))
    with pytest.raises(InputError, match="families of the fit"):
        heldout_table(made["fit"], runs)
    with pytest.raises(InputError, match="expected a family out of"):
        plot_losses(made["fit"], ["latin"])


def test_ratios_are_those_proposed(made):
    axes = plot_ratios(made["optimum"]).axes[0]
    bars = [patch.get_width() for patch in axes.patches]
    assert bars == pytest.approx(100 * made["optimum"].table["ratio"].to_numpy())
    uniform = [line for line in axes.lines if np.allclose(line.get_xdata(), 20.0)]
    assert uniform


def test_cross_effects_stand_in_their_cells(made):
    pairs = made["diagnosis"].pairs.copy()
    at = (pairs["family"] == NAMES[0]) & (pairs["other"] == NAMES[2])
    pairs.loc[at, ["effect", "verdict"]] = [-0.25, "large"]
    pairs.loc[(pairs["family"] == NAMES[3]) & (pairs["other"] == NAMES[1]), "effect"] = np.nan
    axes = plot_cross_effects(replace(made["diagnosis"], pairs=pairs)).axes[0]
    shown = np.ma.filled(axes.images[0].get_array(), np.nan)
    for pair in pairs.to_dict("records"):
        place = NAMES.index(pair["family"]), NAMES.index(pair["other"])
        assert shown[place] == pytest.approx(pair["effect"], nan_ok=True)
    assert np.isnan(shown[3, 1])
    assert np.isnan(np.diag(shown)).all()
    marked = {text.get_position(): text.get_text() for text in axes.texts}
    assert marked[2, 0] == "−0.25\n**"
    assert all(i != j for i, j in marked)


def test_gamma_is_that_of_the_diagnosis(made):
    cells = made["diagnosis"].gamma
    axes = plot_gamma(made["diagnosis"]).axes[0]
    points = [line.get_xdata()[0] for line in axes.lines if line.get_marker() in "os"]
    assert sorted(points) == pytest.approx(sorted(cells["gamma"]))


@pytest.mark.parametrize("kind", ["svg", "png", "pdf"])
def test_save(figures, tmp_path, kind):
    path = tmp_path / f"figure.{kind}"
    save(figures["cross"], path)
    first = path.read_bytes()
    assert first.startswith({"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF"}[kind])
    save(figures["cross"], path)
    assert path.read_bytes() == first
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_save_refuses_what_it_cannot_write(figures, tmp_path):
    with pytest.raises(InputError, match=r"\.svg, \.png or \.pdf, got '\.gif'"):
        save(figures["cross"], tmp_path / "figure.gif")
    with pytest.raises(InputError, match="cannot write"):
        save(figures["cross"], tmp_path / "none" / "figure.svg")


def test_the_page_fits_and_no_text_covers_another(made, tmp_path):
    page = report_page(
        made["fit"],
        optimum=made["optimum"],
        diagnosis=made["diagnosis"],
        heldout=made["heldout"],
        predictions={"uniform": made["fit"].predict(1e6, 1e7, [0.2] * 5)},
    )
    html = render(page)
    assert html == render(page)
    assert "<b>" not in html
    assert re.search(r"https?://", html) is None
    wide, phone = measure(html, tmp_path, (1280, 390))
    for seen, width in ((wide, 1280), (phone, 390)):
        assert seen["scroll"] <= width
        assert seen["wide"] == []
        assert seen["hits"] == [], "\n".join(seen["hits"])
        assert seen["figures"] == 5 + 4
        assert seen["loaded"] == []
        assert seen["smallest"] > 8
        for words in ("Can this fit be trusted?", "Hypothesis 1", "SHA-256", NAMES[1]):
            assert words in seen["text"]


def said(sections) -> str:
    return "\n".join(
        str(part)
        for section in sections
        for part in (section.title, section.answer, *section.text, *section.points)
    )


def test_without_a_bootstrap_no_interval_is_spoken_of(made):
    bare = replace(made["fit"], samples=None)
    best = bare.optimize(1.6e6, 3.2e6, force=True)
    page = report_page(bare, optimum=best)
    proposal = next(s for s in page.sections if s.title.startswith("Sampling ratios"))
    assert "interval" not in proposal.pictures[0].caption
    assert "interval" not in texts(proposal.pictures[0].svg)
    assert "interval" not in proposal.tables[1].frame.columns
    facts = page.sections[-1].tables[0].frame.set_index("what")["value"]
    assert facts["intervals"] == "none"
    assert "intervals at" not in str(best)
    assert " interval " not in str(best).splitlines()[0]
    known = report_page(made["fit"], optimum=made["optimum"]).sections[1]
    assert "intervals at 90%" in known.pictures[0].caption
    assert "90% interval" in texts(known.pictures[0].svg)
    assert "intervals at 90%" in str(made["optimum"])


def test_the_page_says_where_hypothesis_1_is_tested_unless_it_is_there(made):
    without = said(report_page(made["fit"]).sections)
    assert "hypothesis 1" in without
    assert "apportion mixture diagnose" in without
    tested = said(report_page(made["fit"], diagnosis=made["diagnosis"]).sections)
    assert "apportion mixture diagnose" not in tested


@pytest.mark.parametrize("families", [1, 2])
def test_no_figure_where_no_pair_can_be_tested(families):
    ratios = np.ones((30, 1)) if families == 1 else None
    runs, _ = synthetic_runs("family", families, 30, seed=3, ratios=ratios)
    fitted = fit(runs)
    page = report_page(fitted, diagnosis=diagnose(runs, fit=fitted))
    assert page.title == f"Data mixture: {('1 family', '2 families')[families - 1]}, 30 runs"
    section = next(s for s in page.sections if s.title.startswith("Hypothesis 1"))
    assert section.pictures == ()
    assert "Effect of every pair" not in " ".join(table.title for table in section.tables)
    assert "no figure of cross-effects" in " ".join(section.text)


def test_a_parameter_on_its_bound_says_so(made):
    assert wording.fitted(0.0, 0.0, 0.12, "lower", 3) == "0 (bound) (0.000 to 0.120)"
    assert wording.fitted(-1.0, np.nan, np.nan, "lower", 3) == "−1 (bound)"
    assert wording.fitted(0.25, 0.2, 0.3, "", 3) == "0.250 (0.200 to 0.300)"
    theta = made["fit"].theta.copy()
    theta[0, 3] = 1e-17
    sections = report_page(replace(made["fit"], theta=theta)).sections
    shown = next(s for s in sections if s.title == "Parameters").tables[0].frame
    row = shown.set_index("family").loc[NAMES[0]]
    assert row["alpha"].startswith(("0 (bound)", "open"))


@pytest.mark.parametrize(
    ("low", "high"), [(0.03, 0.8), (2.9, 3.1), (1.0, 12.0), (0.9e-4, 0.97), (3.3, 6.1)]
)
def test_log_ticks_are_few_and_inside(low, high):
    ticks = log_ticks(low, high)
    assert 3 <= len(ticks) <= 6
    assert all(low <= tick <= high for tick in ticks)
    assert all(float(f"{tick:g}") == pytest.approx(tick, rel=1e-9) for tick in ticks)


def test_labels_and_levels():
    assert label("_hidden").endswith("_hidden")
    assert not label("_hidden").startswith("_")
    assert label("sino_tibetan") == "sino_tibetan"
    assert label("abcdefghijklmnopqrstuvwxyz") == "abcdefghijkl…vwxyz"
    assert len(label("w" * 60)) == len(label("汉" * 60)) == 12
    assert label("two\nlines") == "two lines"
    place, names = levels(np.array([4e5, 1e5, 4e5]))
    assert place.tolist() == [1, 0, 1]
    assert names == ["100k", "400k"]
