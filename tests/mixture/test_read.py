"""Reading run tables: sound files give their numbers, wrong ones say what, where and the mend."""

from __future__ import annotations

import os
import pickle
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from apportion.errors import InputError, InputWarning
from apportion.mixture.read import ModelShape, concat_runs, read_runs, write_runs
from apportion.mixture.runs import RunTable
from apportion.mixture.table.required import require_rows


def sound() -> pd.DataFrame:
    share = np.array([0.1, 0.25, 0.5, 0.75, 0.9])
    return pd.DataFrame(
        {
            "run": [f"r{k}" for k in range(5)],
            "params": [85e6, 85e6, 85e6, 397e6, 397e6],
            "tokens": [4e9, 8e9, 4e9, 4e9, 8e9],
            "ratio_romance": share,
            "ratio_indic": 1 - share,
            "loss_romance": 3.0 - share,
            "loss_indic": 2.5 + share,
        }
    )


def save(folder: Path, frame: pd.DataFrame, name: str = "runs.csv") -> Path:
    path = folder / name
    if path.suffix == ".parquet":
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False)
    return path


def message(path: Path, **options: Any) -> str:
    with pytest.raises(InputError) as caught:
        read_runs(path, **options)
    return str(caught.value)


@pytest.mark.parametrize("name", ["runs.csv", "runs.parquet"])
def test_the_numbers_arrive(tmp_path: Path, name: str) -> None:
    frame = sound()
    table = read_runs(save(tmp_path, frame, name))
    assert table.run == ("r0", "r1", "r2", "r3", "r4")
    assert table.families == table.targets == ("romance", "indic")
    np.testing.assert_array_equal(table.params, frame["params"])
    np.testing.assert_array_equal(table.tokens, frame["tokens"])
    np.testing.assert_allclose(table.ratios[:, 0], frame["ratio_romance"], rtol=1e-15)
    np.testing.assert_array_equal(table.losses[:, 1], frame["loss_indic"])
    assert table.seed is None
    assert table.bytes_per_token is None
    assert table.extra is None


@pytest.mark.parametrize("name", ["runs.csv", "runs.parquet"])
def test_optional_columns_and_the_rest_survive_writing_and_reading(
    tmp_path: Path, name: str
) -> None:
    frame = sound().assign(
        seed=[2**60 + k for k in range(5)],
        bytes_per_token_indic=7.5,
        bytes_per_token_romance=4.25,
        part=["a, b", 'quoted "c"', "", "d", "é"],
        step=[100, 100, 100, 200, 200],
        tokens_per_second=[1.5, np.nan, 2.5, 3.5, 0.1 + 0.2],
    )
    first = read_runs(save(tmp_path, frame))
    write_runs(first, tmp_path / name)
    table = read_runs(tmp_path / name)
    assert table.seed is not None
    assert table.seed.tolist() == [2**60 + k for k in range(5)]
    assert table.bytes_per_token is not None
    np.testing.assert_array_equal(table.bytes_per_token, np.tile([4.25, 7.5], (5, 1)))
    np.testing.assert_allclose(table.bits_per_byte(), table.losses / [4.25, 7.5] / np.log(2))
    np.testing.assert_array_equal(table.ratios, first.ratios)
    np.testing.assert_array_equal(table.losses, first.losses)
    assert table.extra is not None
    assert list(table.extra.columns) == ["part", "step", "tokens_per_second"]
    assert table.extra["part"].tolist() == ["a, b", 'quoted "c"', "", "d", "é"]
    assert table.extra["step"].tolist() == [100, 100, 100, 200, 200]
    np.testing.assert_array_equal(table.extra["tokens_per_second"], frame["tokens_per_second"])


def test_several_files_with_columns_in_another_order(tmp_path: Path) -> None:
    one = save(tmp_path, sound(), "a.csv")
    other = sound().iloc[:, ::-1].assign(note="x")
    other["run"] = [f"s{k}" for k in range(5)]
    two = save(tmp_path, other, "b.parquet")
    table = read_runs(one, two)
    assert len(table) == 10
    np.testing.assert_array_equal(table.ratios[:5], table.ratios[5:])
    np.testing.assert_array_equal(table.losses[:5], table.losses[5:])
    assert table.extra is not None
    assert table.extra["note"].tolist() == [""] * 5 + ["x"] * 5


def test_several_files_with_other_families(tmp_path: Path) -> None:
    one = save(tmp_path, sound(), "a.csv")
    renamed = sound().rename(columns=lambda name: name.replace("indic", "slavic"))
    two = save(tmp_path, renamed, "b.csv")
    with pytest.raises(InputError, match=r"b\.csv: no column ratio_indic"):
        read_runs(one, two)
    with pytest.raises(InputError, match=r"b\.csv: also has ratio_slavic"):
        read_runs(one, two)


def test_a_run_in_two_files_is_named_with_both_places(tmp_path: Path) -> None:
    one, two = save(tmp_path, sound(), "a.csv"), save(tmp_path, sound(), "b.csv")
    with pytest.raises(
        InputError, match=r"b\.csv, line 2, column run: 'r0' again, .*a\.csv, line 2"
    ):
        read_runs(one, two)


def test_a_seed_that_only_one_file_has_is_left_out_and_said(tmp_path: Path) -> None:
    one = save(tmp_path, sound().assign(seed=1), "a.csv")
    other = sound()
    other["run"] += "b"
    two = save(tmp_path, other, "b.csv")
    with pytest.warns(InputWarning, match=r"b\.csv has no column seed"):
        assert read_runs(one, two).seed is None


def edited(row: int, column: str, value: object) -> pd.DataFrame:
    frame = sound().astype(object)
    frame.loc[row, column] = value
    return frame


@pytest.mark.parametrize(
    ("row", "column", "value", "said"),
    [
        (1, "ratio_indic", "-0.2", "found the negative value -0.2"),
        (1, "ratio_indic", "nan", "found NaN, not a number"),
        (0, "loss_indic", "inf", "found the infinite value inf"),
        (0, "loss_indic", "-1.5", "found the negative value -1.5"),
        (0, "loss_indic", "0", "found zero"),
        (0, "loss_indic", "", "the cell is empty"),
        (0, "loss_indic", "low", "found 'low', not a number"),
        (3, "params", "397,000,000", "with thousands separators; write 397000000"),
        (3, "params", "397M", "found '397M', not a number; write 397000000"),
        (3, "params", "397_000_000", "with thousands separators; write 397000000"),
        (2, "ratio_romance", "0,5", "found '0,5' with a decimal comma; write 0.5"),
        (2, "ratio_romance", "50%", "a percentage; write the share"),
        (2, "ratio_romance", "٠", "found '٠', not a number"),
        (4, "params", "397", "found 397; expected between 1000 and"),
        (4, "tokens", "8", "found 8; expected at least a tenth as many training tokens"),
        (2, "run", "", "expected a name for every run"),
        (2, "run", "r1", "'r1' again, first at "),
    ],
)
def test_wrong_cells_are_named_by_line_and_column(
    tmp_path: Path, row: int, column: str, value: str, said: str
) -> None:
    text = message(save(tmp_path, edited(row, column, value)))
    assert f"runs.csv, line {row + 2}, column {column}" in text
    assert said in text


@pytest.mark.parametrize("value", [None, float("nan"), -1.0, float("inf")])
def test_wrong_parquet_cells_are_named_by_row(tmp_path: Path, value: float | None) -> None:
    frame = sound()
    frame["loss_indic"] = pd.array([2.5, 2.5, value, 2.5, 2.5], dtype="Float64")
    assert "runs.parquet, row 3, column loss_indic" in message(
        save(tmp_path, frame, "runs.parquet")
    )


@pytest.mark.parametrize("seed", ["1.5", "x", "9223372036854775808", ""])
def test_seeds_are_whole_numbers(tmp_path: Path, seed: str) -> None:
    frame = sound().assign(seed=[1, 2, 3, 4, seed])
    text = message(save(tmp_path, frame))
    assert "line 6, column seed" in text
    assert "whole number" in text


def test_lines_are_counted_as_an_editor_does(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    frame = edited(3, "loss_indic", "x").assign(note="two\nlines")
    text = "\n\n" + frame.to_csv(index=False).replace("r2,", "\nr2,")
    path.write_text(text, encoding="utf-8")
    line = next(k for k, one in enumerate(text.split("\n"), 1) if one.startswith("r3,"))
    assert f"runs.csv, line {line}, column loss_indic: found 'x'" in message(path)


def test_all_problems_of_a_kind_are_told_up_to_five(tmp_path: Path) -> None:
    big = pd.concat([sound().assign(run=[f"{k}-{n}" for n in range(5)]) for k in range(4)])
    big["loss_indic"] = -1.0
    text = message(save(tmp_path, big))
    assert text.count("found the negative value") == 5
    assert text.endswith("and 15 more")


def test_sums_are_said(tmp_path: Path) -> None:
    text = message(save(tmp_path, edited(1, "ratio_indic", 0.5)))
    assert "line 3: the ratios sum to 0.75" in text
    assert "divide the ratios of each row by their sum" in text


def test_percent_ratios(tmp_path: Path) -> None:
    frame = sound()
    frame[["ratio_romance", "ratio_indic"]] *= 100
    assert "shares, not percent: divide them by 100" in message(save(tmp_path, frame))


@pytest.mark.parametrize("factor", [1 + 9e-4, 1 - 9e-4])
def test_sums_within_the_tolerance_are_renormalised_and_said(tmp_path: Path, factor: float) -> None:
    frame = sound()
    frame[["ratio_romance", "ratio_indic"]] *= factor
    with pytest.warns(InputWarning, match=r"line 2 and 4 more: the ratios sum to .* divided"):
        table = read_runs(save(tmp_path, frame))
    np.testing.assert_allclose(table.ratios.sum(axis=1), 1, rtol=0, atol=1e-15)
    np.testing.assert_allclose(table.ratios[:, 0], sound()["ratio_romance"], rtol=1e-12)


def test_sums_beyond_the_tolerance_are_refused(tmp_path: Path) -> None:
    frame = sound()
    frame["ratio_romance"] += 1.1e-3
    assert "sum to 1.0011" in message(save(tmp_path, frame))


def test_a_loss_without_ratio_and_the_other_way_round(tmp_path: Path) -> None:
    text = message(save(tmp_path, sound().rename(columns={"loss_indic": "loss_indik"})))
    assert "loss_indik has no ratio_indik (did you mean loss_indic?)" in text
    unmeasured = save(tmp_path, sound().drop(columns="loss_indic"))
    text = message(unmeasured)
    assert "ratio_indic has no loss_indic" in text
    assert "pass allow_unmeasured=True" in text
    table = read_runs(unmeasured, allow_unmeasured=True)
    assert (table.families, table.targets) == (("romance", "indic"), ("romance",))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("params", "parms", "no column params (did you mean parms?)"),
        ("params", "total_params", "no column params (did you mean total_params?)"),
        ("run", "Run", "no column run (did you mean Run?)"),
        ("tokens", "zzz", "no column tokens; expected"),
        ("loss_indic", "los_indic", "has no loss_indic (did you mean los_indic?)"),
    ],
)
def test_missing_columns(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert said in message(save(tmp_path, sound().rename(columns={old: new})))


def test_bytes_per_token_for_all_families_or_none(tmp_path: Path) -> None:
    frame = sound().assign(bytes_per_token_romance=4.0)
    assert "no column bytes_per_token_indic" in message(save(tmp_path, frame))


def test_steps_warn_and_last_step_keeps_the_last(tmp_path: Path) -> None:
    early = sound().assign(step=100, loss_romance=9.0)
    late = sound().iloc[:3].assign(step=2000)
    path = save(tmp_path, pd.concat([early.iloc[:2], late, early.iloc[2:]]))
    with pytest.warns(InputWarning, match=r"several steps of 3 runs .*last_step=True"):
        both = read_runs(path)
    assert both.run == ("r0@100", "r1@100", "r0@2000", "r1@2000", "r2@2000", "r2@100", "r3", "r4")
    last = read_runs(path, last_step=True)
    assert last.run == ("r0", "r1", "r2", "r3", "r4")
    np.testing.assert_array_equal(last.losses[:3, 0], sound()["loss_romance"][:3])
    np.testing.assert_array_equal(last.losses[3:, 0], [9.0, 9.0])


def test_the_same_step_twice_is_a_duplicate(tmp_path: Path) -> None:
    frame = pd.concat([sound(), sound().iloc[:1]]).assign(step=5)
    path = save(tmp_path, frame)
    assert "'r0' again, first at" in message(path, last_step=True)
    assert "line 7, column run: 'r0@5' again" in message(path)


def test_last_step_needs_steps(tmp_path: Path) -> None:
    assert "no column step" in message(save(tmp_path, sound()), last_step=True)


def test_perplexities_are_suspected_all_of_them(tmp_path: Path) -> None:
    with pytest.warns(InputWarning, match=r"line 4, column loss_indic: .* 35 .* in 1 of 5 rows"):
        read_runs(save(tmp_path, edited(2, "loss_indic", 35.0)))
    frame = sound()
    for k in range(7):
        frame[f"ratio_f{k}"], frame[f"loss_f{k}"] = 0.0, 40.0 if k < 6 else 4.0
    frame.loc[1:, "loss_romance"] = 57.5
    frame.loc[0, "loss_f0"] = frame.loc[0, "loss_f1"] = 3.0
    with pytest.warns(InputWarning) as seen:
        read_runs(save(tmp_path, frame))
    (said,) = (str(each.message) for each in seen)
    assert "line 2, column loss_f2: a loss of 40 nats" in said
    assert "in 5 of 5 rows" in said
    assert "(columns loss_romance, loss_f0, loss_f1, loss_f2, loss_f3 and 2 more)" in said


@pytest.mark.parametrize(("name", "value"), [("params", 1e30), ("tokens", 1e19)])
def test_sizes_beyond_any_model_are_refused(tmp_path: Path, name: str, value: float) -> None:
    said = message(save(tmp_path, edited(2, name, value)))
    assert f"line 4, column {name}: found {value:g}" in said
    frame = sound().drop(columns=name)
    assert f"found {value:g}" in message(save(tmp_path, frame), **{name: value})


def test_counts_are_written_and_said_as_counts(tmp_path: Path) -> None:
    table = read_runs(save(tmp_path, sound()))
    write_runs(table, tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text().splitlines()[1].startswith("r0,85000000,4000000000,")
    assert str(table) == "5 runs, 2 families (romance, indic), N 85M to 397M, D 4B to 8B"
    one = RunTable.of(np.array([49_184.5]), np.array([1e6]), np.ones((1, 1)), np.ones((1, 1)), "a")
    assert str(one) == "1 run, 1 family (a), N 49.2k, D 1M"
    assert one.to_frame()["params"].tolist() == [49_184.5]


def test_duplicate_columns_are_not_renamed_in_silence(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(sound().to_csv(index=False).replace("ratio_indic", "ratio_romance"))
    assert "column ratio_romance occurs more than once (columns 4, 5)" in message(path)


def test_rows_of_unequal_length(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(sound().to_csv(index=False).replace("\nr3,", "\nr3,1,"))
    assert "line 5: 8 cells; expected 7 cells" in message(path)


def csv_text() -> str:
    return sound().to_csv(index=False)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b" \n\n", "is empty"),
        (csv_text().split("\n")[0].encode(), "has a header but no rows"),
        (csv_text().replace(",", ";").encode(), "semicolon-separated"),
        (csv_text().replace(",", "\t").encode(), "tab-separated"),
        (csv_text().split("\n", 1)[1].encode(), "numbers where the column names should be"),
        (csv_text().replace("r1", "r\xe9").encode("latin1"), "line 3: byte 0xe9 at offset 1"),
        (csv_text().encode("utf-16"), "binary (UTF-16?): zero byte at offset"),
        (csv_text().replace("r1", "\0").encode(), "binary: zero byte at offset"),
        (csv_text().replace("r1", '"r1').encode(), "this is not CSV"),
        (b'[{"run": 1}]', "looks like JSON"),
        (b"<!DOCTYPE html>\n", "looks like a web page or XML"),
        (b"<html><body>a;b;c</body></html>\n<p>x</p>\n", "looks like a web page or XML"),
        (b"# made by me\n" + csv_text().encode(), "begins with a comment ('# made by me')"),
        (b"# by me, today\n" + csv_text().encode(), "begins with a comment ('# by me, today')"),
        (b"#" + csv_text().encode(), "no column run (did you mean #run?)"),
        ("\u2003\n".encode(), "is empty"),
        (b"run\nr1,2\n", "line 2: 2 cells; expected 1 cell in every row"),
        (b"\x1f\x8b\x08\x00junk", "packed (gzip)"),
        (b"PK\x03\x04junk", "packed (zip)"),
        (b"PAR1" + bytes(40) + b"PAR1", "damaged or not readable"),
        (pickle.dumps([1, 2, 3]), "pickled file"),
    ],
)
def test_files_that_are_no_tables(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "runs.csv"
    path.write_bytes(content)
    assert said in message(path)


def test_the_offset_counts_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    data = b"\xef\xbb\xbf" + csv_text().replace("r1", "r\xe9").encode("latin1")
    path.write_bytes(data)
    assert f"at offset {data.index(0xE9)} " in message(path)
    path.write_bytes(b"\xef\xbb\xbf" + csv_text().encode())
    assert read_runs(path).run[0] == "r0"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("runs.xlsx", "spreadsheet"),
        ("runs.pkl", "can run code"),
        ("runs.npz", "can run code"),
        ("runs.parquet", "expected a Parquet file"),
        ("absent.csv", "cannot read"),
    ],
)
def test_files_refused_by_name(tmp_path: Path, name: str, said: str) -> None:
    path = tmp_path / name
    if not name.startswith("absent"):
        path.write_text("anything")
    assert said in message(path)


def test_folders_and_missing_paths(tmp_path: Path) -> None:
    assert "is a folder" in message(tmp_path)
    with pytest.raises(InputError, match="at least one file"):
        read_runs()
    with pytest.raises(InputError, match="cannot read"):
        read_runs("with\0zero.csv")


def test_total_parameters_become_non_embedding(tmp_path: Path) -> None:
    frame = sound().rename(columns={"params": "total_params"})
    path = save(tmp_path, frame.assign(hidden=[512, 512, 512, 1024, 1024]))
    shape = ModelShape(vocabulary=50_000, width="hidden")
    table = read_runs(path, params_column="total_params", shape=shape)
    embedding = np.array([512, 512, 512, 1024, 1024]) * 50_000
    np.testing.assert_array_equal(table.params, frame["total_params"] - embedding)
    assert table.extra is not None
    np.testing.assert_array_equal(table.extra["total_params"], frame["total_params"])
    untied = ModelShape(vocabulary=50_000, width="hidden", tied=False)
    table = read_runs(path, params_column="total_params", shape=untied)
    np.testing.assert_array_equal(table.params, frame["total_params"] - 2 * embedding)


def test_one_width_for_several_sizes_is_said(tmp_path: Path) -> None:
    with pytest.warns(InputWarning, match="2 sizes were given one hidden width"):
        table = read_runs(save(tmp_path, sound()), shape=ModelShape(50_000, 512))
    np.testing.assert_array_equal(table.params, sound()["params"] - 25.6e6)


def test_embeddings_larger_than_the_model(tmp_path: Path) -> None:
    text = message(save(tmp_path, sound()), shape=ModelShape(250_000, 4096))
    assert "line 2, column params: found 8.5e+07" in text
    assert "non-embedding already" in text


def test_params_column_keeps_the_other_one_aside(tmp_path: Path) -> None:
    path = save(tmp_path, sound().assign(params_no_embed=[80e6, 80e6, 80e6, 300e6, 300e6]))
    table = read_runs(path, params_column="params_no_embed")
    assert table.params.tolist() == [80e6, 80e6, 80e6, 300e6, 300e6]
    assert table.extra is not None
    assert table.extra["params_file"].tolist() == sound()["params"].tolist()
    assert "did you mean params_no_embed?" in message(path, params_column="params_no_embd")


def test_params_given_and_in_the_file(tmp_path: Path) -> None:
    assert "leave one out" in message(save(tmp_path, sound()), params=1e6)
    path = save(tmp_path, sound().drop(columns=["params", "tokens"]))
    table = read_runs(path, params="85M", tokens="4B")
    assert table.params.tolist() == [85e6] * 5
    assert table.tokens.tolist() == [4e9] * 5


def test_unique_tokens(tmp_path: Path) -> None:
    path = save(tmp_path, sound())
    table = read_runs(path, unique_tokens={"indic": 4e8, "romance": 3e9})
    assert table.unique_tokens is not None
    assert table.unique_tokens.tolist() == [3e9, 4e8]
    assert "missing: romance; unknown: slavic" in message(
        path, unique_tokens={"indic": 1e9, "slavic": 1e9}
    )


def test_warnings_point_at_the_caller(tmp_path: Path) -> None:
    with pytest.warns(InputWarning) as caught:
        read_runs(save(tmp_path, sound()), shape=ModelShape(1000, 64))
    # Under the tests' checking decorators the frames between are theirs; none is read.py itself.
    assert not caught[0].filename.endswith("read.py")


def test_concat(tmp_path: Path) -> None:
    one = read_runs(save(tmp_path, sound().assign(seed=1, note="a")))
    swapped = sound().iloc[:, [0, 1, 2, 4, 3, 6, 5]].assign(seed=2)
    swapped["run"] += "b"
    two = read_runs(save(tmp_path, swapped))
    assert two.families == ("indic", "romance")
    both = concat_runs(one, two)
    assert both.families == ("romance", "indic")
    np.testing.assert_array_equal(both.ratios[:5], both.ratios[5:])
    np.testing.assert_array_equal(both.losses[:5], both.losses[5:])
    assert both.seed is not None
    assert both.seed.tolist() == [1] * 5 + [2] * 5
    with pytest.raises(InputError, match="'r0' is in two tables"):
        concat_runs(one, one)
    with pytest.raises(InputError, match="same families"):
        concat_runs(one, RunTable.of(one.params, one.tokens, one.ratios, one.losses, ["a", "b"]))


def test_fewer_rows_than_parameters(tmp_path: Path) -> None:
    table = read_runs(save(tmp_path, sound()))
    require_rows(table, 5, "family")
    with pytest.raises(InputError, match=r"at least 6 runs, .*'family' has 6 .* has 5"):
        require_rows(table, 6, "family")


def test_writing_replaces_whole_or_not_at_all(tmp_path: Path) -> None:
    table = read_runs(save(tmp_path, sound()))
    with pytest.raises(InputError, match=re.escape(".csv or .parquet")):
        write_runs(table, tmp_path / "runs.xlsx")
    for name in ("out.csv", "out.parquet"):
        with pytest.raises(InputError, match="cannot write"):
            write_runs(table, tmp_path / "absent" / name)
    assert os.listdir(tmp_path) == ["runs.csv"]


def test_ten_thousand_runs_in_about_a_second(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    count, families = 10_000, [f"f{k}" for k in range(8)]
    ratios = rng.dirichlet(np.ones(8), count)
    losses = rng.uniform(1, 5, (count, 8))
    table = RunTable.of(np.full(count, 1e6), np.full(count, 1e9), ratios, losses, families)
    path = tmp_path / "runs.csv"
    write_runs(table, path)
    start = time.process_time()
    read = read_runs(path)
    # Processor time, and twice the aim: other work on the machine must not fail the test.
    assert time.process_time() - start < 2.0
    np.testing.assert_array_equal(read.losses, losses)


def test_ratios_that_all_sum_alike_are_one_number(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    frame = sound()
    names = [name for name in frame if name.startswith("ratio_")]
    frame[names] = np.full((len(frame), len(names)), 1.0005 / len(names))
    frame.to_csv(path, index=False)
    with pytest.warns(InputWarning, match=r"the ratios sum to 1\.0005; they were divided"):
        read_runs(path)


def test_family_names_that_no_command_line_can_give_are_said(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    frame = sound()
    family = next(name.removeprefix("ratio_") for name in frame if name.startswith("ratio_"))
    frame = frame.rename(columns={f"{k}_{family}": f"{k}_x,y=z" for k in ("ratio", "loss")})
    frame.to_csv(path, index=False)
    with pytest.warns(InputWarning, match=r"comma or an equals sign .*\('x,y=z'\)"):
        read_runs(path)
