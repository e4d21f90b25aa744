from __future__ import annotations

from homing import HandlerChain, destination


@destination
def crm(content: object) -> int:
    return 201


chain = HandlerChain("trust", destinations_flow=[crm])
