"""Pipelines: handlers, and the chain that runs them."""

from __future__ import annotations

from homing.pipeline.chain import HandlerChain
from homing.pipeline.chain_loader import load_chain
from homing.pipeline.context import MessageContext
from homing.pipeline.flows import DestinationFlow, Flow, SourceFlow
from homing.pipeline.handlers import (
    Handler,
    destination,
    destination_router,
    message_filter,
    processor,
    processor_router,
    transformer,
)
from homing.pipeline.outcome import ExecutionError, ExecutionResult
from homing.pipeline.replay import ReplayConfig
from homing.pipeline.signals import Drop

__all__ = [
    "DestinationFlow",
    "Drop",
    "ExecutionError",
    "ExecutionResult",
    "Flow",
    "Handler",
    "HandlerChain",
    "MessageContext",
    "ReplayConfig",
    "SourceFlow",
    "destination",
    "destination_router",
    "load_chain",
    "message_filter",
    "processor",
    "processor_router",
    "transformer",
]
