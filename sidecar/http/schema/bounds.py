"""Values with bounds, which both the reading of requests and the published document heed."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

MAX_CHOICES = 8
MAX_STOPS = 16
MAX_LOGPROBS = 20

AtLeastOne = Annotated[int, Meta(ge=1)]
Choices = Annotated[int, Meta(ge=1, le=MAX_CHOICES)]
Logprobs = Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)]
StopText = Annotated[str, Meta(min_length=1)]
Stops = Annotated[list[StopText], Meta(max_length=MAX_STOPS)]
# Editors list the markers of every model that they know.
EditorStops = Annotated[list[StopText], Meta(max_length=4 * MAX_STOPS)]
# What every family's form of calls can spell.
ToolName = Annotated[str, Meta(pattern=r"^[^>\n]+$")]
Temperature = Annotated[float, Meta(ge=0, le=100)]
TopP = Annotated[float, Meta(gt=0, le=1)]
TopK = Annotated[int, Meta(ge=0, le=2**31 - 1)]
MinP = Annotated[float, Meta(ge=0, le=1)]
RepetitionPenalty = Annotated[float, Meta(gt=0, le=100)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
