"""Exports, each parsed back the way its trainer reads it."""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Callable

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from apportion.errors import InputError
from apportion.mixture.export import TRAINERS, export, plan, round_shares
from apportion.mixture.export.configs import _text
from apportion.mixture.optimize import optimize
from mixture.synthetic import family_fit

RATIOS = {"romance": 0.5, "slavic": 0.3, "indic": 0.2}
PATHS = {"romance": "/data/ro", "slavic": "/data/sl", "indic": "/data/in"}
SEEDLESS = ("megatron", "nemo", "axolotl")
# Everything that any trainer needs, so that a test may pick any of them.
SIZES = {
    "tokens": 1e9,
    "sequence_length": 2048,
    "batch_tokens": 2**20,
    "supply": {"romance": 2e9, "slavic": 2e9, "indic": 1e9},
    "tokens_per_example": {"romance": 100.0, "slavic": 200.0, "indic": 50.0},
}


def test_every_trainer_gets_the_shares_it_reads():
    for to in TRAINERS:
        shares = READERS[to](export(RATIOS, to, PATHS, **SIZES))
        np.testing.assert_allclose(shares, list(RATIOS.values()), atol=1e-6)


# --- how each trainer reads its file ---------------------------------------------------------


def read_megatron(text: str) -> np.ndarray:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data-path", nargs="*", default=None)
    blend = parser.parse_args(["--data-path", *text.split()]).data_path
    return zipped(blend)


def zipped(blend) -> np.ndarray:
    """An even list is weights and prefixes in turn; weights are then normalised."""
    assert len(blend) % 2 == 0
    weights = np.array([float(weight) for weight in blend[0::2]])
    assert [str(prefix).strip() for prefix in blend[1::2]] == list(PATHS.values())
    return weights / weights.sum()


def read_nemo(text: str) -> np.ndarray:
    return zipped(yaml.safe_load(text)["paths"])


def read_nanotron(text: str) -> np.ndarray:
    (stage,) = yaml.safe_load(text)["data_stages"]
    assert stage["start_training_step"] == 1
    data = stage["data"]["dataset"]
    assert data["dataset_folder"] == list(PATHS.values())
    weights = np.array(data["dataset_weights"])
    return weights / weights.sum()


def read_mosaicml(text: str) -> np.ndarray:
    data = yaml.safe_load(text)["train_loader"]["dataset"]
    assert list(data["streams"]) == list(RATIOS)
    assert [stream["local"] for stream in data["streams"].values()] == list(PATHS.values())
    # No stream may mix proportion with repeat or choose.
    assert all(set(stream) == {"local", "proportion"} for stream in data["streams"].values())
    assert data["epoch_size"] == int(SIZES["tokens"]) // SIZES["sequence_length"]
    proportions = np.array([stream["proportion"] for stream in data["streams"].values()])
    return proportions / proportions.sum()


def read_axolotl(text: str) -> np.ndarray:
    config = yaml.safe_load(text)
    assert config["num_epochs"] == 1
    weights = np.array([entry["weight"] for entry in config["datasets"]])
    assert (weights > 0).all()
    assert (weights <= 1).all()
    assert [entry["path"] for entry in config["datasets"]] == list(PATHS.values())
    kept = weights * np.array(list(SIZES["supply"].values()))
    assert kept.sum() == pytest.approx(SIZES["tokens"], rel=1e-6)
    return kept / kept.sum()


def calls(text: str, name: str) -> list[dict[str, object]]:
    """Keyword arguments of every call of a function in the text, where they are literals."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name:
            values = {}
            for keyword in node.keywords:
                try:
                    values[keyword.arg] = ast.literal_eval(keyword.value)
                except ValueError:
                    continue
            found.append(values)
    return found


def read_olmo_core(text: str) -> np.ndarray:
    sources = calls(text, "SourceMixtureConfig")
    (config,) = calls(text, "SourceMixtureDatasetConfig")
    assert config["requested_tokens"] == 10**9
    assert config["global_batch_size"] == 2**20
    ratios = np.array([source["target_ratio"] for source in sources])
    # What its `validate` and `build` ask for.
    assert np.allclose(ratios.sum(), 1.0)
    for source, supply in zip(sources, SIZES["supply"].values(), strict=True):
        assert source["max_repetition_ratio"] >= 1
        need = int(config["requested_tokens"] * source["target_ratio"])
        assert int(supply * source["max_repetition_ratio"]) >= need
    assert [source["source_name"] for source in sources] == list(RATIOS)
    assert [source["paths"] for source in sources] == [[path] for path in PATHS.values()]
    return ratios


def read_litgpt(text: str) -> np.ndarray:
    (combined,) = calls(text, "CombinedStreamingDataset")
    (loader,) = calls(text, "TokensLoader")
    assert loader["block_size"] == SIZES["sequence_length"] + 1
    # litdata raises when weights come with iterate_over_all, which is its default.
    assert combined["iterate_over_all"] is False
    assert [s["input_dir"] for s in calls(text, "StreamingDataset")] == list(PATHS.values())
    weights = np.array(combined["weights"])
    return weights / weights.sum()


def read_huggingface(text: str) -> np.ndarray:
    (call,) = calls(text, "interleave_datasets")
    probabilities = np.array(call["probabilities"])
    assert probabilities.sum() == pytest.approx(1.0, abs=1e-12)
    tokens = probabilities * np.array(list(SIZES["tokens_per_example"].values()))
    return tokens / tokens.sum()


READERS: dict[str, Callable[[str], np.ndarray]] = {
    "megatron": read_megatron,
    "nemo": read_nemo,
    "nanotron": read_nanotron,
    "mosaicml": read_mosaicml,
    "axolotl": read_axolotl,
    "olmo-core": read_olmo_core,
    "litgpt": read_litgpt,
    "huggingface": read_huggingface,
}


# --- Hugging Face datasets, run for real -----------------------------------------------------


def interleaved(monkeypatch, text, examples):
    """The data set that the exported script builds, on documents of different lengths."""
    datasets = pytest.importorskip("datasets")
    rng = np.random.default_rng(0)
    sources = {}
    for name, mean in SIZES["tokens_per_example"].items():
        lengths = rng.poisson(mean, examples[name])
        column = {"source": [name] * examples[name], "length": lengths}
        column["row"] = list(range(examples[name]))
        sources[PATHS[name]] = datasets.Dataset.from_dict(column)
    monkeypatch.setattr(datasets, "load_dataset", lambda path, split: sources[path])
    scope: dict[str, object] = {}
    exec(compile(text, "export", "exec"), scope)
    return scope["mixed"].to_pandas()


def test_interleaved_tokens_have_the_shares(monkeypatch):
    tokens = 1e6
    text = export(
        RATIOS, "huggingface", PATHS, tokens=tokens, tokens_per_example=SIZES["tokens_per_example"]
    )
    mixed = interleaved(monkeypatch, text, {"romance": 9000, "slavic": 9000, "indic": 9000})
    by_source = mixed.groupby("source")["length"].sum()
    total = by_source.sum()
    assert total == pytest.approx(tokens, rel=0.02)
    # Counts are multinomial; four standard deviations of the share of the tokens.
    for name, share in RATIOS.items():
        count = (mixed["source"] == name).sum()
        assert by_source[name] / total == pytest.approx(share, abs=4 * share / np.sqrt(count))
    documents = (mixed["source"] == "indic").mean()
    assert abs(documents - RATIOS["indic"]) > 0.1, "shares of documents must differ here"


def test_repeated_sources_stay_within_their_epochs(monkeypatch):
    examples = {"romance": 6000, "slavic": 2000, "indic": 1000}
    supply = {n: examples[n] * SIZES["tokens_per_example"][n] for n in RATIOS}
    text = export(
        RATIOS,
        "huggingface",
        PATHS,
        tokens=4e5,
        supply=supply,
        max_epochs=2,
        tokens_per_example=SIZES["tokens_per_example"],
    )
    assert ".repeat(2)" in text
    mixed = interleaved(monkeypatch, text, examples)
    assert mixed["length"].sum() == pytest.approx(4e5, rel=0.05)
    seen = mixed.groupby(["source", "row"]).size()
    assert seen.max() == 2


# --- rounding --------------------------------------------------------------------------------


@given(st.lists(st.floats(1e-4, 1.0), min_size=1, max_size=12))
def test_rounded_shares_sum_exactly_and_stay_close(values):
    shares = np.array(values) / np.sum(values)
    units = round_shares(shares, np.ones(len(shares)))
    assert units.sum() == 1_000_000
    assert np.abs(units / 1e6 - shares).max() <= 1e-6


@given(st.lists(st.floats(0.05, 1.0), min_size=2, max_size=8), st.data())
def test_rounding_never_passes_a_limit(values, data):
    shares = np.array(values) / np.sum(values)
    limits = np.ones(len(shares))
    held = data.draw(st.integers(0, len(shares) - 1))
    limits[held] = shares[held]
    units = round_shares(shares, limits)
    assert units.sum() == 1_000_000
    assert units[held] / 1e6 <= shares[held] * (1 + 1e-12)


def test_a_source_at_its_supply_is_rounded_down_by_a_sample():
    # A third each; a source that may be read exactly once must not start a second epoch.
    ratios = dict.fromkeys(RATIOS, 1 / 3)
    tokens = 3e8
    made = plan(
        ratios,
        PATHS,
        tokens=tokens,
        supply={"romance": 1e8},
        max_epochs=1.0,
        sequence_length=2048,
    )
    drawn = made.shares[0] * tokens
    assert drawn + 2048 <= 1e8
    assert drawn > 1e8 - 2048 - tokens / 1e6
    assert made.units.sum() == 1_000_000
    assert sum(float(weight) for weight in made.weights) == pytest.approx(1.0, abs=1e-12)


def test_an_optimum_brings_its_supply():
    best = optimize(family_fit([0.1, 0.2, 0.3]), 1e9, 1e10, supply={"f2": 5e8}, max_epochs=4)
    paths = {"f0": "a", "f1": "b", "f2": "c"}
    blend = export(best, "megatron", paths, sequence_length=4096).split()
    share = float(blend[4])
    assert share * 1e10 + 4096 <= 4 * 5e8
    assert share == pytest.approx(0.2, abs=2e-6)
    with pytest.raises(InputError, match="axolotl needs the supply of f0"):
        export(best, "axolotl", paths)


def test_written_atomically(tmp_path):
    out = tmp_path / "blend.txt"
    text = export(RATIOS, "megatron", PATHS, out=out)
    assert out.read_text() == text
    with pytest.raises(InputError, match="cannot write"):
        export(RATIOS, "megatron", PATHS, out=tmp_path / "no" / "blend.txt")


def test_names_and_paths_survive_quoting():
    ratios = {'say "hi": x': 0.5, "naïve # y": 0.5}
    paths = {'say "hi": x': "/data/it's", "naïve # y": "s3://bucket/ü"}
    data = yaml.safe_load(export(ratios, "mosaicml", paths, tokens=1e6, sequence_length=512))
    streams = data["train_loader"]["dataset"]["streams"]
    assert list(streams) == list(ratios)
    assert streams["naïve # y"]["remote"] == "s3://bucket/ü"
    olmo = export(ratios, "olmo-core", paths, tokens=1e6, batch_tokens=1024)
    assert [s["paths"] for s in calls(olmo, "SourceMixtureConfig")] == [[p] for p in paths.values()]


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_yaml_holds_every_character(text):
    assert yaml.safe_load(f"- {_text(text)}\n") == [text]


def omegaconf(text: str) -> str:
    """What OmegaConf reads: an odd number of backslashes before `${` makes it literal."""

    def read(found):
        assert len(found[1]) % 2 == 1, "an interpolation"
        return "\\" * (len(found[1]) // 2) + "${"

    return re.sub(r"(\\*)\$\{", read, text)


@pytest.mark.parametrize(
    "path", ["/data/${HOME}", r"/a\${b}${c}", "${x", "$y", r"C:\data", "/d{a}"]
)
def test_nothing_in_a_path_is_taken_for_an_interpolation(path):
    paths = {**PATHS, "slavic": path}
    nemo = yaml.safe_load(export(RATIOS, "nemo", paths))["paths"]
    assert omegaconf(nemo[3]) == path
    streams = yaml.safe_load(export(RATIOS, "mosaicml", paths, **SIZES))
    stream = streams["train_loader"]["dataset"]["streams"]["slavic"]
    assert omegaconf(stream["local"]) == path
    # nanotron and axolotl read plain YAML, where it means nothing.
    plain = yaml.safe_load(export(RATIOS, "nanotron", paths))
    assert plain["data_stages"][0]["data"]["dataset"]["dataset_folder"][1] == path


def test_olmo_core_takes_several_paths_and_allows_the_epochs_it_needs():
    paths = {**PATHS, "romance": ["/data/a.npy", "/data/b.npy"]}
    text = export(
        RATIOS,
        "olmo-core",
        paths,
        tokens=1e9,
        batch_tokens=1024,
        supply={"romance": 2e8, "slavic": 1e10, "indic": 1e10},
    )
    first, second, _ = calls(text, "SourceMixtureConfig")
    assert first["paths"] == ["/data/a.npy", "/data/b.npy"]
    assert first["max_repetition_ratio"] == pytest.approx(2.5, abs=1e-3)
    assert second["max_repetition_ratio"] == 1.0
    with pytest.raises(InputError, match=r"Megatron-LM takes one path per weight; romance has 2"):
        export(RATIOS, "megatron", paths)


# --- refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize("to", list(TRAINERS))
@pytest.mark.parametrize(
    ("ratios", "message"),
    [
        ({**RATIOS, "slavic": 0.0}, "above 0, got slavic=0; .* leave the source out"),
        ({**RATIOS, "slavic": -0.3}, "above 0, got slavic=-0.3"),
        ({**RATIOS, "slavic": float("nan")}, "above 0, got slavic=nan"),
        ({**RATIOS, "slavic": 0.4}, "sum to 1, got a sum of 1.1"),
        ({}, "expected ratios such as"),
        ({"romance": 1 - 1e-8, "slavic": 1e-8}, "at least 1e-06: smaller ones round to 0"),
    ],
)
def test_ratios_that_no_trainer_takes(to, ratios, message):
    with pytest.raises(InputError, match=message):
        export(ratios, to, PATHS, **SIZES)


def test_every_form_with_a_seed_has_the_one_that_was_given():
    for to in TRAINERS:
        if to not in SEEDLESS:
            plain = export(RATIOS, to, PATHS, **SIZES)
            assert export(RATIOS, to, PATHS, **SIZES, seed=0) == plain
            given = export(RATIOS, to, PATHS, **SIZES, seed=76543)
            assert given.count("76543") == 1
            assert given != plain


@pytest.mark.parametrize(
    ("to", "options", "message"),
    [
        ("deepspeed", {}, "trainer out of megatron, nemo, .*; got 'deepspeed'"),
        ("mosaicml", {}, r"MosaicML needs tokens=…, sequence_length=…"),
        ("olmo-core", {}, r"OLMo-core needs tokens=…, batch_tokens=…"),
        ("litgpt", {}, r"litgpt needs sequence_length=…"),
        ("huggingface", {}, r"needs tokens_per_example=…"),
        ("axolotl", {}, r"axolotl needs tokens=…, supply=…"),
        (
            "axolotl",
            {"tokens": 1e10, "supply": SIZES["supply"]},
            r"romance would need 2.5 of its 2B tokens: train on 4B tokens at most",
        ),
        (
            "axolotl",
            {"tokens": 1e9, "supply": {"romance": 1e9}},
            "axolotl needs the supply of slavic",
        ),
        (
            "huggingface",
            {"tokens_per_example": {"romance": 100.0}},
            r"none for slavic, indic: give tokens_per_example=\{\"slavic\": …, …\}",
        ),
        (
            "huggingface",
            {"tokens_per_example": {**SIZES["tokens_per_example"], "indic": 0.0}},
            "positive tokens per example",
        ),
        ("mosaicml", {"seed": -1}, "a seed from 0 up, got -1"),
        *((to, {"seed": 0}, f"settings of {to} have no seed: leave seed out") for to in SEEDLESS),
        ("mosaicml", {"tokens": 100, "sequence_length": 512}, "one sample at least, got 100"),
        ("megatron", {"sequence_length": 0}, "sequence_length of 1 token or more, got 0"),
        ("megatron", {"max_epochs": 2.0}, "max_epochs needs supply=… and tokens=…"),
        (
            "megatron",
            {"max_epochs": 2.0, "tokens": 1e10, "supply": SIZES["supply"]},
            r"romance would be repeated 2.5 times at D = 10B \(supply 2B\), more than max_epochs",
        ),
        ("megatron", {"tokens": "many"}, "number of tokens"),
    ],
)
def test_what_each_trainer_needs(to, options, message):
    with pytest.raises(InputError, match=message):
        export(RATIOS, to, PATHS, **options)


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        ({"romance": "/a", "slavic": "/b"}, r"a path for .* none for indic: give paths="),
        ({**PATHS, "indic": ""}, "at least one path for indic, got ''"),
        ({**PATHS, "indic": []}, r"at least one path for indic, got \[\]"),
        ({**PATHS, "indic": "/data/in.bin"}, "prefix of a .bin and .idx pair.*give '/data/in'"),
        ({**PATHS, "indic": "/my data/in"}, "splits its arguments at spaces"),
        (
            {**PATHS, "indik": "/x"},
            "paths of romance, slavic, indic, the sources with a ratio; got one of indik",
        ),
        ({**PATHS, "indic": "/data/sl"}, "/data/sl is given for slavic and for indic"),
        ({**PATHS, "indic": "/data/sl/"}, "/data/sl/ is given for slavic and for indic"),
        ({**PATHS, "indic": ["/a", "/a"]}, "/a is given for indic and for indic"),
        ({**PATHS, "indic": "/data/\udcff"}, "paths that are UTF-8"),
    ],
)
def test_paths_that_megatron_would_misread(paths, message):
    with pytest.raises(InputError, match=message):
        export(RATIOS, "megatron", paths)
