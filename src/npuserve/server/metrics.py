"""GET /metrics: the engine's books and the replies' times in Prometheus' text format."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response

from npuserve import __version__
from npuserve.core import Event, FinishReason, Timings
from npuserve.engine.base import AnyEngine
from npuserve.engine.stats import EngineStats
from npuserve.kvstore.tier import TierStats

_FIRST_TOKEN_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_TOKEN_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
_REPLY_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)

Figure = tuple[str, str, Callable[[EngineStats], float]]

_GAUGES: tuple[Figure, ...] = (
    ("requests_running", "Requests that have a slot.", lambda s: s.num_running),
    ("requests_queued", "Requests that wait for a slot.", lambda s: s.num_queued),
    ("slots", "KV slots.", lambda s: s.num_slots),
)
_COUNTERS: tuple[Figure, ...] = (
    ("requests", "Requests accepted.", lambda s: s.num_requests),
    ("prompt_tokens", "Prompt tokens of admitted requests.", lambda s: s.num_tokens_in),
    ("prompt_tokens_cached", "Prompt tokens that a saved context gave.", lambda s: s.num_tokens_cached),
    ("generated_tokens", "Tokens generated.", lambda s: s.num_tokens_out),
    ("requests_cancelled", "Requests cancelled.", lambda s: s.num_requests_cancelled),
    ("requests_failed", "Requests failed.", lambda s: s.num_requests_failed),
    ("steps", "Device steps done.", lambda s: s.num_steps),
    ("steps_failed", "Device steps that failed.", lambda s: s.num_failed_steps),
    ("device_seconds", "Time of the device's runs.", lambda s: s.device_s),
    ("program_seconds", "Time spent on programs and their arguments.", lambda s: s.program_s),
    ("sampling_seconds", "Time spent on choosing tokens.", lambda s: s.sampling_s),
    ("scheduling_seconds", "Time spent on scheduling.", lambda s: s.scheduling_s),
)
# vLLM's names for the same, as its public dashboards ask for them.
_VLLM_GAUGES: tuple[Figure, ...] = (
    ("num_requests_running", "Requests that run.", lambda s: s.num_running),
    ("num_requests_waiting", "Requests that wait.", lambda s: s.num_queued),
)
_VLLM_COUNTERS: tuple[Figure, ...] = (
    ("prompt_tokens", "Prompt tokens.", lambda s: s.num_tokens_in),
    ("generation_tokens", "Generated tokens.", lambda s: s.num_tokens_out),
    ("prefix_cache_queries", "Prompt tokens looked for in saved contexts.", lambda s: s.num_tokens_in),
    ("prefix_cache_hits", "Prompt tokens found in saved contexts.", lambda s: s.num_tokens_cached),
)

_STORE_FIGURES: tuple[
    tuple[type[GaugeMetricFamily | CounterMetricFamily], str, str, Callable[[TierStats], int]], ...
] = (
    (GaugeMetricFamily, "entries", "Saved pages.", lambda t: t.entries),
    (GaugeMetricFamily, "bytes", "Bytes of saved pages.", lambda t: t.size_bytes),
    (GaugeMetricFamily, "capacity_bytes", "Room for saved pages.", lambda t: t.capacity_bytes),
    (CounterMetricFamily, "hits", "Pages found.", lambda t: t.hits),
    (CounterMetricFamily, "misses", "Pages looked for in vain.", lambda t: t.misses),
    (CounterMetricFamily, "evictions", "Pages given up for others.", lambda t: t.evictions),
    (CounterMetricFamily, "errors", "Operations that failed.", lambda t: t.errors),
)


@dataclass(frozen=True, slots=True)
class _Names:
    """What one family calls the times of a reply."""

    prefix: str
    queue: str
    first_token: str
    token: str
    reply: str
    replies: str
    reason: str


_OWN = _Names(
    "npuserve_", "queue_seconds", "first_token_seconds", "token_seconds", "reply_seconds", "replies", "finish_reason"
)
_VLLM = _Names(
    "vllm:",
    "request_queue_time_seconds",
    "time_to_first_token_seconds",
    "time_per_output_token_seconds",
    "e2e_request_latency_seconds",
    "request_success",
    "finished_reason",
)


class Metrics:
    """The figures of one server, under vLLM's names as well when `vllm`."""

    def __init__(self, engine: AnyEngine, model: str, *, vllm: bool = False) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_EngineFigures(engine, model, vllm=vllm))
        self._families = [_ReplyTimes(self._registry, model, names) for names in ((_OWN, _VLLM) if vllm else (_OWN,))]
        self._http = Counter(
            "npuserve_http_responses", "Replies by route and status.", ("route", "status"), registry=self._registry
        )
        self._num_tokens: dict[str, int] = {}

    def count_response(self, route: str, status: int) -> None:
        """Note a reply; `route` is one of the route table, never what a client made up."""
        self._http.labels(route, str(status)).inc()

    def observe(self, events: Sequence[Event]) -> None:
        """Note the events of a step: a reply's times are known with its last one."""
        num_tokens = self._num_tokens
        for event in events:
            num_tokens[event.request_id] = num_tokens.get(event.request_id, 0) + len(event.token_ids)
            if event.finish is not None:
                count = num_tokens.pop(event.request_id)
                for family in self._families:
                    family.observe(event.finish, event.timings, count)

    def text(self) -> bytes:
        """All figures of this moment."""
        return generate_latest(self._registry)


class _ReplyTimes:
    """Histograms of ended requests under one family's names."""

    def __init__(self, registry: CollectorRegistry, model: str, names: _Names) -> None:
        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            made = Histogram(names.prefix + name, text, ("model_name",), buckets=buckets, registry=registry)
            return made.labels(model)

        self._queue = histogram(names.queue, "Seconds that a request waited for a slot.", _FIRST_TOKEN_BUCKETS)
        self._first = histogram(names.first_token, "Seconds from arrival to the first token.", _FIRST_TOKEN_BUCKETS)
        self._token = histogram(names.token, "Mean seconds from one token of a reply to the next.", _TOKEN_BUCKETS)
        self._reply = histogram(names.reply, "Seconds from arrival to the end.", _REPLY_BUCKETS)
        self._replies = Counter(
            names.prefix + names.replies, "Requests ended.", ("model_name", names.reason), registry=registry
        )
        self._model = model

    def observe(self, finish: FinishReason, times: Timings, num_tokens: int) -> None:
        self._replies.labels(self._model, finish.value).inc()
        if finish not in (FinishReason.STOP, FinishReason.LENGTH):
            return
        self._queue.observe(times.queue_s)
        self._first.observe(times.queue_s + times.prefill_s)
        self._reply.observe(times.queue_s + times.prefill_s + times.decode_s)
        if num_tokens > 1:
            self._token.observe(times.decode_s / (num_tokens - 1))


class _EngineFigures(Collector):
    """The engine's own counters, read when they are asked for."""

    def __init__(self, engine: AnyEngine, model: str, *, vllm: bool) -> None:
        self._engine = engine
        self._model = model
        self._vllm = vllm

    def collect(self) -> Iterator[Metric]:
        stats = self._engine.stats()
        info = GaugeMetricFamily("npuserve_info", "Version and model.", labels=("version", "model_name"))
        info.add_metric((__version__, self._model), 1)
        yield info
        yield from self._family("npuserve_", _GAUGES, _COUNTERS, stats)
        yield from _store_figures(stats)
        if self._vllm:
            yield from self._family("vllm:", _VLLM_GAUGES, _VLLM_COUNTERS, stats)

    def describe(self) -> Iterator[Metric]:
        """Nothing: the names are told by the first `collect`."""
        yield from ()

    def _family(
        self, prefix: str, gauges: Iterable[Figure], counters: Iterable[Figure], stats: EngineStats
    ) -> Iterator[Metric]:
        for kind, figures in ((GaugeMetricFamily, gauges), (CounterMetricFamily, counters)):
            for name, text, value in figures:
                family = kind(prefix + name, text, labels=("model_name",))
                family.add_metric((self._model,), value(stats))
                yield family


def _store_figures(stats: EngineStats) -> Iterator[Metric]:
    """Of each tier of the context store: pages, bytes, and what was found in it."""
    if stats.store is None:
        return
    tiers = {"ram": stats.store.ram} | ({} if stats.store.disk is None else {"disk": stats.store.disk})
    for kind, name, text, value in _STORE_FIGURES:
        family = kind(f"npuserve_kv_{name}", text, labels=("tier",))
        for tier, figures in tiers.items():
            family.add_metric((tier,), value(figures))
        yield family


async def get_metrics(request: Request) -> Response:
    """All figures, in the text format 0.0.4."""
    metrics: Metrics = request.app.state.metrics
    return Response(metrics.text(), media_type=CONTENT_TYPE_PLAIN_0_0_4)
