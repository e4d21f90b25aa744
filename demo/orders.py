"""The demo's orders, and what must become of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

COUNTRIES = ("DE", "US", "FR", "BR", "PL", "JP", "SE", "IN")
EUROPE = {"DE", "FR", "PL", "SE"}


def make_orders(number: int) -> list[dict[str, Any]]:
    """Orders of which every tenth is not paid and every fiftieth is for no pieces at all."""
    return [
        {
            "number": n,
            "country": COUNTRIES[n % len(COUNTRIES)],
            "quantity": 0 if n % 50 == 7 else 1 + n % 5,
            "cents": 100 + n % 900,
            "paid": n % 10 != 3,
        }
        for n in range(number)
    ]


@dataclass(frozen=True)
class Expected:
    """What must become of these orders once the CRM is up."""

    lake: set[int]
    crm: set[int]
    dropped: int
    invalid: int


def expect(orders: list[dict[str, Any]]) -> Expected:
    """Worked out here from the orders alone, so that the pipeline is not its own judge."""
    paid = [order for order in orders if order["paid"]]
    good = [order for order in paid if order["quantity"] > 0]
    return Expected(
        lake={order["number"] for order in good},
        crm={order["number"] for order in good if order["country"] in EUROPE},
        dropped=len(orders) - len(paid),
        invalid=len(paid) - len(good),
    )
