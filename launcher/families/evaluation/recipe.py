"""A recipe that evaluates an open-weight model, typed.

Source of choices: the parameters that the published templates of these recipes have.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field

from launcher.common.suggestions import did_you_mean
from launcher.model.base_model import Passed, PositiveInt, TextForm
from launcher.model.recipe import Run, TrackingUri
from launcher.model.recipe_keys import RecipeKeys
from launcher.model.regional_images import ImageRecipe

JUDGE = "llm_as_judge"
"""Section that only a recipe with a judge has."""

_MMLU = """
abstract_algebra anatomy astronomy business_ethics clinical_knowledge college_biology college_chemistry
college_computer_science college_mathematics college_medicine college_physics computer_security conceptual_physics
econometrics electrical_engineering elementary_mathematics formal_logic global_facts high_school_biology
high_school_chemistry high_school_computer_science high_school_european_history high_school_geography
high_school_government_and_politics high_school_macroeconomics high_school_mathematics high_school_microeconomics
high_school_physics high_school_psychology high_school_statistics high_school_us_history high_school_world_history
human_aging human_sexuality international_law jurisprudence logical_fallacies machine_learning management
marketing medical_genetics miscellaneous moral_disputes moral_scenarios nutrition philosophy prehistory
professional_accounting professional_law professional_medicine professional_psychology public_relations
security_studies sociology us_foreign_policy virology world_religions
"""
_BBH = """
boolean_expressions causal_judgement date_understanding disambiguation_qa dyck_languages formal_fallacies
geometric_shapes hyperbaton logical_deduction_five_objects logical_deduction_seven_objects
logical_deduction_three_objects movie_recommendation multistep_arithmetic_two navigate object_counting
penguins_in_a_table reasoning_about_colored_objects ruin_names salient_translation_error_detection snarks
sports_understanding temporal_sequences tracking_shuffled_objects_five_objects
tracking_shuffled_objects_seven_objects tracking_shuffled_objects_three_objects web_of_lies word_sorting
"""
_MATH = """
algebra counting_and_probability geometry intermediate_algebra number_theory prealgebra precalculus
"""
_RESULTS = "recipes.output.eval_results_dir"
SUBTASKS = {"mmlu": _MMLU.split(), "bbh": _BBH.split(), "math": _MATH.split()}
"""The parts of each benchmark that has parts."""

_S3 = "^(s3://.+)?$"
S3Folder = Annotated[str, TextForm(pattern=_S3, words="an S3 URI such as s3://bucket/folder, or empty")]
"""A place in S3; empty for none."""


def _subtask(name: str) -> str:
    known = [each for of in SUBTASKS.values() for each in of]
    if name and name not in known:
        parts = ("should be a part of mmlu, bbh or math", did_you_mean(name, known))
        raise ValueError("; ".join(filter(None, parts)))
    return name


class EvaluationRun(Run):
    """Name of the job, the evaluated model, and the data."""

    base_model_name: str
    """Name of the model that the evaluated one was trained from, as SageMaker lists it. Required."""
    model_name_or_path: str | None = None
    """Benchmarks: the evaluated model, a place in S3 or a folder of the container. Required there."""
    data_s3_path: S3Folder | None = None
    """Benchmarks: s3:// folder of your own prompts, for the task gen_qa."""
    replicas: Annotated[int, Field(ge=1, le=128)] | None = None
    """Benchmarks: number of pods or instances."""
    judge_model_id: str | None = None
    """Judge: identifier of the model that judges. Required there."""
    inference_data_s3_path: S3Folder | None = None
    """Judge: s3:// place of the answers that are judged. Required there."""
    base_model_inference_data_s3_path: S3Folder | None = None
    """Judge: s3:// place of the base model's answers, to compare with."""


class Benchmark(Passed):
    """What is evaluated."""

    task: Literal["mmlu", "mmlu_pro", "bbh", "gpqa", "math", "strong_reject", "ifeval", "gen_qa", "inference_only"]
    """The benchmark; gen_qa for your own prompts with answers, inference_only for answers without a score."""
    strategy: Literal["zs_cot", "gen_qa", "zs", "fs_cot"]
    """How the model is asked: zs zero-shot, fs few-shot, cot with a chain of thought; gen_qa for your own prompts."""
    metric: Literal["all", "deflection", "accuracy", "exact_match"]
    """The score."""
    subtask: Annotated[str, AfterValidator(_subtask)]
    """A part of mmlu, bbh or math, such as abstract_algebra; empty for all parts."""


class Inference(Passed):
    """How answers are generated."""

    max_new_tokens: PositiveInt
    """Tokens of an answer, at most; fewer than max_model_len."""
    max_model_len: PositiveInt
    """Tokens of prompt and answer together."""
    temperature: Annotated[float, Field(ge=0)]
    """0 takes the most likely token: the same answers every time."""
    top_k: Annotated[int, Field(ge=-1)]
    """Sample from so many of the most likely tokens; -1 for all."""
    top_p: Annotated[float, Field(ge=0, le=1)]
    """Sample from the most likely tokens with this probability together; 1 for all."""


class Postprocessing(Passed):
    """What is done with answers before they are scored."""

    enabled: bool
    """true passes answers through the function first."""


class Processor(Passed):
    """A score of your own."""

    lambda_arn: str
    """ARN of a Lambda function that scores answers; empty for none."""
    preset_reward_function: Literal["", "prime_code", "prime_math"]
    """A function of the image that scores answers: prime_code runs code, prime_math compares mathematics."""
    aggregation: Literal["", "average", "median", "max", "min", "sum"]
    """How the scores of several answers become one."""
    postprocessing: Postprocessing
    """What is done with answers before they are scored."""


class Judge(Passed):
    """What the judge looks at."""

    metrics: Literal[
        "",
        "Correctness",
        "Completeness",
        "Faithfulness",
        "Helpfulness",
        "Coherence",
        "Relevance",
        "FollowingInstructions",
        "ProfessionalStyleAndTone",
        "Harmfulness",
        "Stereotyping",
        "Refusal",
        "FaithfulnessRelevance",
        "Evaluation",
        "ChainOfThought",
        "Summarization",
    ]
    """The quality that is judged."""
    custom_metrics: str
    """Qualities of your own, as the image reads them; empty for none."""


class Output(Passed):
    """Where results go."""

    eval_results_dir: str
    """s3:// folder, or a folder of the container, that receives the results. Required."""
    eval_tensorboard_results_dir: str
    """Folder for TensorBoard; empty for none."""
    kms_key_id: str
    """Key that encrypts the results; empty for S3's own."""
    mlflow_tracking_uri: TrackingUri
    """ARN of a SageMaker tracking server; empty for no tracking."""
    mlflow_experiment_name: str
    """Experiment of the run."""
    mlflow_run_name: str
    """Title of the run."""
    mlflow_run_id: str
    """A run to continue; empty for a new one."""


class Recipe(ImageRecipe):
    """A recipe that evaluates a model: on a benchmark, or by a judge."""

    keys: ClassVar[RecipeKeys] = RecipeKeys(
        inputs=("run.model_name_or_path", "run.inference_data_s3_path"),
        results=("output.eval_results_dir",),
        examples={
            "run.base_model_name": "my-model",
            "run.model_name_or_path": "/data/model",
            "run.judge_model_id": "my-judge",
            "run.inference_data_s3_path": "s3://my-bucket/answers/",
            "output.eval_results_dir": "s3://my-bucket/results/",
        },
        often_changed=(
            *("evaluation.task", "evaluation.subtask", "evaluation.strategy", "evaluation.metric"),
            *("inference.max_new_tokens", "inference.max_model_len", "inference.temperature"),
            *(f"{JUDGE}.metrics", f"{JUDGE}.custom_metrics", "output.eval_results_dir", "output.kms_key_id"),
            *("output.eval_tensorboard_results_dir", "output.mlflow_tracking_uri"),
            *("output.mlflow_experiment_name", "output.mlflow_run_name", "output.mlflow_run_id"),
        ),
        passed=("evaluation", "inference", "processor", JUDGE, "output"),
        launcher_only=(
            *("trainer", "display_name", "version", "instance_types", "images"),
            *("run.model_type", "run.results_dir", "run.hf_access_token"),
        ),
    )
    elsewhere: ClassVar[str] = "evaluations have images for Kubernetes and for training jobs of SageMaker only"
    fixed_size: ClassVar[str] = "an evaluation does not change its size: its image has no elastic agent"

    script_variables: ClassVar[Mapping[str, Mapping[str, str]]] = {
        "benchmark": {
            "BASE_MODEL_NAME": "run.base_model_name",
            "MODEL_NAME_OR_PATH": "run.model_name_or_path",
            "DATA_DIR": "run.data_s3_path",
            "RESULTS_DIR": "output.eval_results_dir",
        },
        "judge": {
            "BASE_MODEL_NAME": "run.base_model_name",
            "JUDGE_MODEL_ID": "run.judge_model_id",
            "ANSWERS_DIR": "run.inference_data_s3_path",
            "BASE_ANSWERS_DIR": "run.base_model_inference_data_s3_path",
            "RESULTS_DIR": "output.eval_results_dir",
        },
    }

    run: EvaluationRun
    """Name of the job, the evaluated model, and the data."""
    evaluation: Benchmark | None = None
    """What is evaluated. Benchmarks only."""
    inference: Inference | None = None
    """How answers are generated. Benchmarks only."""
    processor: Processor | None = None
    """A score of your own. Benchmarks only."""
    llm_as_judge: Judge | None = None
    """What the judge looks at. Only with a judge."""
    output: Output
    """Where results go."""

    @classmethod
    def script_kind(cls, recipe: Mapping[str, Any]) -> str:
        """Return whether a recipe has a judge or a benchmark."""
        return "judge" if JUDGE in recipe else "benchmark"

    @classmethod
    def left_to_launch(cls, config: Mapping[str, Any]) -> Mapping[str, str]:
        """Return the keys that a recipe leaves to each launch; a judge may leave its results to the image."""
        left = super().left_to_launch(config)
        return {key: left[key] for key in left if key != _RESULTS or JUDGE not in config["recipes"]}
