"""A team, as `recipes governance` takes it: every key with its type and default."""

from typing import Annotated, Literal

from pydantic import Field

from launcher.model import instances
from launcher.model.base_model import Listed, Model, NodeCount, NonNegativeInt
from launcher.model.instances import Instance
from launcher.model.recipe import InstanceSpec

_SUFFIX = "-localqueue"
_PREFIX = "hyperpod-ns-"
LONGEST_TEAM = 63 - len(_PREFIX) - len(_SUFFIX)
"""Characters: the queue's name is the value of a label. Source: Kubernetes, Labels and Selectors."""
PRIORITY = "-priority"
LONGEST_PRIORITY = 63 - len(PRIORITY)
"""Characters of a priority class, the name of which is the value of a label, too."""

Count = Annotated[int, Field(ge=1, le=1_000_000)]
PriorityValue = Annotated[int, Field(ge=0, le=1_000_000_000)]
"""Source: Kubernetes, Pod Priority and Preemption: larger values are reserved for the system."""


class Team(Model):
    """Every key of `recipes governance`."""

    team: str
    """The team: a DNS label of at most 40 characters. Its namespace is hyperpod-ns-<team>."""
    instance_type: str
    """Instance type of its nodes, with or without ml."""
    instance_specs: Listed[InstanceSpec] | None = None
    """Instance types that the table lacks, described as in a recipe: [{name: p9.48xlarge, accelerators: 8, …}]."""
    nodes: NodeCount
    """The team's own nodes: max_nodes of its largest job, or the total of its concurrent jobs."""
    borrow_nodes: NonNegativeInt = 0
    """Further nodes it may use while the cohort's other teams leave them idle. The ResourceQuota includes both."""
    cohort: str | None = None
    """Teams of one cohort lend each other unused quota; null shares nothing."""
    weight: Annotated[int, Field(ge=0, le=100)] = 1
    """Weight of the team if several request the same idle nodes; 0 comes last."""
    preempt_within_team: bool = True
    """Whether a job preempts the team's own jobs of lower priority."""
    topology: str | None = None
    """Kueue Topology of the nodes, which must exist; required for jobs with topology constraints."""
    priorities: dict[str, PriorityValue] = {"high": 100, "normal": 50, "low": 10}
    """Class to value, higher first. Each becomes <class>-priority, for pods and for Kueue's workloads."""
    memory_gib_per_node: Count | None = None
    """GiB of main memory counted per node; null takes the instance's, on ml.p5.48xlarge the 640 of AWS's example."""
    hugepages_mib_per_node: Annotated[NonNegativeInt, Field(multiple_of=2)] = 0
    """MiB of 2 MiB huge pages counted per node. A queue never admits a job that requests an uncovered resource."""
    storage_gib: Count | None = None
    """Total GiB that the team's claims may request; null sets no bound."""
    max_pods: Count | None = None
    """Pods that have not terminated; null takes 4 per node."""
    max_claims: Count = 50
    """PersistentVolumeClaims."""
    max_services: Count = 50
    """Services."""
    max_jobs: Count = 100
    """HyperPodPyTorchJobs, including finished ones that were not deleted."""
    min_available: NonNegativeInt | None = None
    """Training pods that a drain of nodes must leave running; null takes one for each of the team's own nodes, 0
    protects none."""
    role_arn: str | None = None
    """IAM role that the pods of the team's service account act as (IRSA)."""
    groups: Annotated[Listed[str], Field(min_length=1)] | None = None
    """Kubernetes groups that may use the namespace, as EKS access entries name them; null takes the namespace's
    name."""
    pod_security: Literal["privileged", "baseline", "restricted", "policy"] | None = None
    """Pod Security profile that the namespace enforces. null: baseline, but policy if the instance has EFA or
    host_paths are given. policy is baseline by a ValidatingAdmissionPolicy (Kubernetes 1.30): containers that request
    EFA devices may lock memory, and pods may mount host_paths. A pod that is not restricted causes a warning."""
    host_paths: Annotated[Listed[str], Field(min_length=1)] | None = None
    """Folders of the nodes that pods may mount (cluster.volumes), each exactly as given; null allows none."""
    kueue: bool = True
    """false omits queue, flavor and workload priorities: for clusters whose task governance add-on creates them."""
    kueue_version: Literal["v1beta1", "v1beta2"] | None = None
    """Version of Kueue's API that the objects are generated for; null takes the cluster's preferred one with
    --cluster, and v1beta2 otherwise."""
    scheduler_preempts: bool = False
    """true lets the scheduler evict single pods of lower priority. Only for a cluster without Kueue, which preempts
    complete jobs after they have saved."""

    @property
    def namespace(self) -> str:
        """Name of the namespace. Source: HyperPod task governance."""
        return _PREFIX + self.team

    @property
    def queue(self) -> str:
        """Name of the LocalQueue. Source: HyperPod task governance."""
        return self.namespace + _SUFFIX

    @property
    def known_instance(self) -> Instance | None:
        """Its nodes; None for an unknown instance type, which a checked team does not have."""
        return instances.find(self.instance_type, self.instance_specs)

    @property
    def instance(self) -> Instance:
        """The nodes of a checked team."""
        if (instance := self.known_instance) is None:
            raise LookupError(f"unknown instance type: {self.instance_type}")
        return instance

    @property
    def memory_gib(self) -> int:
        """GiB of main memory that are counted per node."""
        return self.memory_gib_per_node or self.instance.counted_memory_gib
