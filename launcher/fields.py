"""What every typed part of the configuration is made of."""

import os
from typing import Annotated, Any, TypeVar

os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # looking for them reads every installed package

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


class Model(BaseModel):
    """Base of every model: strict, frozen, no unknown keys."""

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        protected_namespaces=(),
        defer_build=True,  # a part is built with the whole that holds it, not once by itself before
    )


def indexed(value: Any) -> Any:
    """Turn `{0: a, 1: b}` into `[a, b]`: what `+key.0.field=…` on the command line builds."""
    if isinstance(value, dict) and value and all(k.isdigit() for k in value):
        return [value[k] for k in sorted(value, key=int)]
    return value


_T = TypeVar("_T")
Listed = Annotated[list[_T], BeforeValidator(indexed)]
"""A list that the command line may also fill by index."""

PositiveInt = Annotated[int, Field(ge=1)]
NodeCount = Annotated[int, Field(ge=1, le=100_000)]
NonNegativeInt = Annotated[int, Field(ge=0)]

INT32, INT64 = 2**31 - 1, 2**63 - 1
Positive32 = Annotated[int, Field(ge=1, le=INT32)]
NonNegative32 = Annotated[int, Field(ge=0, le=INT32)]
"""Numbers of a job's specification. Source: Kubernetes, API Conventions: integers are int32 unless they need more."""
