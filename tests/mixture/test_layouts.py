"""The layouts of RegMix and olmix: on small files made here, and on RegMix's published ones."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from apportion.errors import InputError, InputWarning
from apportion.mixture.read import concat_runs, read_runs, write_runs

PUBLIC = Path(__file__).resolve().parents[3] / "shared" / "data" / "regmix"
needs_public = pytest.mark.skipif(
    not PUBLIC.is_dir(), reason=f"the published RegMix tables are not at {PUBLIC}"
)


def regmix(folder: Path) -> tuple[Path, Path]:
    """Three runs; the loss file is in another order, and one domain is never evaluated."""
    ratios, losses = folder / "mix.csv", folder / "loss.csv"
    ratios.write_text(
        "index,train_the_pile_arxiv,train_the_pile_europarl,train_web\n"
        "1,0.5,0.25,0.25\n2,1.0,0.0,0.0\n7,0.0,0.5,0.5\n"
    )
    losses.write_text(
        "index,metric/web_val_loss,metric/the_pile_arxiv_val_loss\n7,3.5,6.5\n1,4.5,5.5\n2,7.5,4.0\n"
    )
    return ratios, losses


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("layout", ["auto", "regmix"])
def test_regmix(tmp_path: Path, layout: str, swapped: bool) -> None:
    paths = regmix(tmp_path)
    table = read_runs(*(paths[::-1] if swapped else paths), format=layout, params=1e6, tokens="1B")
    assert table.run == ("mix:1", "mix:2", "mix:7")
    assert table.families == ("arxiv", "europarl", "web")
    assert table.targets == ("arxiv", "web")
    np.testing.assert_array_equal(table.ratios, [[0.5, 0.25, 0.25], [1, 0, 0], [0, 0.5, 0.5]])
    np.testing.assert_array_equal(table.losses, [[5.5, 4.5], [4.0, 7.5], [6.5, 3.5]])
    assert table.params.tolist() == [1e6] * 3
    assert table.tokens.tolist() == [1e9] * 3


def test_regmix_needs_the_sizes_of_its_runs(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"has no params; pass both.* params=1e6 and tokens=1e9 .*1M with 1B"
    ):
        read_runs(*regmix(tmp_path), tokens=1e9)
    with pytest.raises(InputError, match="has no tokens; pass both"):
        read_runs(*regmix(tmp_path), params=1e6)


def test_regmix_problems_are_named_in_the_words_of_its_files(tmp_path: Path) -> None:
    ratios, losses = regmix(tmp_path)
    losses.write_text(losses.read_text().replace("1,4.5,5.5", "1,4.5,-5.5"))
    with pytest.raises(
        InputError, match=r"loss\.csv, line 3, column metric/the_pile_arxiv_val_loss: .*-5\.5"
    ):
        read_runs(ratios, losses, params=1e6, tokens=1e9)
    ratios, losses = regmix(tmp_path)
    ratios.write_text(ratios.read_text().replace("2,1.0", "2,0.8"))
    with pytest.raises(InputError, match=r"mix\.csv, line 3: the ratios sum to 0\.8"):
        read_runs(ratios, losses, params=1e6, tokens=1e9)


def test_regmix_repeated_and_unmatched_runs(tmp_path: Path) -> None:
    ratios, losses = regmix(tmp_path)
    losses.write_text(losses.read_text().replace("\n2,", "\n3,"))
    with pytest.warns(InputWarning) as caught:
        table = read_runs(ratios, losses, params=1e6, tokens=1e9)
    said = " ".join(str(one.message) for one in caught)
    assert "mix.csv: 1 run in this file only, left out: 2" in said
    assert "loss.csv: 1 run in this file only, left out: 3" in said
    assert table.run == ("mix:1", "mix:7")
    losses.write_text(losses.read_text().replace("\n3,", "\n1,"))
    with pytest.raises(InputError, match=r"loss\.csv, line 4, column index: '1' again"):
        read_runs(ratios, losses, params=1e6, tokens=1e9)
    losses.write_text(losses.read_text().replace("\n1,", "\nx1,").replace("\n7,", "\nx7,"))
    losses.write_text(losses.read_text().replace("x1,7.5", "x2,7.5"))
    with pytest.raises(InputError, match="no run in common"):
        read_runs(ratios, losses, params=1e6, tokens=1e9)


def test_two_files_are_needed(tmp_path: Path) -> None:
    ratios, _ = regmix(tmp_path)
    with pytest.raises(
        InputError, match=r'two files.*such as train_mixture_1m\.csv .*format="regmix"; got 1'
    ):
        read_runs(ratios, format="regmix", params=1e6, tokens=1e9)
    with pytest.raises(InputError, match="expected one RegMix file with columns index"):
        read_runs(ratios, ratios, format="regmix", params=1e6, tokens=1e9)


@needs_public
@pytest.mark.parametrize(
    ("split", "size", "tokens", "rows"),
    [
        ("train", "1m", 1e9, 512),
        ("test", "1m", 1e9, 256),
        ("test", "60m", 1e9, 256),
        ("test", "1B", 25e9, 64),
    ],
)
def test_the_published_regmix_tables(
    tmp_path: Path, split: str, size: str, tokens: float, rows: int
) -> None:
    mixture, loss = (PUBLIC / f"{split}_{kind}_{size}.csv" for kind in ("mixture", "pile_loss"))
    # Its ratios are rounded to three decimals, which is said.
    with pytest.warns(InputWarning, match="they were divided by their sum"):
        table = read_runs(mixture, loss, params=size.upper(), tokens=tokens)
    assert len(table) == rows
    assert (len(table.families), len(table.targets)) == (17, 13)
    assert set(table.families) - set(table.targets) == {
        "nih_exporter", "philpapers", "enron_emails", "europarl",
    }  # fmt: skip
    np.testing.assert_allclose(table.ratios.sum(axis=1), 1, rtol=0, atol=1e-12)
    # Against a data frame joined independently.
    joined = pd.merge(pd.read_csv(mixture), pd.read_csv(loss), on="index", validate="1:1")
    assert list(table.run) == [f"{mixture.stem}:{index}" for index in joined["index"]]
    for k, name in enumerate(table.targets):
        np.testing.assert_array_equal(
            table.losses[:, k], joined[f"metric/the_pile_{name}_val_loss"]
        )
    for k, name in enumerate(table.families):
        np.testing.assert_allclose(
            table.ratios[:, k], joined[f"train_the_pile_{name}"], rtol=0, atol=5e-3
        )
    write_runs(table, tmp_path / "own.csv")
    again = read_runs(tmp_path / "own.csv", allow_unmeasured=True)
    np.testing.assert_allclose(again.ratios, table.ratios, rtol=0, atol=1e-15)
    np.testing.assert_array_equal(again.losses, table.losses)


@needs_public
def test_published_tables_of_several_sizes_go_together() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InputWarning)
        tables = [
            read_runs(
                PUBLIC / f"{split}_mixture_{size}.csv",
                PUBLIC / f"{split}_pile_loss_{size}.csv",
                params=size.upper(),
                tokens=tokens,
            )
            for split, size, tokens in (
                ("train", "1m", "1B"),
                ("test", "1m", "1B"),
                ("test", "1B", "25B"),
            )
        ]
    whole = concat_runs(*tables)
    assert len(whole) == 512 + 256 + 64
    assert len(np.unique(whole.cells())) == 2


def olmix(folder: Path, metrics: str = "wiki_bpb,arxiv_bpb,arc_bpb", key: str = "run") -> Path:
    (folder / "ratios.csv").write_text(
        f"{key},name,index,wiki,arxiv\na,first,0,0.25,0.75\nb,second,1,0.5,0.496\nc,third,2,1.0,0.0\n"
    )
    (folder / "metrics.csv").write_text(
        f"run_id,name,{metrics}\nc,third,0.5,1.5,2.5\na,first,1.0,0.75,2.25\nb,second,0.8,0.9,2.0\n"
    )
    return folder


@pytest.mark.parametrize("key", ["run", "run_id"])
@pytest.mark.parametrize("as_folder", [False, True])
def test_olmix(tmp_path: Path, key: str, as_folder: bool) -> None:
    folder = olmix(tmp_path, key=key)
    paths = [folder] if as_folder else [folder / "ratios.csv", folder / "metrics.csv"]
    with pytest.warns(InputWarning, match=r"ratios\.csv, line 3: the ratios sum to 0\.996"):
        table = read_runs(*paths, params="30M", tokens=3e9)
    assert table.run == ("a", "b", "c")
    assert table.families == table.targets == ("wiki", "arxiv")
    np.testing.assert_allclose(table.ratios[1], [0.5 / 0.996, 0.496 / 0.996], rtol=1e-14)
    # Bits per byte come back as they stand in the file.
    np.testing.assert_allclose(
        table.bits_per_byte(), [[1.0, 0.75], [0.8, 0.9], [0.5, 1.5]], rtol=1e-14
    )
    assert table.extra is not None
    assert table.extra["name"].tolist() == ["first", "second", "third"]
    assert table.extra["metric_arc_bpb"].tolist() == [2.25, 2.0, 2.5]


def sized(folder: Path, **options: Any):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InputWarning)
        return read_runs(folder, params="30M", tokens=3e9, **options)


def test_olmix_metrics_that_are_not_named_as_families(tmp_path: Path) -> None:
    folder = olmix(tmp_path, "x,y,arc_bpb")
    with pytest.raises(InputError, match=r'pair them, such as metrics=\{"wiki": "x", …\}'):
        sized(folder)
    table = sized(folder, metrics={"arxiv": "y"})
    assert table.targets == ("arxiv",)
    assert table.bytes_per_token is None
    np.testing.assert_array_equal(table.losses[:, 0], [0.75, 0.9, 1.5])
    with pytest.raises(InputError, match="no family 'wikki'"):
        sized(folder, metrics={"wikki": "x"})
    with pytest.raises(InputError, match="no metric 'z'"):
        sized(folder, metrics={"wiki": "z"})
    with pytest.raises(InputError, match="one metric for two families"):
        sized(folder, metrics={"wiki": "x", "arxiv": "x"})
    with pytest.raises(InputError, match="metrics of one unit"):
        sized(folder, metrics={"wiki": "x", "arxiv": "arc_bpb"})


def test_olmix_files_without_an_id(tmp_path: Path) -> None:
    folder = olmix(tmp_path, key="experiment")
    with pytest.raises(InputError, match=r"ratios\.csv: expected an id column run or run_id"):
        sized(folder)
    with pytest.raises(InputError, match="the olmix layout has no params"):
        read_runs(olmix(tmp_path), tokens=1e9)


def test_metrics_belong_to_olmix(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="regmix layout"):
        read_runs(*regmix(tmp_path), params=1e6, tokens=1e9, metrics={"arxiv": "x"})
