"""Live progress: bars on a terminal, lines in a log."""

import sys
import time
from collections.abc import Callable, Mapping

import tqdm

from tff_fedss.progress import SECONDS_BETWEEN_LINES


def _as_percent(share: float) -> str:
    return f"{100 * share:.1f} %"


class Progress:
    """One progress bar per name, with the latest metrics and the remaining time.

    It is a context manager and writes to standard error. If that is not a terminal, it
    writes lines instead of bars, every ten seconds and at every new evaluation.
    """

    def __init__(
        self,
        done: Mapping[str, int],
        total: int,
        unit: str = "round",
        metric: str = "top1",
        metric_title: str = "top-1",
        format_metric: Callable[[float], str] = _as_percent,
    ):
        """Shows a bar for each name, with a metric of evaluations, as a share.

        Args:
            done: What each name has done before, as when it resumes.
        """
        self._metric, self._metric_title = metric, metric_title
        self._format_metric = format_metric
        self._total = total
        self._unit = unit
        self._start = time.monotonic()
        self._last_line = self._start
        self._done = dict(done)
        self._done_before = sum(done.values())
        self._shown: dict[str, dict[str, str]] = {name: {} for name in done}
        # When the metric was last measured, and its value.
        self._measured: dict[str, tuple[int, str]] = {}
        self._bars: dict[str, tqdm.tqdm] | None = None
        self._width = max(map(len, done))
        if sys.stderr.isatty():
            self._bars = {
                name: tqdm.tqdm(
                    total=total,
                    initial=before,
                    desc=name.ljust(self._width),
                    unit=unit,
                    position=position,
                    dynamic_ncols=True,
                )
                for position, (name, before) in enumerate(done.items())
            }

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_) -> None:
        if self._bars is not None:
            for bar in self._bars.values():
                bar.close()

    def update(self, name: str, done: int, metrics: Mapping[str, float]) -> None:
        """Shows a name's metrics: loss, epsilon, and that of evaluations or `accuracy`.

        Missing ones keep their last value, the metric with the number of its round.
        """
        shown = self._shown[name]
        if name in self._measured:  # The metric is from an earlier round.
            when, value = self._measured[name]
            shown[self._metric_title] = f"{value} ({self._unit} {when})"
        if "loss" in metrics:
            shown["loss"] = f"{metrics['loss']:.3f}"
        if self._metric in metrics:
            value = self._format_metric(metrics[self._metric])
            shown[self._metric_title] = value
            self._measured[name] = done, value
        elif self._metric_title not in shown and "accuracy" in metrics:
            shown["acc"] = f"{100 * metrics['accuracy']:.1f} %"
        if self._metric_title in shown:
            shown.pop("acc", None)
        if "epsilon" in metrics:
            shown["epsilon"] = f"{metrics['epsilon']:.3g}"
        if metrics.get("rejected_clients"):
            shown["rejected clients"] = str(metrics["rejected_clients"])
        elif "loss" in metrics:
            shown.pop("rejected clients", None)
        if "effective_samples" in metrics:
            shown["effective m"] = f"{metrics['effective_samples']:.1f}"
            shown["clipped mass"] = _as_percent(metrics["clipped_mass"])
        self._done[name] = done
        if self._bars is not None:
            bar = self._bars[name]
            bar.set_postfix(shown, refresh=False)
            bar.update(done - bar.n)
            return
        now = time.monotonic()
        is_news = self._metric in metrics or done == self._total
        if is_news or now - self._last_line >= SECONDS_BETWEEN_LINES:
            self._last_line = now
            values = "  ".join(f"{key} {value}" for key, value in shown.items())
            print(
                f"{name.ljust(self._width)}  {self._unit} {done}/{self._total}  "
                f"{values}  ETA {self._eta(now)}",
                file=sys.stderr,
                flush=True,
            )

    def _eta(self, now: float) -> str:
        done = sum(self._done.values())
        if done == self._done_before:
            return "?"
        seconds_each = (now - self._start) / (done - self._done_before)
        remaining = self._total * len(self._done) - done
        return tqdm.tqdm.format_interval(seconds_each * remaining)
