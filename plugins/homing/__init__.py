"""Homing: guaranteed message delivery for people who run Airflow and Spark."""

from homing.connection import Connection
from homing.declared_connections import connections
from homing.invocation.batch_result import PartialFailure
from homing.invocation.circuit_breaker import CircuitBreaker
from homing.listener import ListenerConfig, StoreListener
from homing.message import Message
from homing.pipeline import (
    Drop,
    ExecutionError,
    ExecutionResult,
    HandlerChain,
    MessageContext,
    ReplayConfig,
    destination,
    destination_router,
    message_filter,
    processor,
    processor_router,
    transformer,
)
from homing.printable import make_log_records_printable
from homing.retry import Retry, RetryPolicy
from homing.stores import open_store

__version__ = "0.1.0"

make_log_records_printable()

__all__ = [
    "CircuitBreaker",
    "Connection",
    "Drop",
    "ExecutionError",
    "ExecutionResult",
    "HandlerChain",
    "ListenerConfig",
    "Message",
    "MessageContext",
    "PartialFailure",
    "ReplayConfig",
    "Retry",
    "RetryPolicy",
    "StoreListener",
    "connections",
    "destination",
    "destination_router",
    "message_filter",
    "open_store",
    "processor",
    "processor_router",
    "transformer",
]
