"""Real weights in a model that was built without memory: every rank reads its part, and nothing is left to chance."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from runtime_ranks import run_ranks
from safetensors.torch import load_file, save_file
from torch.distributed.tensor import DTensor

from launcher.runtime.finetune import models, parallel
from launcher.runtime.finetune.architectures import architecture_of, read_config
from launcher.runtime.finetune.loading import WeightLoader
from launcher.runtime.finetune.settings import settings_of
from launcher.runtime.finetune.token_scores import TokenBatch, TokenScorer
from launcher.runtime.finetune.weight_files import WeightsInvalid

from .cases import MODELS, VOCABULARY, compiled, saved_model

IDS = torch.arange(3, 40)[None] * 7 % VOCABULARY
SHARDED, HYBRID, REPLICATED = "FULL_SHARD", "HYBRID_SHARD", "NO_SHARD"


@pytest.fixture(scope="module", params=list(MODELS))
def model(request, tmp_path_factory):
    """Return the name of an architecture, a folder with a model of it, and that model's logits."""
    folder = tmp_path_factory.mktemp(request.param)
    saved_model(folder, request.param)
    return request.param, folder, published_logits(folder)


def published_logits(folder, **options):
    """Return the logits of a folder's model as one process has it by transformers alone."""
    kind = models.model_class(architecture_of(read_config(folder)))
    with torch.no_grad():
        return kind.from_pretrained(folder, attn_implementation="eager", **options).eval()(IDS).logits


def loaded(folder, place, config, *, sharding=SHARDED, adapters=None):
    """Return a model with its weights, on this rank."""
    settings = settings_of(config, place.world_size)
    settings = replace(settings, parallel=replace(settings.parallel, sharding=sharding))
    published = read_config(folder)
    found, _ = models.built(published, settings, place.device, has_weights=True)
    loader = WeightLoader(found, folder, published, place, seed=settings.seed, adapters_folder=adapters)
    root = parallel.spread(TokenScorer(found), found, settings.parallel, place, loader.fill)
    return root, found


def logits_on(ranks, folder, tmp_path, config, **options):
    """Return the logits on each rank, and the adapters in full."""

    def work(place):
        root, found = loaded(folder, place, config, **options)
        assert not any(each.is_meta for each in (*found.parameters(), *found.buffers()))
        trained = {name: full(each) for name, each in found.named_parameters() if each.requires_grad}
        with torch.no_grad():
            return logits_of(root, found), trained

    return run_ranks(ranks, work, tmp_path)


def logits_of(root, found):
    """Return logits through the root, as training calls it."""
    seen = []
    head = models.language_model(found).lm_head
    handle = head.register_forward_hook(lambda module, args, output: seen.append(output.detach().clone()))
    root.eval()
    root(batch())
    handle.remove()
    return seen[0]


def batch():
    """Return a batch whose every token counts."""
    length = IDS.shape[1]
    sources = torch.arange(length)
    return TokenBatch(IDS, None, None, sources, IDS[0].roll(-1), torch.zeros(length, dtype=torch.int64), 1)


def full(parameter):
    """Return a parameter's value, gathered from all ranks."""
    value = parameter.detach()
    return (value.full_tensor() if isinstance(value, DTensor) else value).clone()


@pytest.mark.parametrize("lora", [True, False], ids=["lora", "full"])
@pytest.mark.parametrize("sharding", [SHARDED, REPLICATED])
def test_sharded_weights_give_the_logits_of_one_process(model, tmp_path, sharding, lora):
    name, folder, expected = model
    for logits, _ in logits_on(2, folder, tmp_path, compiled(name, lora=lora), sharding=sharding):
        torch.testing.assert_close(logits, expected[0], atol=1e-6, rtol=1e-5)
