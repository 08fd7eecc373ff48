"""Published images that each region's registry has in an account of its own."""

from typing import Annotated

from pydantic import Field

from launcher.model.base_model import Model

Account = Annotated[str, Field(pattern="^[0-9]{12}$")]


class RegionalImage(Model):
    """An image, and where it exists."""

    name: Annotated[str, Field(min_length=1)]
    """Its name and tag."""
    accounts: dict[str, Account]
    """Account of the registry that has it, by region."""


class RegionalImages(Model):
    """The published images of a family."""

    region: str
    """Region whose registry is used unless the job names its own region, or you name an image in `container`."""
    k8s: RegionalImage | None = None
    """The image for Kubernetes."""
    sm_jobs: RegionalImage | None = None
    """The image for training jobs of SageMaker."""

    def exists(self, cluster: str) -> bool:
        """Return whether there is an image for a choice of `cluster`, in any region."""
        return getattr(self, cluster, None) is not None

    def address(self, cluster: str, region: str | None) -> str | None:
        """Return the image for a choice of `cluster` in a region, by default the usual one; None if there is none."""
        image: RegionalImage | None = getattr(self, cluster, None)
        place = region or self.region
        account = image.accounts.get(place) if image else None
        return f"{account}.dkr.ecr.{place}.amazonaws.com/{image.name}" if image and account else None
