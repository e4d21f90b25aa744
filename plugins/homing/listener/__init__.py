"""StoreListener: takes messages out of a store and hands them to a service, until each has a final outcome."""

from __future__ import annotations

from homing.listener.config import ListenerConfig
from homing.listener.metrics import ListenerMetrics
from homing.listener.partial_progress import Progress
from homing.listener.store_listener import StoreListener

__all__ = ["ListenerConfig", "ListenerMetrics", "Progress", "StoreListener"]
