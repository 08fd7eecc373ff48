"""What a recipe requests of its pods: elasticity, checkpoints, and notices about what they may do and keep."""

import posixpath
from collections.abc import Iterator
from shlex import quote

from launcher.backends.kubernetes import manifest, security
from launcher.backends.kubernetes.job_options import k8s_options
from launcher.common.problems import Notice, Problem
from launcher.model.checked_recipe import CheckedRecipe
from launcher.rules import SIZES, MakeNotice, MakeProblem, PlannedRecipe, notice_rule, rule
from launcher.rules.checkpointing import KEY, persistent_path
from launcher.rules.elasticity import PAGE, POLICY, refuses_elastic
from launcher.runtime.tiers.tier_settings import S3


@rule("E210", *SIZES, "cluster.use_hyperpod_pytorch_job", source=PAGE)
def not_kubeflow(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """elasticPolicy is a field of HyperPodPyTorchJob; Kubeflow's PyTorchJob has another, unlike one."""
    if k8s_options(checked).use_hyperpod_pytorch_job is False:
        yield from refuses_elastic(
            checked,
            problem,
            "cluster.use_hyperpod_pytorch_job",
            "a Kubeflow PyTorchJob",
            value=False,
            remedy="cluster.use_hyperpod_pytorch_job=true",
        )


@rule(
    "E217",
    f"{POLICY}.preemption",
    "cluster.priority_class_name",
    source=f"{PAGE}, Preemption by high priority job: priorityClassName",
)
def tiers_name_the_pods_class(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """Each part's pods have the part's own class."""
    preemption = checked.recipe.elastic_policy and checked.recipe.elastic_policy.preemption
    if preemption and k8s_options(checked).priority_class_name:
        yield problem(
            "cluster.priority_class_name",
            f"is given together with {POLICY}.preemption, which names the class of each part",
            value=k8s_options(checked).priority_class_name,
            remedy="cluster.priority_class_name=null",
        )


@rule("E262", f"{KEY}.persistent", "cluster", source="Kubernetes, Volumes")
def path_outlives_the_pod(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """What a pod writes outside its mounts is gone with it."""
    path = persistent_path(checked)
    if path and path.startswith("/") and not k8s_options(checked).keeps(path):
        places = [each.mountPath for each in k8s_options(checked).mounts if not each.readOnly]
        yield problem(
            f"{KEY}.persistent.path",
            "is not on a volume that the pods can write to: it would be lost with them",
            value=path,
            allowed=", ".join(f"{place}/…" for place in places) or "s3://bucket/prefix",
            remedy='"+cluster.persistent_volume_claims=[{claimName: fsx-claim, mountPath: /fsx}]"',
        )


@notice_rule("N134", source="docs/checkpointing.md")
def pods_have_their_nodes_role(planned: PlannedRecipe, notice: MakeNotice) -> Iterator[Notice]:
    """Pods without a service account of their own have the permissions of their node."""
    path = persistent_path(planned.checked)
    if path and path.startswith(S3) and k8s_options(planned.checked).service_account_name is None:
        yield notice("the pods reach the bucket with their node's role: no cluster.service_account_name is given")


@notice_rule("N198", source="docs/resize.md")
def stays_unseen(planned: PlannedRecipe, notice: MakeNotice) -> Iterator[Notice]:
    """What HyperPod's operator sends to agents whose workers stay is not documented."""
    if planned.job.in_place_timeout_s is not None:
        yield notice("resize: in_place has not been seen with HyperPod's operator: without its notice, workers save")


@notice_rule("N163", source="launcher/model/instances.csv")
def hyperpod_lacks_the_type(planned: PlannedRecipe, notice: MakeNotice) -> Iterator[Notice]:
    """Training jobs have instance types that HyperPod clusters do not."""
    instance = planned.checked.instance
    if instance and instance.use == ("training",) and k8s_options(planned.checked).use_hyperpod_pytorch_job:
        yield notice(f"HyperPod clusters have no {instance.name}: it is a type of training jobs")


@notice_rule("N117", source="docs/manifest.md, What pods may do", is_usual=True)
def pods_are_beyond_the_profile(planned: PlannedRecipe, notice: MakeNotice) -> Iterator[Notice]:
    """Something of the pods is beyond the restricted Pod Security profile."""
    if words := "; ".join(security.exceptions(planned.job)):
        yield notice(f"beyond the restricted Pod Security profile: {words}")


@notice_rule("N166", source="docs/manifest.md, The image's log file", is_usual=True)
def log_is_lost_with_its_pod(planned: PlannedRecipe, notice: MakeNotice) -> Iterator[Notice]:
    """The published image's log file needs a mounted folder; otherwise it is lost with its pod."""
    log = manifest.image_log(planned.job)
    if log is None or k8s_options(planned.job).keeps(log):
        return
    folder = posixpath.dirname(log)
    message = f"{log} is not written: no writable volume is mounted at {folder}; the pods' own logs have every line"
    override = quote(f"cluster.persistent_volume_claims=[{{claimName: my-claim, mountPath: {folder}}}]")
    yield notice(f"{message}. To keep it: {override}")
