"""Real weights in a model that was built without memory: every rank reads its part, and nothing is left to chance."""

import json
import shutil
from dataclasses import replace

import peft
import pytest
import torch
from runtime_ranks import run_ranks
from safetensors.torch import load_file, save_file
from torch.distributed.tensor import DTensor

from launcher.runtime import process_group
from launcher.runtime.finetune import adapters, models, parallel
from launcher.runtime.finetune.architectures import read_config, rehearsal_config
from launcher.runtime.finetune.loading import WeightLoader
from launcher.runtime.finetune.settings import settings_of
from launcher.runtime.finetune.token_scores import TokenBatch, TokenScorer
from launcher.runtime.finetune.weight_files import WeightsInvalid

from .cases import MODELS, VOCABULARY, compiled, saved_model

pytestmark = pytest.mark.slow

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
    kind = models.model_class(read_config(folder))
    with torch.no_grad():
        return kind.from_pretrained(folder, attn_implementation="eager", **options).eval()(IDS).logits


def loaded(folder, place, config, *, sharding=SHARDED, offloads=False, start=None):
    """Return a model with its weights, on this rank."""
    settings = settings_of(config, place.world_size)
    settings = replace(settings, parallel=replace(settings.parallel, sharding=sharding, offloads=offloads))
    published = read_config(folder)
    found, _ = models.built(published, settings, place.device, has_weights=True)
    loader = WeightLoader(found, folder, published, place, seed=settings.seed, adapters_folder=start)
    root = parallel.spread(TokenScorer(found), found, settings.parallel, place, loader.fill)
    return root, found


def logits_on(ranks, folder, tmp_path, config, **options):
    """Return the logits on each rank, and the adapters in full."""

    def work(place):
        root, found = loaded(folder, place, config, **options)
        everything = (*found.named_parameters(), *found.named_buffers())
        assert not [name for name, each in everything if each.is_meta]
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


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    """Return a folder with a model that every test below leaves as it is."""
    folder = tmp_path_factory.mktemp("llama")
    saved_model(folder)
    return folder


@pytest.fixture
def copied(llama, tmp_path):
    """Return a folder of the same model, to be damaged."""
    return shutil.copytree(llama, tmp_path / "copied")


def test_a_job_on_one_node_without_replicas_gives_the_logits_of_one_process(llama, tmp_path):
    for logits, _ in logits_on(2, llama, tmp_path, compiled(), sharding=HYBRID):
        torch.testing.assert_close(logits, published_logits(llama)[0], atol=1e-6, rtol=1e-5)


def test_a_mesh_of_two_nodes_gives_the_logits_of_one_process(llama, tmp_path):
    def work(place):
        place = replace(place, local_rank=place.rank % 2, local_world_size=2)
        root, found = loaded(llama, place, compiled(), sharding=HYBRID)
        assert all(parameter.device_mesh.ndim == 2 for parameter in found.parameters())
        with torch.no_grad():
            return logits_of(root, found)

    for logits in run_ranks(4, work, tmp_path):
        torch.testing.assert_close(logits, published_logits(llama)[0], atol=1e-6, rtol=1e-5)


def test_offloaded_weights_give_the_logits_of_one_process(llama, tmp_path):
    def work(place):
        root, found = loaded(llama, place, compiled(), offloads=True)
        with torch.no_grad():
            return logits_of(root, found)

    for logits in run_ranks(2, work, tmp_path):
        torch.testing.assert_close(logits, published_logits(llama)[0], atol=1e-6, rtol=1e-5)


def test_new_adapters_are_the_same_on_every_number_of_ranks(llama, tmp_path):
    by_ranks = [logits_on(ranks, llama, tmp_path, compiled(train_batch_size=6)) for ranks in (1, 2, 3)]
    alone = by_ranks[0][0][1]
    drawn = [value for name, value in alone.items() if "lora_A" in name]
    assert drawn and all(value.std() > 0.01 for value in drawn)
    for _, trained in [rank for ranks in by_ranks for rank in ranks]:
        assert trained.keys() == alone.keys()
        assert all(torch.equal(trained[name], alone[name]) for name in alone)


def test_on_a_gpu_frozen_weights_are_bf16_and_adapters_fp32(llama):
    settings = settings_of(compiled(), 1)
    found, _ = models.built(read_config(llama), settings, torch.device("cuda"), has_weights=True)
    assert {parameter.requires_grad: parameter.dtype for parameter in found.parameters()} == {
        False: torch.bfloat16,
        True: torch.float32,
    }
    assert {value.dtype for value in adapters.drawn(found, seed=1).values()} == {torch.float32}


def test_new_adapters_do_not_touch_the_random_numbers_of_training(llama):
    settings = settings_of(compiled(), 1)
    found, _ = models.built(read_config(llama), settings, torch.device("cpu"), has_weights=True)
    before = torch.random.get_rng_state()
    adapters.drawn(found, seed=1)
    assert torch.equal(before, torch.random.get_rng_state())


def test_experts_get_adapters_of_their_own(tmp_path):
    saved_model(tmp_path / "model", "gpt_oss")
    config = compiled("gpt_oss")
    peft = config["training_config"]["model_config"]["peft_config"]
    peft |= {"target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]}
    for logits, trained in logits_on(2, tmp_path / "model", tmp_path, config):
        assert any("experts" in name for name in trained)
        torch.testing.assert_close(logits, published_logits(tmp_path / "model")[0], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(
    ("model", "before", "within"),
    [("llama4_text", "", "language_model."), ("qwen3_5_text", "model.", "model.language_model.")],
)
def test_a_language_model_loads_from_a_model_of_several_parts(tmp_path, model, before, within):
    """Source of the names: Llama 4 Scout's index; transformers, Qwen3_5ForConditionalGeneration."""
    saved_model(tmp_path / "model", model)
    expected = published_logits(tmp_path / "model")
    file = tmp_path / "model" / "model.safetensors"
    saved = load_file(file).items()
    weights = {within + key.removeprefix(before) if key.startswith(before) else key: value for key, value in saved}
    save_file(weights | {"vision_model.class_embedding": torch.zeros(3)}, file, {"format": "pt"})
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    whole = {"model_type": model.removesuffix("_text"), "text_config": config}
    (tmp_path / "model" / "config.json").write_text(json.dumps(whole))
    for logits, _ in logits_on(2, tmp_path / "model", tmp_path, compiled(model)):
        torch.testing.assert_close(logits, expected[0], atol=1e-6, rtol=1e-5)


def test_the_language_model_of_ministral_loads_as_transformers_saves_the_model_of_images(tmp_path):
    from transformers import Mistral3Config, Mistral3ForConditionalGeneration

    text = rehearsal_config(MODELS["ministral3"], "", VOCABULARY)
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1}
    vision |= {"model_type": "pixtral", "head_dim": 16, "image_size": 28, "patch_size": 14}
    options = {"image_token_index": 7, "tie_word_embeddings": False}
    config = Mistral3Config(text_config=text, vision_config=vision, **options)
    full = Mistral3ForConditionalGeneration(config).eval()
    full.save_pretrained(tmp_path / "model")
    with torch.no_grad():
        expected = full(input_ids=IDS).logits[0]
    for logits, _ in logits_on(2, tmp_path / "model", tmp_path, compiled("ministral3")):
        torch.testing.assert_close(logits, expected, atol=1e-6, rtol=1e-5)


def test_weights_of_a_model_of_several_parts_that_are_quantized_are_refused(tmp_path):
    """Its config.json states the quantization beside the parts; without the scales, the weights would be nonsense."""
    saved_model(tmp_path / "model", "ministral3")
    file = tmp_path / "model" / "config.json"
    quantized = {"text_config": json.loads(file.read_text()), "quantization_config": {"quant_method": "fp8"}}
    file.write_text(json.dumps(quantized))
    place = process_group.Place(0, 1, 0, 1, torch.device("cpu"))
    with pytest.raises(WeightsInvalid, match="quantized .fp8."):
        loaded(tmp_path / "model", place, compiled("ministral3"))


def test_shards_and_other_files_of_the_folder_do_not_disturb(tmp_path):
    found = saved_model(tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").unlink()
    found.save_pretrained(tmp_path / "model", max_shard_size="100KB")
    save_file({"model.norm.weight": torch.zeros(3)}, tmp_path / "model" / "adapter_model.safetensors")
    for logits, _ in logits_on(2, tmp_path / "model", tmp_path, compiled()):
        torch.testing.assert_close(logits, published_logits(tmp_path / "model")[0], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("sharding", [SHARDED, REPLICATED])
def test_pickled_weights_load_through_transformers(copied, tmp_path, sharding):
    expected = published_logits(copied)
    torch.save(load_file(copied / "model.safetensors"), copied / "pytorch_model.bin")
    (copied / "model.safetensors").unlink()
    for logits, _ in logits_on(2, copied, tmp_path, compiled(), sharding=sharding):
        torch.testing.assert_close(logits, expected[0], atol=1e-6, rtol=1e-5)


def test_weights_of_four_bits_become_bf16(tmp_path):
    folder = tmp_path / "model"
    sizes = {"hidden_size": 64, "intermediate_size": 64}
    saved_model(folder, "gpt_oss", dtype=torch.bfloat16, **sizes)
    quantize(folder)
    expected = full_model(folder, torch.bfloat16)
    for logits, _ in logits_on(2, folder, tmp_path, compiled("gpt_oss")):
        torch.testing.assert_close(logits, expected[0], atol=1e-6, rtol=1e-5)


def full_model(folder, dtype):
    """Return the logits in 32 bits of a folder's model after transformers' conversion."""
    from transformers import Mxfp4Config

    kind = models.model_class(read_config(folder))
    found = kind.from_pretrained(folder, quantization_config=Mxfp4Config(dequantize=True), dtype=dtype)
    with torch.no_grad():
        return found.float().eval()(IDS).logits


def quantize(folder):
    """Replace a model's experts by random ones of four bits, as the published gpt-oss has them."""
    random = torch.Generator().manual_seed(0)
    weights = load_file(folder / "model.safetensors")
    for key in [key for key in weights if key.endswith("_proj") and "experts" in key]:
        experts, rows, columns = weights.pop(key).shape
        shape = (experts, columns, rows // 32)
        weights[f"{key}_blocks"] = torch.randint(0, 256, (*shape, 16), dtype=torch.uint8, generator=random)
        weights[f"{key}_scales"] = torch.randint(118, 122, shape, dtype=torch.uint8, generator=random)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    quantized = {
        "quant_method": "mxfp4",
        "modules_to_not_convert": ["self_attn", "router", "embed_tokens", "lm_head"],
    }
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": quantized}))


def test_adapters_to_start_from_are_loaded_and_train(llama, tmp_path):
    start = saved_adapters(tmp_path / "start", llama, r=3)
    expected = published_adapted_logits(llama, start)
    for logits, trained in logits_on(2, llama, tmp_path, compiled(model_changes=from_(start)), start=start):
        torch.testing.assert_close(logits, expected[0], atol=1e-6, rtol=1e-5)
        saved = load_file(start / "adapter_model.safetensors")
        assert {adapters.saved_name(name) for name in trained} == saved.keys()
        assert all(torch.equal(value, saved[adapters.saved_name(name)]) for name, value in trained.items())


def test_adapters_of_experts_start_without_dropout(tmp_path):
    base, start = tmp_path / "base", tmp_path / "start"
    found = saved_model(base, "gpt_oss")
    config = peft.LoraConfig(
        r=2, target_modules=["q_proj"], target_parameters=["mlp.experts.down_proj"], init_lora_weights=False
    )
    peft.get_peft_model(found, config).save_pretrained(start)
    expected = published_adapted_logits(base, start)
    changed = compiled("gpt_oss", model_changes=from_(start))
    changed["training_config"]["model_config"]["peft_config"]["lora_dropout"] = 0.05
    for logits, _ in logits_on(2, base, tmp_path, changed, start=start):
        torch.testing.assert_close(logits, expected[0], atol=1e-6, rtol=1e-5)


def from_(start):
    """Return the recipe's key of adapters to start from."""
    return {"lora_checkpoint_file_path": str(start)}


def saved_adapters(folder, base, r):
    """Write random adapters of a model, as PEFT does."""
    kind = models.model_class(read_config(base))
    config = peft.LoraConfig(r=r, lora_alpha=5, target_modules=["q_proj", "down_proj"], init_lora_weights=False)
    torch.manual_seed(3)
    peft.get_peft_model(kind.from_pretrained(base), config).save_pretrained(folder)
    return folder


def published_adapted_logits(base, start):
    """Return the logits of a model with adapters, as plain PEFT loads them."""
    kind = models.model_class(read_config(base))
    with torch.no_grad():
        return peft.PeftModel.from_pretrained(kind.from_pretrained(base), start).eval()(IDS).logits


def refused(folder, **changes):
    """Return why the weights of a folder are refused."""
    config = read_config(folder)
    adapters_folder = changes.pop("adapters", None)
    settings = settings_of(compiled(model_changes=from_(adapters_folder) if adapters_folder else None), 1)
    place = process_group.Place(0, 1, 0, 1, torch.device("cpu"))
    with pytest.raises(WeightsInvalid) as error:
        found, _ = models.built(config, settings, place.device, has_weights=True)
        WeightLoader(found, folder, config, place, seed=1, adapters_folder=adapters_folder).fill(place.device)
    return str(error.value)


def test_a_folder_without_weights_is_refused(copied):
    (copied / "model.safetensors").unlink()
    message = refused(copied)
    assert str(copied) in message and "model.safetensors" in message and "no weights" in message


def test_a_truncated_file_is_refused(copied):
    file = copied / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])
    assert str(file) in refused(copied) and "truncated" in refused(copied)


def test_a_missing_shard_is_refused(copied):
    index = {"weight_map": {"model.norm.weight": "model-00001-of-00002.safetensors"}}
    (copied / "model.safetensors.index.json").write_text(json.dumps(index))
    message = refused(copied)
    assert "model.norm.weight" in message and "model-00001-of-00002.safetensors" in message


def test_an_index_reaches_no_file_outside_the_folder(copied):
    shutil.copy(copied / "model.safetensors", copied.parent / "outside.safetensors")
    index = {"weight_map": {"model.norm.weight": "../outside.safetensors"}}
    (copied / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "not a file of the folder" in refused(copied)


@pytest.mark.parametrize("text", ["{", "[]", '{"weight_map": 3}', '{"weight_map": {"a": {}}}'])
def test_a_damaged_index_is_refused(copied, text):
    (copied / "model.safetensors.index.json").write_text(text)
    assert "model.safetensors.index.json" in refused(copied)


def test_weights_of_another_size_are_refused(copied):
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps(config | {"intermediate_size": 64}))
    message = refused(copied)
    assert str(copied / "model.safetensors") in message and "mlp" in message and "config.json" in message


def test_a_missing_weight_is_refused(copied):
    weights = load_file(copied / "model.safetensors")
    weights.pop("model.layers.1.mlp.down_proj.weight")
    save_file(weights, copied / "model.safetensors", {"format": "pt"})
    message = refused(copied)
    assert str(copied) in message and "model.layers.1.mlp.down_proj.weight is missing" in message


def test_an_unknown_quantization_is_refused(copied):
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "gptq"}}))
    assert "gptq" in refused(copied)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda folder: (folder / "adapter_config.json").unlink(), "adapter_config.json does not exist"),
        (lambda folder: (folder / "adapter_model.safetensors").unlink(), "adapter_model.safetensors does not exist"),
        (lambda folder: (folder / "adapter_config.json").write_text("{"), "adapter_config.json"),
        (lambda folder: configure(folder, peft_type="IA3", target_modules=["q_proj"]), "not LoRA"),
        (lambda folder: configure(folder, use_dora=True), "use_dora"),
        (lambda folder: configure(folder, modules_to_save=["lm_head"]), "modules_to_save"),
        (lambda folder: change(folder, lambda weights: weights.popitem()), "is missing"),
        (lambda folder: change(folder, lambda weights: weights.update(other=torch.zeros(1))), "other has no place"),
        (lambda folder: change(folder, shorten), "has the shape"),
    ],
    ids=[
        "no config",
        "no weights",
        "damaged config",
        "another kind",
        "dora",
        "modules",
        "missing",
        "surplus",
        "shape",
    ],
)
def test_adapters_that_do_not_fit_are_refused(llama, tmp_path, damage, words):
    start = saved_adapters(tmp_path / "start", llama, r=3)
    damage(start)
    message = refused(llama, adapters=start)
    assert words in message and str(start) in message


def change(folder, edit):
    """Edit the weights of saved adapters."""
    file = folder / "adapter_model.safetensors"
    weights = load_file(file)
    edit(weights)
    save_file(weights, file)


def configure(folder, **changes):
    """Change the configuration of saved adapters."""
    file = folder / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def shorten(weights):
    """Give one of the weights another shape."""
    key = min(weights)
    weights[key] = weights[key][:1].clone()
