"""Files that are no saved context of this model are refused in words, whatever is in them."""

from __future__ import annotations

import hashlib
import json
import os
import random
import resource
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from apportion.errors import InputError, command_line
from apportion.prefill import Context, Reader, saved
from apportion.prefill.container import FORMAT, looks_saved
from finetune.tiny import VOCABULARY, make
from prefill.saving import ASKED, assert_equal, read, reader_of, refused


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "book.safetensors"


def test_nothing_read_and_torn_memory_are_not_saved(path):
    reader = reader_of()
    with pytest.raises(InputError, match="something read"):
        Context(reader, reader.engine(()), []).save(path)
    context = read(reader)
    context.engine.torn = True
    with pytest.raises(InputError, match="memory that is whole"):
        context.save(path)
    assert not path.exists()


def test_files_that_are_none(path, tmp_path):
    reader = reader_of()
    refused(reader, path, "there is no")
    refused(reader, tmp_path, "a folder")
    os.mkfifo(tmp_path / "pipe")
    refused(reader, tmp_path / "pipe", "a device, pipe or socket")
    refused(reader, tmp_path / ("x" * 300), "cannot read")
    for data in (b"", b"text", b"\xff" * 100, bytes(100)):
        path.write_bytes(data)
        refused(reader, path, "a damaged one: it is no safetensors file")
    save_file({"weight": torch.zeros(3)}, path)
    refused(reader, path, "that `save` has written, got a safetensors file of something else")


def test_saving_where_nothing_can_be_written(tmp_path):
    context = read(reader_of())
    for target in (tmp_path / "missing" / "book.safetensors", tmp_path):
        with pytest.raises(InputError, match="cannot write"):
            context.save(target)
    assert not list(tmp_path.iterdir())


def test_an_error_while_writing_leaves_the_old_file(path, monkeypatch):
    import safetensors.torch

    context = read(reader_of())
    path.write_text("old")

    def fail(*args, **kwargs):
        raise safetensors.SafetensorError("no space left")

    monkeypatch.setattr(safetensors.torch, "save_file", fail)
    with pytest.raises(InputError, match=r"cannot write .*no space left"):
        context.save(path)
    assert path.read_text() == "old"
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_another_model_revision_or_dtype_is_named(path):
    model = make("llama")
    context = read(reader_of(model=model))
    context.save(path)
    refused(reader_of("qwen3"), path, "a Qwen3ForCausalLM has read, got one of a LlamaForCausalLM")
    wider = make("llama", intermediate_size=96)
    refused(reader_of(model=wider), path, "intermediate_size is 80 there and 96 here")
    refused(reader_of(model=make("llama", torch.bfloat16)), path, "in bfloat16", "in float32",
            'dtype="float32"')  # fmt: skip
    with command_line({}):
        refused(reader_of(model=make("llama", torch.bfloat16)), path, "--dtype float32")
    refused(reader_of(model=make("llama", seed=1)), path, "another revision")
    # One number in one weight is enough.
    with torch.no_grad():
        model.model.layers[2].mlp.down_proj.weight[0, 0] += 1e-3
    refused(reader_of(model=model), path, "another revision")


def test_where_a_model_lies_and_how_it_runs_does_not_matter(path, tmp_path):
    model = make("llama")
    reader = reader_of(model=model)
    context = read(reader)
    context.save(path)
    from transformers import AutoModelForCausalLM

    model.save_pretrained(tmp_path / "elsewhere")
    again = AutoModelForCausalLM.from_pretrained(
        tmp_path / "elsewhere", attn_implementation="eager", dtype=torch.float32
    )
    again.config.use_cache = False
    again.config.transformers_version = "6.0"
    assert_equal(reader_of(model=again).load(path), context)


def test_options_that_one_version_of_transformers_lacks_do_not_matter(path):
    context = read(reader_of(model=make("llama")))
    context.save(path)

    def newer(header):
        header["model"]["config"]["invented_later"] = True
        del header["model"]["config"]["attention_bias"]

    forge(path, newer)
    assert_equal(reader_of(model=make("llama")).load(path), context)


# Damage


def parts(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    with safe_open(str(path), framework="pt") as file:
        header = json.loads(file.metadata()[FORMAT].partition(" ")[2])
        # The open file has keys, and can't be iterated over.
        return header, {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118


def numbers_sum(tensors: dict[str, Tensor]) -> str:
    from apportion.prefill.container import _sum

    return _sum(tensors)


def forge(
    path: Path,
    header: Callable[[dict[str, Any]], Any] | None = None,
    tensors: Callable[[dict[str, Tensor]], Any] | None = None,
) -> None:
    """Change a file and make its sums right again, as somebody with bad intentions would."""
    plain, held = parts(path)
    if tensors is not None:
        tensors(held)
        plain["data"] = numbers_sum(held)
    if header is not None:
        header(plain)
    text = json.dumps(plain)
    save_file(held, path, metadata={FORMAT: f"{hashlib.sha256(text.encode()).hexdigest()} {text}"})


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> tuple[Reader, bytes]:
    reader = reader_of("gemma3_text", scorer="h2o")
    path = tmp_path_factory.mktemp("whole") / "book.safetensors"
    read(reader, ASKED).save(path)
    return reader, path.read_bytes()


def test_two_hundred_damaged_files_are_refused(whole, path):
    reader, data = whole
    draw = random.Random(4)
    header = int.from_bytes(data[:8], "little") + 8
    for trial in range(200):
        damaged = bytearray(data)
        where = [range(8), range(8, header), range(header, len(data))][trial % 3]
        kind = trial // 3 % 4
        if kind == 0:
            damaged[draw.choice(where)] ^= 1 << draw.randrange(8)
        elif kind == 1:
            del damaged[draw.choice(where) :]
        elif kind == 2:
            at = draw.choice(where)
            damaged[at : at + draw.randrange(1, 50)] = draw.randbytes(draw.randrange(50))
        else:
            damaged += draw.randbytes(draw.randrange(1, 50))
        if bytes(damaged) == data:
            continue
        path.write_bytes(damaged)
        refused(reader, path)


HEADERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no model": lambda h: h.pop("model"),
    "a model of nothing": lambda h: h.update(model=None),
    "a config of nothing": lambda h: h["model"].update(config=None),
    "no settings": lambda h: h.pop("settings"),
    "settings as a list": lambda h: h.update(settings=[1]),
    "memory of nothing": lambda h: h["settings"].update(memory=0),
    "memory below what is held": lambda h: h["settings"].update(memory=1),
    "memory in words": lambda h: h["settings"].update(memory="12"),
    "memory beyond numbers": lambda h: h["settings"].update(memory=10**30),
    "memory beyond positions": lambda h: h["settings"].update(memory=10**9),
    "half a chunk": lambda h: h["settings"].update(chunk=8.5),
    "a negative sink": lambda h: h["settings"].update(sinks=-1),
    "true sinks": lambda h: h["settings"].update(sinks=True),
    "a seed in words": lambda h: h["settings"].update(seed="x"),
    "a seed beyond numbers": lambda h: h["settings"].update(seed=10**30),
    "unknown chunks": lambda h: h["settings"].update(chunks="none"),
    "unknown positions": lambda h: h["settings"].update(positions=3),
    "unknown eviction": lambda h: h["settings"].update(evict=None),
    "settings that are missing": lambda h: h["settings"].pop("evict"),
    "settings that are unknown": lambda h: h["settings"].update(colour="red"),
    "a budget in words": lambda h: h["settings"].update(budget="much"),
    "a budget of nothing": lambda h: h["settings"].update(budget=0),
    "an unknown store": lambda h: h["settings"].update(store="4bit"),
    "another store": lambda h: h["settings"].update(store="8bit"),
    "nothing given": lambda h: h.pop("given"),
    "given in words": lambda h: h["given"].update(memory="x"),
    "a prediction in words": lambda h: h.update(predicted_bytes="x"),
    "no schedule": lambda h: h["settings"].update(schedule=None),
    "an unknown schedule": lambda h: h["settings"].update(schedule={"name": "x"}),
    "an unknown scorer": lambda h: h.update(scorer={"name": "x"}),
    "no scorer": lambda h: h.update(scorer=None),
    "another scorer, whose sums are not there": lambda h: h.update(scorer={"name": "mean"}),
    "parameters that are none": lambda h: h.update(scorer={"name": "h2o", "x": 1}),
    "a window of nothing": lambda h: h.update(scorer={"name": "roco", "window": 0}),
    "a class of nowhere": lambda h: h.update(scorer={"name": "h2o", "class": "os.system"}),
    "a scorer around itself": lambda h: h.update(scorer={"name": "value-aware", "inner": 3}),
    "no questions": lambda h: h.pop("questions"),
    "fewer questions": lambda h: h.update(questions=1),
    "more questions": lambda h: h.update(questions=3),
    "questions without end": lambda h: h.update(questions=10**18),
    "questions in words": lambda h: h.update(questions="two"),
    "no trace": lambda h: h.pop("trace"),
    "an empty trace": lambda h: h.update(trace={k: [] for k in h["trace"]}),
    "a trace with holes": lambda h: h["trace"]["tokens"].pop(),
    "a trace that starts later": lambda h: h["trace"]["start"].__setitem__(0, 3),
    "a trace of more text": lambda h: h["trace"]["tokens"].__setitem__(-1, 10**9),
    "a trace of nothing": lambda h: h["trace"]["tokens"].__setitem__(0, 0),
    "a trace of fewer layers": lambda h: h["trace"]["memory"][-1].pop(),
    "a trace of more memory": lambda h: h["trace"]["memory"][-1].__setitem__(0, 99),
    "a trace without shares": lambda h: h["trace"]["retained"][1].clear(),
    "shares that are none": lambda h: h["trace"]["retained"][1].__setitem__(0, "x"),
    "a time before time": lambda h: h["trace"]["seconds"].__setitem__(0, -1.0),
    "bytes in part": lambda h: h["trace"]["peak_bytes"].__setitem__(0, 1.5),
    "a later version": lambda h: h.update(version=2),
    "no version": lambda h: h.pop("version"),
    "sums of something else": lambda h: h.update(data="0" * 64),
    "no sums": lambda h: h.pop("data"),
}


@pytest.mark.parametrize("name", HEADERS)
def test_forged_headers_are_refused(whole, path, name):
    reader, data = whole
    path.write_bytes(data)
    forge(path, header=HEADERS[name])
    refused(reader, path)


TENSORS: dict[str, Callable[[dict[str, Tensor]], Any]] = {
    "fewer": lambda t: t.pop("layer.1.order"),
    "more": lambda t: t.update(extra=torch.zeros(2)),
    "longer ids": lambda t: t.update(ids=t["ids"].repeat(1, 2)),
    "ids of other numbers": lambda t: t.update(ids=t["ids"].long()),
    "ids on one line": lambda t: t.update(ids=t["ids"].flatten()),
    "ids of no sample": lambda t: t.update(ids=t["ids"][:0]),
    "ids of no text": lambda t: t.update(ids=t["ids"][:, :0]),
    "ids beyond the vocabulary": lambda t: t["ids"].__setitem__((0, 0), VOCABULARY),
    "negative ids": lambda t: t["ids"].__setitem__((0, 0), -1),
    "questions beyond the vocabulary": lambda t: t["question.0"].__setitem__(0, VOCABULARY),
    "an empty question": lambda t: t.update({"question.0": t["question.0"][:0]}),
    "a question of two dimensions": lambda t: t.update({"question.0": t["question.0"][None]}),
    "half a question": lambda t: t.update({"question.0": t["question.0"].half()}),
    "more entries": lambda t: t.update({k: x.repeat_interleave(2, 2) for k, x in t.items()
                                        if k[:8] == "layer.2." and x.ndim > 2}),
    "keys of more entries": lambda t: t.update({"layer.2.keys":
                                                t["layer.2.keys"].repeat(1, 1, 2, 1)}),
    "more heads": lambda t: t.update({"layer.2.keys": t["layer.2.keys"].repeat(1, 2, 1, 1)}),
    "wider values": lambda t: t.update({"layer.0.values": t["layer.0.values"].repeat(1, 1, 1, 2)}),
    "half the precision": lambda t: t.update({"layer.0.keys": t["layer.0.keys"].half()}),
    "places beyond the text": lambda t: t["layer.2.order"].__setitem__((0, 0, 0), 29),
    "places before the text": lambda t: t["layer.2.order"].__setitem__((0, 0, 0), -1),
    "sums of other rules": lambda t: t.update({"layer.2.carried.x":
                                               t["layer.2.carried.received"].clone()}),
    "padding of more entries": lambda t: t.update({"layer.2.real":
                                                   torch.ones(2, 99, dtype=torch.bool)}),
    "padding as numbers": lambda t: t.update(real=t["real"].int()),
    "fewer logits": lambda t: t.update(logits=t["logits"][:, :-1].contiguous()),
    "no state": lambda t: t.update(generator=torch.zeros_like(t["generator"])),
    "a state of less": lambda t: t.update(generator=t["generator"][:-8].contiguous()),
}  # fmt: skip


@pytest.mark.parametrize("name", TENSORS)
def test_forged_tensors_are_refused(whole, path, name):
    reader, data = whole
    path.write_bytes(data)
    forge(path, tensors=TENSORS[name])
    refused(reader, path, "a damaged one")


def test_a_forged_shape_asks_for_no_memory(whole, path):
    """Terabytes in the header of a small file."""
    reader, data = whole
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for shape, end in (([2, 10**12], None), ([2, 10**12], 8 * 10**12)):
        forged = json.loads(json.dumps(header))
        forged["ids"]["shape"] = shape
        if end is not None:
            forged["ids"]["data_offsets"][1] = forged["ids"]["data_offsets"][0] + end
        text = json.dumps(forged).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + size :])
        refused(reader, path)
    for length in (2**63, 2**40, 10**8):
        path.write_bytes(length.to_bytes(8, "little") + data[8:])
        refused(reader, path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


def test_a_file_is_replaced_as_a_whole_and_readable_as_any(path):
    reader = reader_of()
    context = read(reader)
    path.write_text("old")
    context.save(path)
    assert reader.load(path).tokens == 29
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask


def test_what_a_file_says_of_itself(path, tmp_path):
    read(reader_of(model=make("llama", torch.bfloat16), memory=20)).save(path)
    told = saved.read_with(path)
    assert (told["dtype"], told["tokens"], told["settings"]["memory"]) == ("bfloat16", 29, 20)
    (tmp_path / "moved").write_bytes(path.read_bytes())
    (tmp_path / "text").write_text("some text")
    names = ("moved", "text", "nowhere", "nowhere.safetensors")
    assert [looks_saved(tmp_path / name) for name in names] == [True, False, False, True]
