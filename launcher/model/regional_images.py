"""Published images that each region's registry has in an account of its own."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field

from launcher.model.base_model import Model, TextForm
from launcher.model.checkpointing import Content
from launcher.model.recipe import RecipeBase

_ACCOUNT = "^[0-9]{12}$"
Account = Annotated[str, TextForm(pattern=_ACCOUNT, words="an account of 12 digits, in quotes")]


class RegionalImage(Model):
    """An image, and where it exists."""

    name: Annotated[str, Field(min_length=1)]
    """Its name and tag."""
    accounts: dict[str, Account] = {}
    """Account of the registry that has it, by region. Default: those of all the family's images."""


class RegionalImages(Model):
    """The published images of a family."""

    region: str
    """Region whose registry is used unless the job names its own region, or you name an image in `container`."""
    accounts: dict[str, Account] = {}
    """Account of the registry in each region, for images that name none of their own."""
    k8s: RegionalImage | None = None
    """The image for Kubernetes."""
    sm_jobs: RegionalImage | None = None
    """The image for training jobs of SageMaker."""

    def exists(self, cluster: str) -> bool:
        """Return whether there is an image for a choice of `cluster`, in any region."""
        return getattr(self, cluster, None) is not None

    def regions(self, cluster: str) -> tuple[str, ...]:
        """Return the regions that have the image for a choice of `cluster`."""
        image: RegionalImage | None = getattr(self, cluster, None)
        return tuple(image.accounts or self.accounts) if image else ()

    def address(self, cluster: str, region: str | None, *, is_for_any: bool = False) -> str | None:
        """Return the image for a choice of `cluster` in a region, by default the usual one; None if there is none.

        Args:
            cluster: The choice.
            region: None for the usual one.
            is_for_any: Whether the image for Kubernetes is also that of every cluster without one.
        """
        image: RegionalImage | None = getattr(self, cluster, None) or (self.k8s if is_for_any else None)
        return self.located(image.name, region, image.accounts) if image else None

    def located(self, name: str, region: str | None = None, accounts: Mapping[str, str] | None = None) -> str | None:
        """Return the image of a name in a region, by default the usual one; None if there is none."""
        place = region or self.region
        account = (accounts or self.accounts).get(place)
        return f"{account}.dkr.ecr.{place}.amazonaws.com/{name}" if account else None


class ImageRecipe(RecipeBase):
    """A recipe whose program runs where its image was published."""

    elsewhere: ClassVar[str]
    """Why a cluster without a published image cannot run it."""

    images: RegionalImages
    """The published images, by region."""

    def refusal(self, cluster: str) -> str | None:
        """Return why a choice of `cluster` cannot run it: no image was published for it."""
        return None if self.images.exists(cluster) else self.elsewhere

    def image(self, cluster: str, region: str | None) -> str | None:
        """Return the published image for a choice of `cluster` in a region."""
        return self.images.address(cluster, region)

    def image_regions(self, cluster: str) -> tuple[str, ...]:
        """Return the regions that have the published image for a choice of `cluster`."""
        return self.images.regions(cluster)

    def content(self, config: Mapping[str, Any] | None = None, published_model: str = "") -> Content:
        """Return nothing: the program saves no checkpoint, or one in a form of its own."""
        return Content(0, "bfloat16", "none", "ddp")
