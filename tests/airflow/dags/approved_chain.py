"""A chain with one destination that takes everything."""

from homing import HandlerChain, destination


@destination
def crm(content: object) -> int:
    return 201


chain = HandlerChain("approved", destinations_flow=[crm])
