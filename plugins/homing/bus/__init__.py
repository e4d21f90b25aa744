"""A message bus with the semantics of Azure Service Bus: embedded in any SQL database, or the service itself.

The same four classes on both: a database URL means the embedded bus, a connection string the service.
"""

from homing.bus.administrator import Administrator
from homing.bus.broker import NEXT_SESSION
from homing.bus.entities import Queue, Subscription, Topic
from homing.bus.listener import BusListener, Caller
from homing.bus.message import Message, MessageBatch
from homing.bus.options import ReceiveMode, RetryMode, RetryOptions
from homing.bus.receiver import MessageReceiver
from homing.bus.rules import CorrelationFilter, FalseFilter, Rule, SqlFilter, TrueFilter
from homing.bus.sender import MessageSender

__all__ = [
    "NEXT_SESSION",
    "Administrator",
    "BusListener",
    "Caller",
    "CorrelationFilter",
    "FalseFilter",
    "Message",
    "MessageBatch",
    "MessageReceiver",
    "MessageSender",
    "Queue",
    "ReceiveMode",
    "RetryMode",
    "RetryOptions",
    "Rule",
    "SqlFilter",
    "Subscription",
    "Topic",
    "TrueFilter",
]
