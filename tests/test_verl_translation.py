"""Each key of the open trainer from verl's: the shipped recipes, values of one's own, and values that are null."""

import copy

import pytest
from conftest import composed

from launcher.families.verl.sections import Parallelism
from launcher.families.verl.translation import sharding, trained
from launcher.model.config_tree import get, leaves

SFT = "fine-tuning/qwen-0_7_0/verl-sft-qwen-3-4b-lora"
DPO = "fine-tuning/qwen-0_7_0/verl-dpo-qwen-3-dot-5-4b-lora"

# What a program reads that verl does not name: the open trainer's own keys, at the value that does what verl does.
OWN = {
    "model_config": {
        "model_save_name": "",
        "attn_implementation": "flash_attention_2",
        "device_map": None,
        "multimodal": False,
        "peft_config": {"peft_type": "lora", "task_type": "CAUSAL_LM", "bias": "none", "use_dora": False},
    },
    "datasets": {
        "save_intermediate_processing_steps": False,
        "assistant_turns": None,
        "max_lost_share": None,
        "train_data": {"name": ""},
        "val_data": {"name": ""},
    },
    "training_args": {
        "max_samples": 100_000_000,
        "packing_samples": False,
        "pretrain_mode": False,
        "l2": 0.0,
        "grad_accum_dtype": None,
        "aux_loss_coef": 0.0,
        "override_training_dir": True,
        "max_ckpt_mem": 1e8,
        "logging_steps": 1,
        "use_tensorboard": None,
        "use_wandb": None,
        "disable_fast_tokenizer": False,
        "trainer_callbacks": [],
        "gradient_checkpointing_use_reentrant": False,
        "ring_attn_size": 1,
        "ring_head_stride": 1,
        "strategy": {
            "fsdp_config": {
                "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
                "backward_prefetch": "BACKWARD_PRE",
                "cpu_ram_efficient_loading": True,
                "state_dict_type": "SHARDED_STATE_DICT",
                "sync_module_states": True,
                "use_orig_params": True,
            }
        },
    },
    "force_rerun": False,
    "mlflow": {"run_id": "", "tracking_uri": ""},
}


def translated(name, **changes):
    """Return the open trainer's configuration of a recipe some of whose values are changed, by dotted path."""
    recipe = copy.deepcopy(composed(name).tree["recipes"])
    for path, value in changes.items():
        *above, key = path.split(".")
        section = get(recipe["training_config"], ".".join(above)) if above else recipe["training_config"]
        section[key] = value
    return trained(recipe)["training_config"]


@pytest.mark.parametrize("name", [SFT, DPO])
def test_keys_without_a_twin_do_what_verl_does(name):
    found = translated(name)
    assert {path: get(found, path) for path, _ in leaves(OWN)} == dict(leaves(OWN))


@pytest.mark.parametrize(
    ("name", "key", "value", "expected"),
    [
        (SFT, "model.path", "me/model", {"model_config.model_name_or_path": "me/model"}),
        (SFT, "model.lora_rank", 0, {"model_config.peft_config": None}),
        (SFT, "model.lora_rank", 7, {"model_config.peft_config.r": 7}),
        (SFT, "model.lora_alpha", 9, {"model_config.peft_config.lora_alpha": 9}),
        (SFT, "model.lora_dropout", None, {"model_config.peft_config.lora_dropout": 0.0}),
        (SFT, "model.lora_dropout", 0.25, {"model_config.peft_config.lora_dropout": 0.25}),
        (SFT, "model.target_modules", ["a"], {"model_config.peft_config.target_modules": ["a"]}),
        (SFT, "model.target_parameters", ["b"], {"model_config.peft_config.target_parameters": ["b"]}),
        (SFT, "model.exclude_modules", ["c"], {"model_config.peft_config.exclude_modules": ["c"]}),
        (SFT, "model.lora_adapter_path", "/a", {"model_config.lora_checkpoint_file_path": "/a"}),
        (
            SFT,
            "model.override_config",
            {"attn_implementation": "sdpa"},
            {"model_config.attn_implementation": "sdpa"},
        ),
        (SFT, "model.enable_gradient_checkpointing", False, {"training_args.gradient_checkpointing": False}),
        (SFT, "model.enable_gradient_checkpointing", True, {"training_args.gradient_checkpointing": True}),
        (SFT, "data.train_files", None, {"datasets.train_data.file_path": ""}),
        (SFT, "data.train_files", "a.parquet", {"datasets.train_data.file_path": "a.parquet"}),
        (SFT, "data.train_files", ["b.parquet"], {"datasets.train_data.file_path": "b.parquet"}),
        (SFT, "data.train_files", [], {"datasets.train_data.file_path": ""}),
        (SFT, "data.val_files", ["b.parquet"], {"datasets.val_data.file_path": "b.parquet"}),
        (DPO, "data.train_max_samples", -1, {"datasets.train_data.limit": None}),
        (DPO, "data.train_max_samples", 0, {"datasets.train_data.limit": 0}),
        (DPO, "data.val_max_samples", 5, {"datasets.val_data.limit": 5}),
        (DPO, "data.val_max_samples", None, {"datasets.val_data.limit": None}),
        (SFT, "data.train_val_split_ratio", 0.75, {"datasets.train_val_split_ratio": 0.75}),
        (DPO, "data.seed", 3, {"training_args.seed": 3, "datasets.train_val_split_seed": 3}),
        (SFT, "engine.seed", 4, {"training_args.seed": 4, "datasets.train_val_split_seed": 4}),
        (SFT, "engine.seed", None, {"training_args.seed": 0}),
        (SFT, "data.truncation", "left", {"training_args.truncation": "left"}),
        (SFT, "data.truncation", None, {"training_args.truncation": "right"}),
        (SFT, "data.max_length", 1024, {"training_args.max_len": 1024, "training_args.micro_train_batch_size": 8}),
        (SFT, "data.max_token_len_per_gpu", None, {"training_args.micro_train_batch_size": 1}),
        (SFT, "data.max_token_len_per_gpu", 8192, {"training_args.micro_train_batch_size": 2}),
        (SFT, "data.max_token_len_per_gpu", 100, {"training_args.micro_train_batch_size": 1}),
        (SFT, "data.use_dynamic_bsz", False, {"training_args.micro_train_batch_size": 8}),
        (
            SFT,
            "data.train_batch_size",
            24,
            {"training_args.train_batch_size": 24, "training_args.micro_train_batch_size": 3},
        ),
        (SFT, "optim.lr", 5e-4, {"training_args.learning_rate": 5e-4}),
        (SFT, "optim.betas", None, {"training_args.adam_betas": [0.9, 0.999]}),
        (SFT, "optim.weight_decay", 0.5, {"training_args.weight_decay": 0.5}),
        (SFT, "optim.lr_warmup_steps_ratio", 0.5, {"training_args.lr_warmup_ratio": 0.5}),
        (SFT, "optim.lr_warmup_steps", 1, {"training_args.lr_warmup_steps": 1}),
        (SFT, "optim.lr_warmup_steps", 0, {"training_args.lr_warmup_steps": None}),
        (
            DPO,
            "optim.min_lr_ratio",
            None,
            {"training_args.lr_min_ratio": 0.0, "training_args.lr_scheduler": "cosine"},
        ),
        (
            DPO,
            "optim.lr_scheduler_type",
            "constant",
            {"training_args.lr_min_ratio": None, "training_args.lr_scheduler": "constant_with_warmup"},
        ),
        (
            SFT,
            "optim.clip_grad",
            None,
            {
                "training_args.gradient_clipping": False,
                "training_args.gradient_clipping_threshold": 0.0,
                "training_args.max_norm": 0.0,
            },
        ),
        (
            SFT,
            "optim.clip_grad",
            0.5,
            {
                "training_args.gradient_clipping": True,
                "training_args.gradient_clipping_threshold": 0.5,
                "training_args.max_norm": 0.5,
            },
        ),
        (SFT, "checkpoint.save_contents", ["model"], {"training_args.disable_ds_ckpt": True}),
        (SFT, "checkpoint.save_contents", ["model", "optimizer"], {"training_args.save_hf_ckpt": False}),
        (SFT, "checkpoint.save_contents", ["model", "hf_model"], {"training_args.save_hf_ckpt": True}),
        (SFT, "trainer.merge_lora_on_final_save", False, {"training_args.merge_weights": False}),
        (SFT, "trainer.merge_lora_on_final_save", True, {"training_args.merge_weights": True}),
        (SFT, "trainer.max_ckpt_to_keep", None, {"training_args.max_ckpt_num": 100_000_000}),
        (SFT, "trainer.max_ckpt_to_keep", 2, {"training_args.max_ckpt_num": 2}),
        (SFT, "trainer.total_epochs", 5, {"training_args.max_epochs": 5}),
        (SFT, "trainer.save_freq", 1, {"training_args.save_steps": 1}),
        (SFT, "trainer.save_freq", 0, {"training_args.save_steps": -1}),
        (SFT, "trainer.save_freq", "after_each_epoch", {"training_args.save_steps": 0}),
        (SFT, "trainer.test_freq", 1, {"training_args.eval_steps": 1}),
        (SFT, "trainer.test_freq", -1, {"training_args.eval_steps": 0}),
        (SFT, "trainer.test_freq", "after_each_epoch", {"training_args.eval_steps": -1}),
        (SFT, "engine.forward_prefetch", False, {"training_args.strategy.fsdp_config.forward_prefetch": False}),
        (SFT, "engine.forward_prefetch", True, {"training_args.strategy.fsdp_config.forward_prefetch": True}),
        (SFT, "engine.offload_policy", True, {"training_args.strategy.fsdp_config.cpu_offload": True}),
        (SFT, "engine.param_offload", True, {"training_args.strategy.fsdp_config.cpu_offload": True}),
        (SFT, "engine.optimizer_offload", True, {"training_args.strategy.fsdp_config.cpu_offload": True}),
        (SFT, "engine.optimizer_offload", False, {"training_args.strategy.fsdp_config.cpu_offload": False}),
        (SFT, "engine.fsdp_size", 1, {"training_args.strategy.fsdp_config.sharding_strategy": "NO_SHARD"}),
        (DPO, "trainer.beta", 0.5, {"training_args.beta": 0.5, "training_args.trainer_type": "dpo"}),
        (DPO, "trainer.loss_type", None, {"training_args.loss_type": "sigmoid"}),
        (DPO, "trainer.loss_type", "hinge", {"training_args.loss_type": "hinge"}),
        (DPO, "trainer.label_smoothing", None, {"training_args.label_smoothing": 0.0}),
        (DPO, "trainer.label_smoothing", 0.25, {"training_args.label_smoothing": 0.25}),
        (DPO, "trainer.reference_free", True, {"training_args.reference_free": True}),
        (DPO, "trainer.reference_free", False, {"training_args.reference_free": False}),
        (DPO, "trainer.test_freq", 7, {"training_args.nll_loss_coef": 0.0, "training_args.eval_steps": 7}),
    ],
)
def test_a_value_of_verl_becomes_one_of_the_open_trainer(name, key, value, expected):
    found = translated(name, **{key: value})
    assert {path: get(found, path) for path in expected} == expected


def test_places_and_beginnings():
    resumed = translated(SFT, **{"trainer.resume_from_path": "/c/3", "trainer.default_local_dir": "/fsx"})
    keys = ("load_checkpoint", "resume_checkpoint_path", "training_dir")
    assert [resumed["training_args"][key] for key in keys] == [True, "/c/3", "/fsx"]
    fresh = translated(SFT, **{"trainer.resume_mode": "disable", "trainer.resume_from_path": "/c/3"})
    assert [fresh["training_args"][key] for key in keys] == [False, "", ""]
    assert translated(DPO)["training_args"]["load_checkpoint"] is True  # its resume_mode is auto


def test_steps_that_prepare_the_data():
    words = {"data.apply_chat_template_kwargs": {"enable_thinking": False}}
    assert translated(SFT, **words)["datasets"]["preprocessor_cfgs"] == [
        {"type": "TrainingSFTSampleConverter"},
        {"type": "Seq2SeqTokensProcessor", "enable_thinking": False},
    ]
    nulls = {"data.prompt_key": None, "data.chosen_key": None, "data.rejected_key": None}
    named = {"data.prompt_key": "q", "data.chosen_key": "good", "data.rejected_key": "bad"}
    for changes, prompt, columns in (
        (nulls, "prompt", {"chosen": "chosen", "rejected": "rejected"}),
        (named, "q", {"chosen": "good", "rejected": "bad"}),
    ):
        assert translated(DPO, **changes)["datasets"]["preprocessor_cfgs"] == [
            {"type": "TrainingPOSampleConverter", "prompt_key": prompt, "key_map": columns},
            {"type": "ApplyChatTemplate"},
            {"type": "TokenizeSampleDPO"},
        ]


def test_what_is_not_trained_stays_as_it_is():
    recipe = composed(SFT).tree["recipes"]
    found = trained(recipe)
    assert found["run"] == {**recipe["run"], "model_type": "llm_finetuning_aws"}
    rest = set(recipe) - {"run", "training_config"}
    assert rest and {key: found[key] for key in rest} == {key: recipe[key] for key in rest}


def test_a_recipe_without_a_section_is_refused():
    for section in ("model", "engine", "optim", "checkpoint"):
        with pytest.raises(ValueError, match="missing"):
            translated(SFT, **{section: None})


@pytest.mark.parametrize(
    ("nodes", "size", "again", "expected"),
    [
        *((2, -1, True, "FULL_SHARD"), (2, None, None, "FULL_SHARD"), (2, 16, False, "SHARD_GRAD_OP")),
        *((2, 1, True, "NO_SHARD"), (2, 8, True, "HYBRID_SHARD"), (2, 8, False, "_HYBRID_SHARD_ZERO2")),
        *((2, 4, True, None), (1, 8, True, "FULL_SHARD"), (2, 0, True, "FULL_SHARD"), (1, 1, True, "NO_SHARD")),
    ],
)
def test_groups_of_gpus_are_pytorchs_strategies(nodes, size, again, expected):
    recipe = {"trainer": {"num_nodes": nodes, "devices": 8}}
    assert sharding(recipe, Parallelism(fsdp_size=size, reshard_after_forward=again)) == expected


def test_a_group_of_one_rank_is_the_whole_job():
    recipe = {"trainer": {"num_nodes": 1, "devices": 1}}
    assert sharding(recipe, Parallelism(fsdp_size=1, reshard_after_forward=True)) == "FULL_SHARD"
