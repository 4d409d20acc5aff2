"""A diagnosis as sections of a page: its own words, with the figures and tables they rest on."""

from __future__ import annotations

from apportion.mixture.diagnose import Diagnosis
from apportion.mixture.figures.parts import Picture, Section, Table
from apportion.mixture.plot import plot_cross_effects, plot_gamma, svg


def diagnosis_sections(diagnosis: Diagnosis) -> list[Section]:
    """One section a question of the diagnosis, in its order."""
    found: list[Section] = []
    for question in diagnosis.sections:
        title, tone = question.title, ""
        pictures: tuple[Picture, ...] = ()
        tables: tuple[Table, ...] = ()
        text: tuple[str, ...] = ()
        if title.startswith("Hypothesis 1"):
            tone = "good" if question.answer.startswith("holds") else "care"
            tone = "bad" if diagnosis.holds == "fails" else tone
            pictures, tables = _pairs(diagnosis)
            if not pictures:
                text = ("There is no figure of cross-effects: these runs can test no pair.",)
        elif title.startswith("Is gamma"):
            tone = "bad" if question.answer.startswith("NO") else "good"
            pictures, tables = _gamma(diagnosis)
        elif title.startswith("Which exponents"):
            tone = "good" if question.answer.startswith("all") else "care"
            tables = (Table("Exponents", diagnosis.exponents, folded=True),)
        found.append(
            Section(
                title,
                question.answer,
                tone,
                text=text,
                points=tuple(question.lines),
                pictures=pictures,
                tables=tables,
            )
        )
    return found


def _pairs(diagnosis: Diagnosis) -> tuple[tuple[Picture, ...], tuple[Table, ...]]:
    corrected = {"p_holm": "corrected p"}
    spread = diagnosis.spread.rename(columns=corrected)
    tables: tuple[Table, ...] = ()
    if any(spread["cells"]):
        title = "Spread at the same N, D and own ratio (log loss)"
        tables = (Table(title, spread, folded=True),)
    if set(diagnosis.pairs["verdict"]) <= {"not testable"}:
        return (), tables
    caption = (
        "What moving a tenth of the tokens to one family (column) does to the loss of another "
        "(row) while its own ratio stays: below 0 the loss falls."
    )
    pairs = diagnosis.pairs.drop(columns=["p", "noise"]).rename(columns=corrected)
    effects = Table("Effect of every pair (nats per token)", pairs, folded=True)
    return (Picture(svg(plot_cross_effects(diagnosis)), caption),), (effects, *tables)


def _gamma(diagnosis: Diagnosis) -> tuple[tuple[Picture, ...], tuple[Table, ...]]:
    if not len(diagnosis.gamma):
        return (), ()
    caption = (
        "Gamma of every family at every (N, D), measured without any law; the bar behind is one "
        f"common gamma. Intervals at {1 - diagnosis.alpha:.0%}."
    )
    return (Picture(svg(plot_gamma(diagnosis)), caption),), (
        Table("Gamma per (N, D)", diagnosis.gamma, folded=True),
        Table("Tests of constancy", diagnosis.gamma_tests, folded=True),
    )
