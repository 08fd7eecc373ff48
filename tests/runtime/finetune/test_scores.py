"""Log-probabilities of tokens: packed and padded rows, long sequences, and the balance of experts."""

import numpy as np
import pytest
import torch

from launcher.runtime.finetune import token_scores
from launcher.runtime.finetune.architectures import architecture_of
from launcher.runtime.finetune.batches import Batcher, layer_masks
from launcher.runtime.finetune.token_scores import TokenScorer
from launcher.runtime.model_configs import table

from . import runs, trl_trainers
from .cases import MODELS, compiled, conversations, fsdp

pytestmark = pytest.mark.slow
CPU = torch.device("cpu")
PACKED = [name for name, model in MODELS.items() if architecture_of(table()[model]).packs]


@pytest.fixture(scope="module")
def model_of(tmp_path_factory):
    """Return a function that returns the small model of an architecture, all of whose weights train."""
    folder, made = tmp_path_factory.mktemp("models"), {}

    def find(name):
        if name not in made:
            made[name] = trl_trainers.model_of(compiled(name, lora=False), folder).train()
        return made[name]

    return find


def test_samples_of_linear_attention_are_never_packed(tmp_path):
    """Its state would carry one sample into the next; padded rows have the losses of samples alone."""
    assert set(MODELS) - set(PACKED) == {"qwen3_5_text"}
    args = {"train_batch_size": 4, "max_epochs": 1}
    for name, changes in {"packed": {"packing_samples": True}, "alone": {}}.items():
        config = compiled("qwen3_5_text", micro_train_batch_size=1 if name == "alone" else 4, **args, **changes)
        runs.train(tmp_path / name, 1, config, conversations(8))
    assert runs.losses(tmp_path / "packed") == pytest.approx(runs.losses(tmp_path / "alone"), rel=1e-5)


def scores(model, batcher, samples, aux=0.0):
    return TokenScorer(model, aux)(batcher.placed(batcher.laid_out(samples)))


@pytest.mark.parametrize("name", PACKED)
def test_packed_and_padded_rows_give_the_same_scores_and_gradients(model_of, name):
    """The samples are longer than the windows of 32 tokens, so that a border in the wrong place shows."""
    model, samples = model_of(name), conversations(6, seed=3, longest=90)
    samples = [samples.sample(index) for index in range(6)]
    assert sorted(len(ids) > 32 for ids, _ in samples) != [False] * 6
    found = []
    for batcher in (Batcher(CPU), Batcher(CPU, packs=True, masks=layer_masks(model))):
        model.zero_grad()
        log_probs, _ = scores(model, batcher, samples)
        (-log_probs.mean()).backward()
        gradients = {key: each.grad.clone() for key, each in model.named_parameters() if each.grad is not None}
        found.append((log_probs.detach(), gradients))
    alone = torch.cat([scores(model, Batcher(CPU), [sample])[0] for sample in samples]).detach()
    torch.testing.assert_close(found[0][0], alone, rtol=0, atol=1e-5)
    torch.testing.assert_close(found[1][0], alone, rtol=0, atol=1e-5)
    for key, value in found[0][1].items():
        torch.testing.assert_close(value, found[1][1][key], rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_scores_are_those_of_the_logits_that_transformers_returns(model_of, name):
    """The head is called apart from the model: an architecture that scales its logits would score otherwise."""
    model, (ids, trained) = model_of(name), conversations(1, seed=4, longest=90).sample(0)
    tokens = torch.from_numpy(ids.astype(np.int64))
    found, _ = scores(model, Batcher(CPU), [(ids, trained)])
    expected = model(input_ids=tokens[None]).logits[0, :-1].log_softmax(-1).gather(1, tokens[1:, None])[:, 0]
    torch.testing.assert_close(found, expected[torch.from_numpy(trained[1:].astype(bool))], rtol=0, atol=1e-5)


def test_samples_of_a_row_would_mix_without_own_masks(model_of):
    model, samples = model_of("gpt_oss"), conversations(6, seed=3, longest=90)
    samples = [samples.sample(index) for index in range(6)]
    right, _ = scores(model, Batcher(CPU, packs=True, masks=layer_masks(model)), samples)
    wrong, _ = scores(model, Batcher(CPU, packs=True), samples)
    assert (right - wrong).abs().max() > 1e-3


@pytest.mark.parametrize("name", ["gpt_oss", "llama4_text"])
@pytest.mark.parametrize("packs", [False, True], ids=["padded", "packed"])
def test_the_balance_of_experts_is_that_of_the_switch_transformer(model_of, name, packs):
    """Fedus et al., Switch Transformers (2021), equations 4 to 6; over all layers, top-k assignments, no padding."""
    model, samples = model_of(name), conversations(4, seed=5)
    samples = [samples.sample(index) for index in range(4)]
    experts, top = model.config.num_local_experts, model.config.num_experts_per_tok
    logits = []

    def keep(module, _, output):
        logits.append(output[1] if name == "llama4_text" else output[0])

    routers = [each for each in model.modules() if type(each).__name__ in ("Llama4Router", "GptOssTopKRouter")]
    assert len(routers) == model.config.num_hidden_layers
    hooks = [each.register_forward_hook(keep) for each in routers]
    for sample in samples:
        scores(model, Batcher(CPU), [sample])
    for each in hooks:
        each.remove()
    chances = torch.cat([each.reshape(-1, experts) for each in logits]).softmax(-1)
    chosen = torch.nn.functional.one_hot(chances.topk(top).indices, experts).sum(1).float()
    expected = 0.25 * experts * (chosen.mean(0) * chances.mean(0)).sum()

    _, aux = scores(model, Batcher(CPU, packs, layer_masks(model)), samples, aux=0.25)
    assert aux.item() == pytest.approx(expected.item(), abs=1e-5)
    assert scores(model, Batcher(CPU, packs, layer_masks(model)), samples)[1] is None


def test_the_balance_of_experts_is_added_to_the_loss_and_trains_the_routers(tmp_path):
    samples, states = conversations(8), []
    for coef, recomputes in ((0, True), (10.0, True), (10.0, False)):
        args = {"aux_loss_coef": coef, "train_batch_size": 4, "gradient_checkpointing": recomputes}
        config = compiled("llama4_text", lora=False, **args)
        states.append(runs.train(tmp_path / str(len(states)), 2, config, samples, stop=1))
    routers = [key for key in states[0] if "router" in key]
    assert len(routers) == 4
    for key in routers:
        assert not torch.equal(states[0][key], states[1][key])
    for key, value in states[1].items():
        torch.testing.assert_close(value, states[2][key], rtol=0, atol=1e-6)


def test_the_logits_of_a_long_sequence_are_never_complete(model_of, monkeypatch):
    model, sizes = model_of("llama"), []
    length = 1000
    ids = np.random.default_rng(0).integers(0, 512, length).astype(np.uint32)
    trained = np.ones(length, np.uint8)
    trained[: length // 2] = 0
    hook = model.lm_head.register_forward_hook(lambda module, inputs, output: sizes.append(output.shape[:-1].numel()))
    found = []
    try:
        for chunk in (64, 10**6):
            monkeypatch.setattr(token_scores, "CHUNK", chunk)
            model.zero_grad()
            log_probs, _ = scores(model, Batcher(CPU), [(ids, trained)])
            (-log_probs.sum()).backward()
            found.append((log_probs.detach(), model.lm_head.weight.grad.clone()))
    finally:
        hook.remove()
    assert sorted(sizes) == sorted(2 * ([64] * 7 + [52]) + [500])  # forward, recomputed; then in one piece
    torch.testing.assert_close(found[0][0], found[1][0], rtol=0, atol=1e-5)
    torch.testing.assert_close(found[0][1], found[1][1], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("sharding", ["FULL_SHARD", "NO_SHARD"])
def test_chunks_train_the_same_on_two_ranks(tmp_path, monkeypatch, sharding):
    samples = conversations(8)
    for model, lora in (("llama_tied", False), ("llama", True)):
        config = compiled(
            model, lora=lora, train_batch_size=4, micro_train_batch_size=2, **fsdp(sharding_strategy=sharding)
        )
        monkeypatch.setattr(token_scores, "CHUNK", 1024)
        runs.train(tmp_path / f"{model}-whole", 1, config, samples)
        monkeypatch.setattr(token_scores, "CHUNK", 8)
        runs.train(tmp_path / f"{model}-chunks", 2, config, samples)
        whole = runs.losses(tmp_path / f"{model}-whole")
        assert runs.losses(tmp_path / f"{model}-chunks") == pytest.approx(whole, rel=1e-6)
