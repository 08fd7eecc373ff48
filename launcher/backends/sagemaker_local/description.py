"""Describes cluster=sm_local: a training job on this machine, under SageMaker's container contract."""

from typing import TYPE_CHECKING, ClassVar

from launcher.backends.sagemaker.description import TrainingJobDescription
from launcher.model.backend import Backend
from launcher.model.capabilities import Doctor
from launcher.model.job_spec import OPEN, JobSpec, Trainer

if TYPE_CHECKING:
    from launcher.backends.sagemaker_local.contract_options import Settings


class SageMakerLocalDescription(TrainingJobDescription["Settings"]):
    """Describes training jobs simulated on this machine. cluster=local cluster.contract=sagemaker selects it too."""

    name: ClassVar[str] = "contract"  # the name in bundles and records of earlier versions
    choice: ClassVar[str] = "sm_local"
    cluster_types: ClassVar[tuple[str, ...]] = ("sm_local", "local")
    runs_here: ClassVar[bool] = True
    default_trainer: ClassVar[Trainer] = OPEN

    def load(self) -> Backend:
        """Return the backend that runs training jobs on this machine."""
        from launcher.backends.sagemaker_local.backend import BACKEND

        return BACKEND

    def doctor(self) -> Doctor:
        """Return the examination of this machine."""
        from launcher.backends.sagemaker_local.doctor import ContractDoctor

        return ContractDoctor()

    def options(self) -> type["Settings"]:
        """Return the model of the `cluster` section."""
        from launcher.backends.sagemaker_local.contract_options import Settings

        return Settings

    def job_kind(self, job: JobSpec) -> str:
        """Return a plan's name for the job."""
        return "SageMaker training job on this machine"


DESCRIPTION = SageMakerLocalDescription()
