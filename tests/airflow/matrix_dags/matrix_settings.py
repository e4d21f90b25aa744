"""What tells the scenarios' pipelines apart."""

#: The scenarios in which what is killed has no retry.
ONE_TRY = {"claim", "callback"}


def flows(name: str) -> list[str]:
    """The destinations: two where one of two tasks is killed, and one elsewhere, which spares a Spark job."""
    return ["left", "right"] if name == "deliver" else ["left"]
