"""Raw lines of the fit suite, made by hand."""

CONTENDERS = ("default", "forced", "spe32", "spe32_forced", "ours")


def line(model: str, contender: str, seconds: float, number: int = 0, kind: str = "short", **more) -> dict:
    """One fit of four epochs, of which starting took a fifth of the time."""
    made = dict(model=model, kind=kind, round=number, contender=contender, aim=10, limit=350, seconds=seconds)
    made |= dict(epochs=[seconds / 5] * 4, predicts=[1.0, seconds / 10], losses=[0.4, 0.3, 0.2, 0.2], jit=False)
    made |= dict(rows=1000, all_rows=1000, batch_size=100, step_bytes=1e6, report=None, wall=seconds + 8)
    made |= dict(block="2026-11-22T08:00:00+00:00", commit="abc", changed=False, cpu="a CPU", cores=2, python="3.12")
    made |= dict(load=1.0, bandwidth=30e9, versions={"keras": "3.15.1", "tensorflow": "2.21.0"})
    return made | more


def rounds(model: str, *seconds: dict[str, float], kind: str = "short", **more) -> list[dict]:
    """The lines of rounds, from each contender's seconds in each of them."""
    return [
        line(model, contender, taken, number, kind, **more)
        for number, block in enumerate(seconds)
        for contender, taken in block.items()
    ]


def block(default: float, ours: float, **others: float) -> dict[str, float]:
    """Seconds of a round: the variants of plain Keras are as slow as default, unless something else is said."""
    return dict.fromkeys(CONTENDERS, default) | {"ours": ours} | others
