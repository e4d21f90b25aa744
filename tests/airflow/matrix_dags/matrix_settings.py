"""What tells the scenarios' pipelines apart."""

#: The scenarios with two destinations; the others have one, which spares a Spark job each.
TWO_DESTINATIONS = {"deliver", "supervisor"}
#: The scenarios in which what is killed has no retry.
ONE_TRY = {"claim", "callback"}


def flows(name: str) -> list[str]:
    return ["left", "right"] if name in TWO_DESTINATIONS else ["left"]
