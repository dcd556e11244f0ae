"""The main result in one sentence: the gain over Standalone and its interval."""

from collections.abc import Sequence

from asfedbridge.methods import DEFAULT, REFERENCE
from asfedbridge.report.charts import group_name
from asfedbridge.report.comparison import Comparison
from asfedbridge.report.runs import Run
from asfedbridge.report.statistics import Difference

MAX_HEADLINES = 3


def headlines(runs: Sequence[Run], compared: Sequence[Comparison]) -> list[str]:
    """For a single run, its accuracy; for several, the gain of the default or best method in each protocol."""
    if len(runs) == 1:
        return [_single(runs[0])] if "all" in runs[0].summary.accuracy else []
    return [_compared(one) for one in compared[:MAX_HEADLINES]]


def _single(run: Run) -> str:
    summary = run.summary
    kinds = ", ".join(f"{group_name(g)} {mean:.2f}" for g, mean in summary.accuracy.items() if g != "all")
    when = "" if run.finished else f" after {summary.course} rounds"
    right = f"{summary.accuracy['all']:.2f} % of their test images correctly"
    return f"On average, the clients classify {right}{when} ({kinds})."


def _compared(one: Comparison) -> str:
    reference, gains = one.reference, dict[str, Difference]()
    for name, series in one.methods.items():
        if reference and series is not reference and (gain := series.difference(reference, "all")):
            gains[name] = gain
    if gains:
        chosen = DEFAULT if DEFAULT in gains else max(gains, key=lambda name: gains[name].mean)
        return _gain(chosen, gains[chosen], one.title)
    name, best = max(one.methods.items(), key=lambda entry: entry[1].mean("all") or 0.0)
    return f"{name} has the highest mean accuracy on {one.title}: {best.show('all')} % ({len(best.runs)} seeds)."


def _gain(method: str, gain: Difference, title: str) -> str:
    way = "above" if gain.mean >= 0 else "below"
    words = f"{method} is {abs(gain.mean):.2f} percentage points {way} {REFERENCE} on {title}"
    if gain.low is None or gain.high is None:
        return f"{words} (one pair of runs)."
    zero = "" if gain.excludes_zero else "; it includes zero"
    return f"{words} (95 % interval {gain.low:+.2f} to {gain.high:+.2f} over {gain.n} {gain.unit}{zero})."
