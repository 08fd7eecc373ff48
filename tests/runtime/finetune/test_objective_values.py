"""Losses, rates and settings of the open trainer against values computed by hand."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from launcher.runtime.finetune import token_scores
from launcher.runtime.finetune.batches import Batcher, padded
from launcher.runtime.finetune.data.prepared import PreparedPairs
from launcher.runtime.finetune.objectives import (
    Outcome,
    PairRows,
    Preference,
    preference_losses,
    uniform_reference,
)
from launcher.runtime.finetune.schedules import learning_rate
from launcher.runtime.finetune.settings import (
    LoraSettings,
    ModelSettings,
    OptimizerSettings,
    ParallelSettings,
    PreferenceSettings,
    settings_of,
)
from launcher.runtime.finetune.token_scores import TokenBatch, TokenScorer
from launcher.runtime.training_config import MAX_SKIPPED_STEPS, Schedule

from .cases import compiled, fsdp

BATCHER = Batcher(torch.device("cpu"))
PAIRS = PreparedPairs(
    np.array([9, 8, 10, 20, 30, 40, 7, 50, 60, 70], np.uint32),  # prompt, chosen and rejected, twice
    np.array([0, 2, 5, 6, 7, 8, 10], np.int64),
    np.array([[3, 1], [1, 2]], np.int32),
)
SUMS = torch.tensor([[-0.6, -0.4], [-0.5, -1.3]], dtype=torch.float64)
"""Of PAIRS, where a token has a hundredth of its number as its negative log-probability."""


def by_number(aux=None):
    return lambda batch: (-batch.targets.float() / 100, aux)


def preference(loss_type="sigmoid", beta=0.5, smoothing=0.0, nll=0.0):
    return PreferenceSettings(loss_type, beta, smoothing, nll, False)


def test_rows_of_pairs_are_the_chosen_answers_and_then_the_rejected_ones():
    rows = PairRows(PAIRS, [0, 1], BATCHER)
    assert rows.batch.ids.tolist() == [[9, 8, 10, 20, 30], [7, 50, 0, 0, 0], [9, 8, 40, 0, 0], [7, 60, 70, 0, 0]]
    assert rows.batch.targets.tolist() == [10, 20, 30, 50, 40, 60, 70]
    assert rows.batch.samples.tolist() == [0, 0, 0, 1, 2, 3, 3]
    assert rows.num_tokens.tolist() == [[3, 1], [1, 2]]
    found = rows.sums(by_number()(rows.batch)[0])
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, SUMS, rtol=0, atol=1e-7)
    assert PairRows(PAIRS, [1], BATCHER).batch.targets.tolist() == [50, 60, 70]


def test_an_answer_without_tokens_counts_as_one_token():
    empty = PreparedPairs(np.array([5, 6], np.uint32), np.array([0, 1, 2, 2], np.int64), np.zeros((1, 2), np.int32))
    assert PairRows(empty, [0], BATCHER).num_tokens.tolist() == [[1, 1]]


def test_a_uniform_reference_finds_every_answer_as_likely():
    found = uniform_reference(PAIRS, PairRows(PAIRS, [0, 1], BATCHER))
    assert found.dtype == torch.float64 and found.tolist() == [[0.0, 0.0], [0.0, 0.0]]


def sigmoid_loss(scaled):
    return math.log(1 + math.exp(-scaled))


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        (preference(beta=0.5), [sigmoid_loss(0.5), sigmoid_loss(-1.0)]),
        (
            preference(beta=0.5, smoothing=0.1),
            [0.9 * sigmoid_loss(0.5) + 0.1 * sigmoid_loss(-0.5), 0.9 * sigmoid_loss(-1) + 0.1 * sigmoid_loss(1)],
        ),
        (preference("hinge", beta=0.5), [0.5, 2.0]),
        (preference("hinge", beta=3.0), [0.0, 7.0]),
        (preference("ipo", beta=0.25), [(0.75 / 3 + 0.25 / 2 - 2) ** 2, (-1.5 - 0.1 - 2) ** 2]),
    ],
    ids=["sigmoid", "smoothed", "hinge", "steep-hinge", "ipo"],
)
def test_preference_losses_are_those_of_the_papers(form, expected):
    gains = torch.tensor([[0.75, -0.25], [-1.5, 0.5]])
    found = preference_losses(gains, torch.tensor([[3, 2], [1, 5]]), form)
    assert found.tolist() == pytest.approx(expected)


@pytest.mark.parametrize("nll", [0.0, 0.5])
def test_an_outcome_sums_losses_and_rewards_of_pairs(nll):
    reference = torch.tensor([[-0.5, -0.5], [-0.7, -0.3]], dtype=torch.float64)
    objective = Preference(BATCHER, preference(beta=0.5, nll=nll), lambda samples, rows: reference)
    rows = objective.rows(PAIRS, [0, 1])
    aux = torch.tensor(7.0)
    found = objective.outcome(by_number(aux), PAIRS, rows)
    gains = [(-0.1, 0.1), (0.2, -1.0)]
    loss = sum(sigmoid_loss(0.5 * (chosen - rejected)) for chosen, rejected in gains) + nll * (0.6 / 3 + 0.5)
    assert found.aux is aux and found.loss.item() == pytest.approx(loss)
    assert found.sums.tolist() == pytest.approx([loss, 2, 0.05, -0.45, 0.5, 1])
    assert len(found.sums) == objective.num_sums and found.sums.dtype == torch.float64
    expected = dict(zip(Preference.names, (loss / 2, 0.025, -0.225, 0.25, 0.5), strict=True))
    assert objective.metrics(found.sums) == pytest.approx(expected)
    assert set(objective.metrics(torch.zeros(objective.num_sums)).values()) == {0.0}
    with pytest.raises(ValueError, match="zip"):
        objective.metrics(torch.zeros(objective.num_sums + 1))


def test_pairs_that_are_equally_likely_are_not_in_order():
    reference = torch.tensor([[-0.6, -0.4]], dtype=torch.float64)
    objective = Preference(BATCHER, preference(), lambda samples, rows: rows.sums(by_number()(rows.batch)[0]))
    found = objective.outcome(by_number(), PAIRS, objective.rows(PAIRS, [0]))
    assert reference.shape == (1, 2) and found.aux is None
    assert found.sums.tolist() == pytest.approx([math.log(2), 1, 0, 0, 0, 0])


def test_gradients_flow_through_the_loss_and_not_through_what_is_reported():
    scale = torch.ones((), requires_grad=True)
    objective = Preference(BATCHER, preference(), uniform_reference)

    def root(batch):
        return -scale * batch.targets.float() / 100, None

    found = objective.outcome(root, PAIRS, objective.rows(PAIRS, [0, 1]))
    assert found.loss.requires_grad and not found.sums.requires_grad


def test_the_length_of_a_pair_is_that_of_both_its_rows():
    assert Preference(BATCHER, preference(), uniform_reference).lengths(PAIRS).tolist() == [8, 5]


@pytest.mark.parametrize("answer", [True, False])
def test_a_reference_is_prepared_if_it_needs_to_be(answer):
    def stopping():
        raise AssertionError("never asked")

    asked = []
    given = Preference(BATCHER, preference(), uniform_reference, lambda stops: asked.append(stops) or answer)
    assert given.prepare(stopping) is answer and asked == [stopping]
    assert Preference(BATCHER, preference(), uniform_reference).prepare(stopping) is True


@pytest.mark.parametrize(("pairs", "mean"), [(4, 1.5), (1, 6.0), (0, 6.0)])
def test_the_loss_is_weighed_as_a_mean_over_pairs_and_the_balance_of_experts_as_the_batch(pairs, mean):
    job = SimpleNamespace(batch=SimpleNamespace(positions=range(pairs)), weight=0.25, weigh=lambda loss: 10 * loss)
    objective = Preference(BATCHER, preference(), uniform_reference)
    loss = torch.tensor(6.0)
    assert objective.weighed(Outcome(loss, loss, None), PAIRS, job).item() == 10 * mean
    assert objective.weighed(Outcome(loss, loss, torch.tensor(2.0)), PAIRS, job).item() == 10 * mean + 0.5


# Log-probabilities of tokens


class Body(nn.Module):
    """Gives each token's number as its hidden state, and notes its arguments."""

    def __init__(self):
        super().__init__()
        self.seen = None

    def forward(self, **given):
        self.seen = given
        hidden = given["input_ids"][..., None].float() * torch.tensor([1.0, 0.1])
        return SimpleNamespace(last_hidden_state=hidden, router_logits=(torch.tensor([[2.0, 0.0], [0.0, 1.0]]),))


class Causal(nn.Module):
    config = SimpleNamespace(num_local_experts=2, num_experts_per_tok=1)

    def __init__(self):
        super().__init__()
        self.model, self.lm_head, self.calls = Body(), nn.Linear(2, 5, bias=False), []
        with torch.no_grad():
            self.lm_head.weight.copy_(torch.arange(10).reshape(5, 2) / 7)
        self.lm_head.register_forward_hook(
            lambda module, given, logits: self.calls.append((len(logits), logits.dtype))
        )


def sample(*ids):
    return np.array(ids, np.uint32), np.array([0, *[1] * (len(ids) - 1)], np.uint8)


def expected_log_probs(model, sources, targets):
    hidden = torch.tensor(sources).float()[:, None] * torch.tensor([1.0, 0.1])
    return (hidden @ model.lm_head.weight.T).log_softmax(-1)[range(len(targets)), targets]


@pytest.mark.parametrize(("chunk", "calls"), [(5, [5]), (4, [4, 1]), (2, [2, 2, 1])])
def test_scores_are_log_probabilities_whatever_the_chunks(monkeypatch, chunk, calls):
    monkeypatch.setattr(token_scores, "CHUNK", chunk)
    model = Causal()
    found, aux = TokenScorer(model)(padded([sample(1, 2, 3, 4), sample(4, 0, 1)]))
    assert [rows for rows, _ in model.calls] == calls and aux is None
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected_log_probs(model, [1, 2, 3, 4, 0], [2, 3, 4, 0, 1]))
    found.sum().backward()
    assert model.lm_head.weight.grad is not None


def test_the_model_reads_rows_without_a_cache_and_gives_router_logits_only_if_wanted():
    model, batch = Causal(), padded([sample(1, 2, 3), sample(4, 0)])
    TokenScorer(model)(batch)
    seen = model.model.seen
    assert seen["input_ids"] is batch.ids and seen["attention_mask"] is batch.mask
    assert seen["use_cache"] is False and seen["position_ids"] is None
    assert "output_router_logits" not in seen
    assert token_scores.CHUNK == 1024


@pytest.mark.slow
def test_the_balance_of_experts_has_its_weight():
    model, batch = Causal(), padded([sample(1, 2)])
    _, aux = TokenScorer(model, 0.5)(batch)
    assert model.model.seen["output_router_logits"] is True
    chances = torch.tensor([[2.0, 0.0], [0.0, 1.0]]).softmax(-1)
    expected = 0.5 * 2 * (0.5 * chances.mean(0)).sum()
    assert aux.item() == pytest.approx(expected.item())


@pytest.mark.slow
def test_padding_has_no_part_in_the_balance_of_experts():
    model, batch = Causal(), padded([sample(1, 2)])
    first = torch.tensor([[2.0, 0.0]]).softmax(-1)
    masked = TokenBatch(batch.ids, torch.tensor([[1, 0]]), None, batch.sources, batch.targets, batch.samples, 1)
    assert TokenScorer(model, 1.0)(masked)[1].item() == pytest.approx(2 * first[0, 0].item())


def test_operations_have_the_precision_of_the_autocast_and_scores_32_bits():
    model, batch = Causal(), padded([sample(1, 2, 3)])
    scorer = TokenScorer(model)
    scorer(batch)
    scorer.autocast = torch.bfloat16
    found, _ = scorer(batch)
    assert [dtype for _, dtype in model.calls] == [torch.float32, torch.bfloat16]
    assert found.dtype == torch.float32


def test_every_tensor_of_a_batch_is_moved():
    batch = padded([sample(1, 2, 3), sample(4, 0)])
    moved = batch.moved(lambda each: each + 1)
    assert moved.ids.tolist() == (batch.ids + 1).tolist() and moved.mask.tolist() == (batch.mask + 1).tolist()
    assert (moved.positions, moved.num_samples) == (None, 2)
    kinds = {"full": torch.zeros(1), "near": torch.ones(1)}
    own = TokenBatch(batch.ids, kinds, batch.ids, batch.sources, batch.targets, batch.samples, 2)
    found = own.moved(lambda each: each + 1)
    assert {kind: each.item() for kind, each in found.mask.items()} == {"full": 1.0, "near": 2.0}


# The learning rate


@pytest.mark.parametrize(
    ("kind", "warmup", "rates"),
    [
        ("constant", 0.2, {0.0: 1, 0.1: 1, 1.0: 1}),
        ("constant_with_warmup", 0.2, {0.0: 0, 0.1: 0.5, 0.2: 1, 1.0: 1}),
        ("linear", 0.2, {0.1: 0.5, 0.2: 1, 0.6: 0.5, 1.0: 0, 1.5: 0}),
        ("linear", 0.0, {0.0: 1, 0.25: 0.75}),
        ("linear", 1.0, {0.5: 0.5, 1.0: 1}),
        ("polynomial", 0.2, {0.6: 0.5}),
        ("cosine", 0.2, {0.2: 1, 0.4: (1 + math.cos(math.pi / 4)) / 2, 0.6: 0.5, 1.0: 0}),
        ("cosine_with_restarts", 0.0, {0.25: (1 + math.cos(math.pi / 4)) / 2, 1.0: 0}),
        ("cosine_with_min_lr", 0.0, {0.0: 1, 0.5: 0.55, 1.0: 0.1}),
        ("cosine_warmup_with_min_lr", 0.2, {0.1: 0.5, 0.2: 1, 0.6: 0.55, 1.0: 0.1}),
        ("warmup_stable_decay", 0.2, {0.0: 0.1, 0.1: 0.55, 0.2: 1, 0.8: 1, 0.92: 0.55, 1.0: 0.1}),
        ("inverse_sqrt", 0.2, {0.1: 0.5, 0.2: 1, 0.8: 0.5}),
        ("inverse_sqrt", 0.0, {0.0: 1, 0.5: 1, 1.0: 1}),
    ],
)
def test_the_rate_of_a_schedule_at_a_part_of_the_training(kind, warmup, rates):
    found = {progress: learning_rate(Schedule(3.0, kind, warmup), progress) for progress in rates}
    assert found == pytest.approx({progress: 3 * rate for progress, rate in rates.items()}, abs=1e-9)


# Settings


def test_settings_are_the_values_of_the_recipe():
    found = settings_of(compiled(), 2)
    assert (found.name, found.technique, found.preference) == ("llama-3-2-1b-instruct", "sft", None)
    assert found.model == ModelSettings(
        path="meta-llama/Llama-3.1-8B-Instruct",
        save_name="SageMaker/llama-3.2-1B-Instruct-Lora",
        attention="sdpa",
        lora=LoraSettings(4, 8, 0.0, "none", "all-linear", (), ()),
        adapters_path=None,
    )
    assert found.parallel == ParallelSettings("HYBRID_SHARD", offloads=False, recomputes=False, prefetches=False)
    assert found.optimizer == OptimizerSettings(Schedule(3e-3, "cosine", 0.1), (0.9, 0.95), 0.0, 1.0)
    saving = found.saving
    assert (saving.folder, saving.every, saving.keep, saving.max_gb, saving.resume_path) == ("", 0, 3, 1e8, "")
    assert (saving.resumes, saving.overrides, saving.saves_state, saving.merges) == (True, True, True, True)
    assert (saving.exports, saving.gathers) == (True, False)
    assert found.shares.per_rank == (4, 4)
    assert (found.max_epochs, found.seed, found.packs, found.aux_loss_coef) == (2, 42, False, 0.0)
    assert (found.eval_steps, found.logging_steps, found.max_skipped_steps) == (0, 1, MAX_SKIPPED_STEPS)
    assert (found.logs_memory, found.logs_phases, found.logs_adapter, found.tiers) == (False, False, False, None)


def test_settings_hold_those_of_checkpoints_in_tiers():
    section = {"memory": {"frequency": 2, "retention": 3}, "persistent": None, "namespace": "n"}
    given = compiled() | {"checkpointing": section | {"s3_endpoint": None, "replicas": 1}}
    found = settings_of(given, 1).tiers
    assert (found.namespace, found.memory.frequency, found.replicas) == ("n", 2, 1)


def test_settings_read_every_key_that_differs_from_its_default():
    changes = {"model_save_name": "x", "lora_checkpoint_file_path": "/adapters", "model_revision": "main"}
    args = {
        **{"training_dir": "/ckpt", "save_steps": 7, "max_ckpt_num": 1, "max_ckpt_mem": 5, "load_checkpoint": False},
        **{"override_training_dir": False, "resume_checkpoint_path": "/from", "disable_ds_ckpt": True},
        **{"merge_weights": False, "save_hf_ckpt": False, "packing_samples": True, "aux_loss_coef": 0.5},
        **{"eval_steps": 3, "logging_steps": 9, "max_skipped_steps": 2, "log_gpu_memory": True},
        **{"log_run_time": True, "gradient_clipping_threshold": 0.3, "weight_decay": 0.2, "seed": 1},
    }
    found = settings_of(compiled(lora=False, model_changes=changes, **args), 1)
    model, saving = found.model, found.saving
    assert (model.save_name, model.adapters_path, model.revision, model.lora) == ("x", "/adapters", "main", None)
    assert (saving.folder, saving.every, saving.keep, saving.max_gb) == ("/ckpt", 7, 1, 5.0)
    assert (saving.resumes, saving.overrides, saving.resume_path) == (False, False, "/from")
    assert (saving.saves_state, saving.merges, saving.exports) == (False, False, False)
    assert (found.packs, found.aux_loss_coef, found.seed) == (True, 0.5, 1)
    assert (found.eval_steps, found.logging_steps, found.max_skipped_steps) == (3, 9, 2)
    assert (found.logs_memory, found.logs_phases) == (True, True)
    assert (found.optimizer.max_norm, found.optimizer.weight_decay) == (0.3, 0.2)


@pytest.mark.parametrize(
    ("args", "max_norm"),
    [
        ({"gradient_clipping": False}, None),
        ({"gradient_clipping_threshold": 0}, None),
        ({"gradient_clipping_threshold": 0.5}, 0.5),
        ({"gradient_clipping_threshold": 2}, 2.0),
    ],
)
def test_gradients_are_clipped_to_a_threshold_above_nothing(args, max_norm):
    assert settings_of(compiled(**args), 1).optimizer.max_norm == max_norm


@pytest.mark.parametrize(
    ("args", "recomputes"),
    [
        ({"gradient_checkpointing": True}, True),
        (fsdp(activation_checkpointing=True), True),
        (fsdp(activation_checkpointing=False), False),
    ],
)
def test_either_key_recomputes_activations(args, recomputes):
    assert settings_of(compiled(**args), 1).parallel.recomputes is recomputes


def test_the_settings_of_sharding_are_read():
    changed = {"sharding_strategy": "NO_SHARD", "cpu_offload": True, "forward_prefetch": True}
    found = settings_of(compiled(**fsdp(**changed)), 1).parallel
    assert found == ParallelSettings("NO_SHARD", offloads=True, recomputes=False, prefetches=True)
    gathered = settings_of(compiled(save_hf_ckpt=False, **fsdp(state_dict_type="FULL_STATE_DICT")), 1).saving
    assert gathered.exports and gathered.gathers


def test_adapters_have_their_modules():
    peft = {
        **{"r": "16", "lora_alpha": "32", "lora_dropout": "0.5", "bias": "all", "target_modules": ["q", "v"]},
        **{"target_parameters": ["experts"], "exclude_modules": ["router"]},
    }
    found = settings_of(compiled(model_changes={"peft_config": peft, "model_name_or_path": None}), 1).model
    assert found.lora == LoraSettings(16, 32, 0.5, "all", ("q", "v"), ("experts",), ("router",)) and found.path == ""


def test_the_settings_of_preferences_have_defaults():
    given = compiled(
        "llama", "dpo", beta=0.3, loss_type="ipo", label_smoothing=0.1, nll_loss_coef=2, reference_free=1
    )
    assert settings_of(given, 1).preference == PreferenceSettings("ipo", 0.3, 0.1, 2.0, True)
    unset = compiled("llama", "dpo", loss_type=None, label_smoothing=None, nll_loss_coef=None)
    assert settings_of(unset, 1).preference == PreferenceSettings("sigmoid", 0.1, 0.0, 0.0, False)
    for name in ("loss_type", "label_smoothing", "nll_loss_coef"):
        del unset["training_config"]["training_args"][name]
    assert settings_of(unset, 1).preference == PreferenceSettings("sigmoid", 0.1, 0.0, 0.0, False)


@pytest.mark.parametrize(
    ("save_steps", "disabled", "steps"), [(0, False, 12), (5, False, 5), (1, False, 1), (-1, False, 0), (5, True, 0)]
)
def test_steps_between_checkpoints(save_steps, disabled, steps):
    found = settings_of(compiled(save_steps=save_steps, disable_ds_ckpt=disabled), 1).saving
    assert found.steps_between(12) == steps


@pytest.mark.parametrize(
    ("mlflow", "logs"), [({"log_adapter": True}, True), ({"log_adapter": False}, False), (None, False)]
)
def test_adapters_are_logged_if_wanted(mlflow, logs):
    config = compiled()
    training = config["training_config"]
    changed = config | {"training_config": training | {"mlflow": mlflow}}
    assert settings_of(changed, 1).logs_adapter is logs
    without = {key: value for key, value in training.items() if key != "mlflow"}
    assert settings_of(config | {"training_config": without}, 1).logs_adapter is False
