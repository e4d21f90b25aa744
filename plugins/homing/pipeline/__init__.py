"""Pipelines: handlers, the chain that runs them, and what is kept of a message that fails."""

from __future__ import annotations

from homing.errors import HandlerError
from homing.failure import FailureRecord, build_record, read_record
from homing.invocation.error_info import describe
from homing.pipeline.chain import HandlerChain
from homing.pipeline.chain_loader import load_chain
from homing.pipeline.context import MessageContext
from homing.pipeline.flows import DestinationFlow, Flow, RouterFlow, SourceFlow
from homing.pipeline.handlers import (
    Handler,
    destination,
    destination_router,
    message_filter,
    processor,
    processor_router,
    transformer,
)
from homing.pipeline.outcome import DeliveryOutcome, ExecutionError, ExecutionResult
from homing.pipeline.replay import ReplayConfig
from homing.pipeline.signals import Drop

__all__ = [
    "DeliveryOutcome",
    "DestinationFlow",
    "Drop",
    "ExecutionError",
    "ExecutionResult",
    "FailureRecord",
    "Flow",
    "Handler",
    "HandlerChain",
    "HandlerError",
    "MessageContext",
    "ReplayConfig",
    "RouterFlow",
    "SourceFlow",
    "build_record",
    "describe",
    "destination",
    "destination_router",
    "load_chain",
    "message_filter",
    "processor",
    "processor_router",
    "read_record",
    "transformer",
]
