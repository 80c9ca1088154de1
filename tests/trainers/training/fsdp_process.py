"""One of two ranks that shard a model with FSDP2 on CPUs, as the Trainer does on GPUs, and score with it."""

import os
from pathlib import Path
from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from transformers import WhisperConfig, WhisperForConditionalGeneration, set_seed

from trainers.training.sharding import full_weights, shards_weights

SIZES: Any = {
    "vocab_size": 64,
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "max_source_positions": 50,
    "max_target_positions": 16,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
}
STEPS = 2


def train_and_score(rank: int, folder: Path, *, sharded: bool) -> None:
    """Trains, scores a number of batches that is the rank's own, and writes losses and outputs."""
    torch.set_num_threads(1)
    os.environ.update({"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank)})
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    set_seed(0)
    model = WhisperForConditionalGeneration(WhisperConfig(**SIZES))
    if sharded:
        mesh = init_device_mesh("cpu", (2,))
        for layer in (*model.model.encoder.layers, *model.model.decoder.layers):
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        register_fsdp_forward_method(model, "generate")
    assert shards_weights(model) == sharded
    optimizer = torch.optim.SGD([weight for weight in model.parameters() if weight.requires_grad], lr=0.1)
    inputs = torch.randn(2, 80, 100, generator=torch.Generator().manual_seed(1))
    labels = torch.tensor([[5, 6, 7], [8, 9, 2]])
    made: list[torch.Tensor] = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = model(input_features=inputs, labels=labels).loss
        loss.backward()
        optimizer.step()
        with full_weights(model), torch.no_grad():
            model.eval()
            for _ in range(1 + 2 * rank):
                encoded = model.get_encoder()(inputs)
                tokens = model.generate(encoder_outputs=encoded, max_new_tokens=4, do_sample=False)
            model.train()
        made += [loss.detach(), encoded.last_hidden_state, tokens]
    torch.save(made, folder / f"rank_{rank}.pt")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
