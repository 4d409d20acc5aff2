"""Run by two processes: gradients under data parallelism beside those of one process.

python distributed.py RANK FOLDER WRAP KEEP
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from apportion import finetune as ft
from finetune.tiny import batch, make


def main(rank: int, folder: str, wrap: str, keep: float) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    model = make("llama", torch.float64)
    samples = batch((24, 24), answers=5)
    mine = {name: x[rank : rank + 1] for name, x in samples.items()}
    settings = {"keep": keep, "backward": "sparse", "rest": "drop", "loss": "model"}
    if wrap == "ddp":
        wrapped = torch.nn.parallel.DistributedDataParallel(model)
    else:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (2,))
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh)
        wrapped = fully_shard(model, mesh=mesh)
    with ft.attach(wrapped, **settings):
        for _ in range(2):
            wrapped.zero_grad()
            wrapped(**mine).loss.backward()
    found = {}
    for name, parameter in wrapped.named_parameters():
        gradient = parameter.grad
        if hasattr(gradient, "full_tensor"):
            gradient = gradient.full_tensor()
        found[name.removeprefix("module.")] = gradient
    if rank == 0:
        torch.save(found, f"{folder}/gradients.pt")
    # Both are done with the other's tensors; gloo's own farewell can wait for a peer that left.
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3], float(sys.argv[4]))
