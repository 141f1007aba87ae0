"""The ranges of settings, shared by all models of the configuration."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
"""Unknown keys are refused, and no value is converted to another type."""

Side = Literal["query", "document"]
Geometry = Literal["unit", "cut"]
"""Document vectors of unit length, or normalised at full width, cut, and not normalised again."""
Name = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(ge=1)]
CountOrZero = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
PositiveOrZero = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
"""From 0 to below 1."""
Share = Annotated[float, Field(ge=0, le=1)]
"""From 0 to 1, both included."""
Threshold = Annotated[float, Field(ge=-1, le=2)]
"""A cosine; above 1 no two texts are similar."""
